/* Files of text to numbered documents, as pieces for the encoder: running text in chunks, whole files in parts that
 * can be encoded one by one, or JSON lines. Memory stays bounded however large a file is. */
#pragma once

#include "src/corpus/encoder.h"
#include <jansson.h>

struct corpus_reader;

/* The settings must stay. total: stored bytes of all sources, 0: not known; with val_fraction it chooses the
 * size of chunks of running text. saved: NULL, or what corpus_reader_save gave, after which the next piece is the
 * one that was next then. Either way the caller closes it. */
int corpus_reader_open(const struct prepare_settings *settings, uint64_t total, const json_t *saved,
                       struct corpus_reader **opened);
void corpus_reader_close(struct corpus_reader *reader);

/* Adds pieces to an empty batch, about a MiB. 1: there may be more, 0: that was all, -1 with an error text. */
int corpus_reader_fill(struct corpus_reader *reader, struct text_batch *batch);

/* How to go on after the last piece that was given; the caller's. NULL when memory runs out. */
json_t *corpus_reader_save(const struct corpus_reader *reader);

/* How far reading is. */
struct corpus_status {
    uint64_t documents;    /* so far; chunks of running text count as such */
    uint64_t stored_bytes; /* read of all sources, as stored */
    size_t chunk_bytes;    /* of running text; 0: not known yet */
    bool divides;          /* text: its pieces say whether they are held out, and not their numbers */
    json_t *sources;       /* the reader's: path, bytes as stored and sha256 of those that were read to their end */
    uint64_t held_out_from; /* first document of the source that is held out; UINT64_MAX: none, or not known yet */
    bool stopped;           /* the last failure was the wish to stop */
};

struct corpus_status corpus_reader_status(const struct corpus_reader *reader);
