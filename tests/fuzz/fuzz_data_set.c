/* Any bytes as a folder of token files: opened, examined, read to the end and one token beyond. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "src/training/training_data.h"
#include "tests/fuzz/fuzz_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Of tokens that are in the vocabulary as many are no targets as the documents say. */
static void read_targets(const struct token_file *file, bool fits, uint64_t first, uint64_t count,
                         uint32_t vocabulary) {
    int32_t targets[64];
    uint64_t found = 0;
    if (!fits) {
        return;
    }
    fuzz_require(token_file_read_targets(file, first, count, vocabulary, targets) == 0, "targets that fit");
    for (uint64_t i = 0; i < count; i++) {
        found += targets[i] >= 0;
    }
    fuzz_require(token_file_count_targets(file, first, count) == found, "another number of targets");
}

static void read_tokens(struct token_file *file, uint32_t vocabulary) {
    int32_t tokens[64];
    char digest[CHECKSUM_SIZE];
    const uint64_t count = file->count, last = count < 64 ? count : 64;
    const bool fits = token_file_examine(file, vocabulary, digest) == 0;
    fuzz_require(count > 0, "an empty file was accepted");
    fuzz_require(!fits || token_file_read(file, count - last, last, vocabulary, tokens) == 0,
                 "tokens that fit are refused");
    fuzz_require(token_file_read(file, count - last + 1, last, vocabulary, tokens) != 0, "a token beyond the end");
    fuzz_require(token_file_read(file, UINT64_MAX, last, vocabulary, tokens) != 0, "a place that overflows");
    fuzz_require(token_file_check(file) == 0, "a file that stayed as it is is called changed");
    read_targets(file, fits, count - last, last, vocabulary);
}

/* Of a file that has become shorter. */
static void read_shorter(struct token_file *file) {
    char digest[CHECKSUM_SIZE];
    int32_t token;
    fuzz_require(token_file_read(file, file->count - 1, 1, 65536, &token) != 0, "a token that is gone was read");
    fuzz_require(token_file_examine(file, 65536, digest) != 0, "a file that is gone was examined");
}

/* The file that has the last tokens of train. */
static struct path last_of_train(const char *folder) {
    const struct path train = path_of("%s/train.bin", folder), last = path_of("%s/b_train.bin", folder);
    return files_exist(train.text) ? train : files_exist(last.text) ? last : path_of("%s/a_train.bin", folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const names[] = {"train.bin",       "val.bin",       "meta.json",
                                        "a_train.bin",     "b_train.bin",   "a_val.bin",
                                        "train.documents", "val.documents", NULL};
    struct training_data set;
    error_clear();
    const char *folder = fuzz_folder(data, bytes, names);
    if (training_data_open(folder, bytes % 2 == 0, &set)) {
        fuzz_require(*error_text() != '\0', "a failure without a reason");
        return 0;
    }
    fuzz_require(set.vocabulary.size >= 0 && set.vocabulary.size <= 1 << 24, "a vocabulary that cannot be");
    read_tokens(set.folders->train, set.vocabulary.size ? (uint32_t)set.vocabulary.size : 65536);
    if (set.folders->val) {
        read_tokens(set.folders->val, 256);
    }
    fuzz_require(training_data_check(&set) == 0, "a file that stayed as it is is called changed");
    fuzz_require(truncate(last_of_train(folder).text, 1) == 0 && training_data_check(&set) != 0,
                 "a shorter file is not noticed");
    read_shorter(set.folders->train);
    training_data_close(&set);
    return 0;
}
