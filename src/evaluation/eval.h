/* What hc_eval does: figures of a checkpoint, on token files or on documents. */
#ifndef HC_SRC_EVAL_H
#define HC_SRC_EVAL_H

#include "runtime/ranks/ranks.h"
#include "src/settings/settings.h"
#include "src/text/model_tokenizer.h"

struct eval_settings {
    char *checkpoint;
    int64_t batch_size; /* sequences at a time, on each rank */
    char *data, *split; /* a folder of token files, and "train" or "val" */
    int64_t eval_iters; /* random batches of the split; 0: all of it */
    int64_t seed;
    const char *const *files; /* [file_count] of documents */
    size_t file_count;
    char *documents;           /* what they are: "auto", "files" or "jsonl" */
    char *field, *count_field; /* of JSON lines, as documents_settings has them */
    char *invalid;             /* "error" or "replace" */
    struct tokenizer_settings tokenizer;
    int64_t limit; /* documents; 0: all */
    char *json, *per_document;
    struct device_settings device;
    char *dtype; /* for settings_type */
};

enum eval_result { EVAL_DONE, EVAL_FAILED, EVAL_WRONG, EVAL_INTERRUPTED };

/* Collective. Prints the figures (rank 0); on failure the error text is set, see ranks_end_others. */
enum eval_result eval_run(const struct eval_settings *settings, struct ranks *ranks);

#endif
