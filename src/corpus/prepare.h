/* Token files from text: reads documents, encodes them on all cores, shuffles them, divides them into training and
 * held-out documents, and writes both.
 *
 * Running text (DOCUMENT_CHUNKS) stays in order. Chunks of about 64 KiB, spread evenly over all of it, are held
 * out, so that both parts have the same distribution. A chunk of bytes ends after the first blank line behind its
 * 64 KiB, or else at a line's end, or else is cut at 128 KiB; a chunk of GPT-2's tokens ends before the white space
 * there, so that train.bin and val.bin together have the tokens of the whole text. Inputs that are too small for
 * four held-out chunks have smaller ones. document_order.h has the order of documents, and which of them (or of the
 * chunks) are held out.
 *
 * Work in progress is in the folder ".hc_prepare" in the folder of results. */
#pragma once

#include "runtime/options/options.h"
#include "src/corpus/prepare_settings.h"

struct prepare_report {
    uint64_t source_bytes; /* as stored */
    uint64_t documents;    /* or chunks */
    uint64_t train_tokens, val_tokens;
    double unigram_entropy; /* of the training tokens, nats per token */
    bool kept;              /* stopped or failed: a saved state is there to resume from */
    bool resumes;           /* kept, and the same settings resume from it */
};

/* Writes the token files. Older results stay until the new ones are complete, and incomplete files never have their
 * names. PROGRAM_FAILED comes with an error text. */
enum program_status prepare_run(const struct prepare_settings *settings, struct prepare_report *report);
