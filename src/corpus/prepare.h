/* Token files from text: documents read, tokenised on all cores, shuffled, split into training and held-out ones,
 * written.
 *
 * Running text (DOCUMENT_CHUNKS) stays in order, and held out are chunks of about 64 KiB, spread evenly over all of
 * it, so that both parts have the same distribution. A chunk of bytes ends after the first blank line behind its
 * 64 KiB, or else at a line's end, or else is cut at 128 KiB; a chunk of GPT-2's tokens ends before the white space
 * there, so that train.bin and val.bin together have the tokens of the whole text. Inputs too small for four
 * held-out chunks get smaller ones. Which documents (or chunks) are held out, and their order, is in
 * document_order.h.
 *
 * Work in progress is in the folder ".hc_prepare" beside the results. */
#pragma once

#include "src/corpus/prepare_settings.h"

struct prepare_report {
    uint64_t source_bytes; /* as stored */
    uint64_t documents;    /* or chunks */
    uint64_t train_tokens, val_tokens;
    double unigram_entropy; /* of the training tokens, nats per token */
    bool kept;              /* stopped or failed: the same settings go on from a saved point */
};

enum prepare_result { PREPARE_DONE, PREPARE_FAILED, PREPARE_STOPPED };

/* Writes the token files. Whatever happens, older results stay until new ones are complete, and nothing
 * half-written has their names. PREPARE_FAILED comes with an error text. */
enum prepare_result prepare_run(const struct prepare_settings *settings, struct prepare_report *report);
