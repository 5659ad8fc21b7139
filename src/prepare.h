/* Token files from text: read in pieces, cleaned of markup, split into training and held-out text, tokenised,
 * written.
 *
 * Held out are chunks of about 64 KiB, spread evenly over all of the input, so that both parts have the same
 * distribution. A chunk ends at the first blank line after its 64 KiB, or else at a line's end, or else is cut at
 * 128 KiB. With chunks numbered through all inputs, chunk c is held out where floor((c + 1) f + u) > floor(c f +
 * u), for the wanted fraction f and one random number u from the seed. Inputs too small for four held-out chunks
 * get smaller ones. */
#ifndef HC_SRC_PREPARE_H
#define HC_SRC_PREPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum prepare_markup { PREPARE_MARKUP_NONE, PREPARE_MARKUP_GCIDE };

struct prepare_settings {
    const char *folder;         /* of the results: train.bin, val.bin, meta.json; made if missing */
    const char *const *sources; /* text files, "-" is standard input */
    size_t source_count;        /* at least 1 */
    double val_fraction;        /* 0 .. 0.5; 0: no val.bin */
    uint64_t seed;              /* chooses the held-out chunks */
    enum prepare_markup markup; /* to strip */
    int stop_descriptor;        /* readable: stop; -1: nothing stops */
    bool progress;              /* a line on stderr that changes */
};

struct prepare_report {
    uint64_t source_bytes; /* as read */
    uint64_t train_tokens, val_tokens;
    double unigram_entropy; /* of the training tokens, nats per token */
};

enum prepare_result { PREPARE_DONE, PREPARE_FAILED, PREPARE_STOPPED };

/* Writes the token files. Whatever happens, older results stay until new ones are complete, and nothing
 * half-written stays. PREPARE_FAILED comes with an error text. */
enum prepare_result prepare_run(const struct prepare_settings *settings, struct prepare_report *report);

#endif
