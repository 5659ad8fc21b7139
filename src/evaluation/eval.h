/* What hc_eval does: metrics of a checkpoint, on token files or documents, and log-likelihoods of continuations. */
#pragma once

#include "runtime/files/token_file.h"
#include "runtime/ranks/ranks.h"
#include "src/evaluation/score_documents.h"
#include "src/text/tokenizer.h"

enum score_padding { SCORE_PADDING_AUTO, SCORE_PADDING_NO, SCORE_PADDING_YES };
#define SCORE_PADDING_WORDS "auto|no|yes"

struct eval_settings {
    char *checkpoint;
    char *adapter, *base;                /* as in model_files_open; NULL: none */
    int64_t batch_size;                  /* sequences at a time, on each rank */
    char *data;                          /* a folder of token files */
    int split;                           /* which of them: an enum token_split */
    int64_t eval_iters;                  /* batches of the split; 0: all of it */
    int64_t seed;                        /* of the batches; -1: the batches of runs with any seed */
    struct documents_settings documents; /* names NULL: none */
    struct tokenizer_settings tokenizer;
    int score_padding; /* enum score_padding: whether rows of the vocabulary without a token are in the softmax */
    char *json, *per_document;
    struct device_settings device;
    int dtype;          /* an enum element_type, or TYPE_AUTO */
    int master;         /* an enum element_type: see gpt_options */
    int frozen_weights; /* enum frozen_weights */
};

/* Collective. Prints the metrics (rank 0); on failure the error text is set, see ranks_end_others. */
enum program_status eval_run(const struct eval_settings *settings, struct ranks *ranks);
