/* Reads files of text as numbered documents, in pieces for the encoder: running text in chunks, whole files in
 * parts that can be encoded one by one, or JSON lines. Memory stays bounded however large a file is. */
#pragma once

#include "src/corpus/document_order.h"
#include "src/corpus/encoder.h"
#include <jansson.h>

struct corpus_reader;

/* settings, tokenizer (which says where text can be cut) and order must stay. total: stored bytes of all sources,
 * 0: not known; with val_fraction it determines the size of chunks of running text. saved: NULL, or the result of
 * corpus_reader_save, after which the next piece is the one that was next then. The caller closes the reader. */
struct corpus_reader *corpus_reader_open(const struct prepare_settings *settings, const struct tokenizer *tokenizer,
                                         const struct document_order *order, uint64_t total, const json_t *saved);
void corpus_reader_close(struct corpus_reader *reader);

/* Adds pieces to an empty batch, about a MiB. 1: there may be more, 0: that was all, -1 with an error text. Pieces
 * that were added before a failure are valid. */
int corpus_reader_fill(struct corpus_reader *reader, struct text_batch *batch);

/* Describes how to continue after the last piece; the caller releases it. */
json_t *corpus_reader_save(const struct corpus_reader *reader);

struct corpus_status {
    uint64_t documents;    /* so far; chunks of running text count, too */
    uint64_t stored_bytes; /* read of all sources, as stored */
    size_t chunk_bytes;    /* of running text; 0: not known yet */
    json_t *sources;       /* owned by the reader: path, stored bytes and sha256 of those read to their end */
};

struct corpus_status corpus_reader_status(const struct corpus_reader *reader);
