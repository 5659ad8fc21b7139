/* Files of text to numbered documents, as pieces for the encoder: running text in chunks, whole files in parts that
 * can be encoded one by one, or JSON lines. Memory stays bounded however large a file is. */
#pragma once

#include "src/corpus/document_kind.h"
#include "src/corpus/encoder.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct corpus_settings {
    const char *const *sources; /* files, "-" is standard input */
    size_t source_count;
    enum document_kind kind;
    bool bytes;          /* tokens are bytes, so that text can be cut anywhere */
    uint64_t total;      /* stored bytes of all sources, 0: not known; chooses the size of chunks of running text */
    double val_fraction; /* for that choice, too */
    int stop_descriptor; /* see input_open */
};

struct corpus_reader;

/* sources [source_count] of the settings stay the caller's, the rest is copied. saved: NULL, or what
 * corpus_reader_save gave, after which the next piece is the one that was next then. */
int corpus_reader_open(const struct corpus_settings *settings, const json_t *saved, struct corpus_reader **opened);
void corpus_reader_close(struct corpus_reader *reader);

/* Adds pieces to an empty batch, about a MiB. 1: there may be more, 0: that was all, -1 with an error text. */
int corpus_reader_fill(struct corpus_reader *reader, struct text_batch *batch);

/* Whether the last failure was the wish to stop. */
bool corpus_reader_stopped(const struct corpus_reader *reader);

/* How to go on after the last piece that was given; the caller's. NULL when memory runs out. */
json_t *corpus_reader_save(const struct corpus_reader *reader);

/* Documents so far; chunks of running text count as such. */
uint64_t corpus_reader_documents(const struct corpus_reader *reader);

/* Of running text; 0: not known yet. */
size_t corpus_reader_chunk_bytes(const struct corpus_reader *reader);

/* Bytes read of all sources, as stored. */
uint64_t corpus_reader_stored_bytes(const struct corpus_reader *reader);

/* The sources that were read to their end: path, bytes as stored, sha256 of each. */
json_t *corpus_reader_sources(const struct corpus_reader *reader);
