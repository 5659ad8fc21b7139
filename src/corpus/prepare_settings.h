/* What is to be prepared, for prepare.h and the files that do its parts. */
#pragma once

#include "src/corpus/document_kind.h"
#include <stdbool.h>
#include <stdint.h>

struct prepare_settings {
    const char *folder;         /* of the results: train.bin, val.bin, meta.json; made if missing */
    const char *const *sources; /* files, "-" is standard input */
    size_t source_count;        /* at least 1 */
    bool val_source;            /* the last of them is held out, and nothing else; val_fraction is 0 then */
    const char *vocabulary;     /* GPT-2's; NULL: a token is a byte */
    enum document_kind kind;
    const char *field;    /* of JSON lines */
    bool replace_invalid; /* U+FFFD for what is not UTF-8 */
    double val_fraction;  /* 0 .. 0.5; 0: no val.bin */
    uint64_t seed;        /* of the order and of what is held out */
    bool shuffle;         /* documents; chunks stay in order */
    const char *order;    /* a list for document_order_begin, or NULL */
    unsigned threads;     /* that encode */
    bool resume;          /* go on with what an interrupted run of the same settings left */
    uint64_t pile_bytes;  /* of text that is shuffled at once, about: PREPARE_PILE_BYTES */
    double save_interval; /* seconds from one note of what is done to the next: PREPARE_SAVE_INTERVAL */
    int stop_descriptor;  /* readable: stop; -1: nothing stops */
};

#define PREPARE_SAVE_INTERVAL 30.0
#define PREPARE_PILE_BYTES    ((uint64_t)1 << 28)
