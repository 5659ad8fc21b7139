/* The settings of hc_prepare, for prepare.h and the files that do its parts. */
#pragma once

#include "src/text/json_lines.h"
#include "src/text/tokenizer.h"

struct prepare_settings {
    const char *folder;         /* of the results: train.bin, val.bin (or shards), meta.json; made if missing */
    const char *const *sources; /* files, "-" is standard input */
    size_t source_count;        /* at least 1 */
    bool val_source;            /* the last source is held out, and nothing else; val_fraction is 0 */
    struct tokenizer_source tokenizer;
    enum document_kind kind;
    char *field;          /* of JSON lines: where the text is */
    char *prompt_field;   /* of JSON lines: where a prompt is, which comes before the text and is no target; NULL */
    bool lengths;         /* write train.documents and val.documents, of JSON lines */
    bool replace_invalid; /* what is not UTF-8 becomes U+FFFD */
    double val_fraction;  /* 0 .. 0.5; 0: no val.bin */
    int64_t seed;         /* of the order and of the split */
    bool shuffle;         /* documents; chunks stay in order */
    const char *order;    /* a list for document_order_begin, or NULL */
    int64_t threads;      /* that encode */
    bool resume;          /* continue from what an interrupted run of the same settings left */
    int64_t shard_tokens; /* in each of llm.c's token shards; 0: train.bin and val.bin */
    uint64_t bucket_bytes; /* of text that is sorted at once, about: PREPARE_BUCKET_BYTES */
    double save_interval;  /* seconds between two saved states: PREPARE_SAVE_INTERVAL */
    int stop_descriptor;   /* readable: stop; -1: never */
};

#define PREPARE_SAVE_INTERVAL 30.0
#define PREPARE_BUCKET_BYTES  ((uint64_t)1 << 28)
