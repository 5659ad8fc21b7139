/* For tests of hc_prepare: documents to prepare in the scratch folder, and what comes out in its folder "out". */
#pragma once

#include "runtime/files/checksum.h"
#include "src/corpus/prepare.h"
#include <stddef.h>
#include <stdint.h>

enum { DOCUMENTS = 3000, MERGES = 8, END_OF_TEXT = 256 + MERGES };

extern char *prepared_texts[DOCUMENTS]; /* the documents */
/* Paths: tokens of bytes and MERGES more; JSON lines; results. */
extern const char *prepared_vocabulary, *prepared_lines, *prepared_out;

/* Group set-up and tear-down of cmocka. */
int prepared_begin(void **state);
int prepared_end(void **state);

/* Documents [first, end) as JSON lines, compressed by gzip or not. */
void prepared_write_lines(const char *path, size_t first, size_t end, bool compressed);

/* An order file: document (i * step + 11) % count for each i. */
void prepared_write_order(const char *path, uint64_t count, uint64_t step);

/* The settings that tests begin with: shuffled JSON lines, a hundredth held out. */
struct prepare_settings prepared_settings(const char *const *sources, size_t count);
struct prepare_settings prepared_from(const char *source); /* of one source, until the next call */

/* Runs to the end. */
struct prepare_report prepared_run(const struct prepare_settings *settings);

/* Fails with this text, and leaves nothing. */
void assert_prepare_fails(const struct prepare_settings *settings, const char *expected);

/* "<scratch>/out/<name>" */
const char *prepared_path(const char *name);
void prepared_remove(void);

/* The documents of a token file as texts, in order. */
struct prepared_documents {
    char *texts[DOCUMENTS];
    size_t count, tokens;
};
void prepared_read(const char *name, struct prepared_documents *documents);
void prepared_release(struct prepared_documents *documents);

/* Both files together have the documents, each once, and val.bin has `held_out` of them, or one more or less. */
void assert_all_documents(size_t held_out);

/* Sorts texts. */
void prepared_sort(char **texts, size_t count);

/* Checksums of train.bin and val.bin. */
struct prepared_digests {
    char train[CHECKSUM_SIZE], val[CHECKSUM_SIZE];
};
struct prepared_digests prepared_digests(void);
void assert_same_results(const struct prepared_digests *expected);
