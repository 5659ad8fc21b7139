#include "tests/support/corpus.h"
#include "runtime/system/random.h"
#include "tests/support/child.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 40000 };

static const char tiny[] = "device = pocl\n"
                           "n_layer = 1\n"
                           "n_head = 2\n"
                           "n_embd = 16\n"
                           "block_size = 16\n"
                           "batch_size = 4\n"
                           "max_iters = 20\n"
                           "learning_rate = 1e-2\n"
                           "warmup_iters = 2\n"
                           "lr_decay_iters = 20\n"
                           "eval_iters = 0\n"
                           "checkpoint_interval = 10\n";

int corpus_make(const char *programs) {
    static const char *const words[8] = {"the", "cat", "sat", "on", "a", "mat", "and", "ran"};
    static char text[TEXT_BYTES + 16];
    char program[512];
    size_t size = 0;
    for (uint64_t i = 0; size < TEXT_BYTES; i++) {
        const char *word = words[random_below(random_key(1, "text"), i, 8)];
        size += (size_t)snprintf(text + size, sizeof text - size, "%s%c", word, i % 9 == 8 ? '\n' : ' ');
    }
    scratch_put("tiny.conf", tiny);
    snprintf(program, sizeof program, "%s/hc_prepare", programs);
    const char *source = scratch_write("text.txt", text, size);
    const int status = CHILD_RUN(program, "--out", scratch_path("data"), source);
    if (status != 0) {
        fprintf(stderr, "%s", child_message());
    }
    return status == 0 ? 0 : -1;
}

int corpus_begin(void **state) {
    return scratch_begin(state) || corpus_make(HC_PROGRAMS) ? -1 : 0;
}

void corpus_write_over(const char *path, const char *from, bool turned) {
    size_t bytes;
    char *data = scratch_read(scratch_path(from), &bytes), *written = malloc(bytes);
    assert_true(data && written);
    for (size_t i = 0; i < bytes; i += 2) {
        memcpy(written + i, data + (turned ? bytes - 2 - i : i), 2);
    }
    const int file = open(scratch_path(path), O_WRONLY | O_CLOEXEC);
    assert_true(file >= 0 && write(file, written, bytes) == (ssize_t)bytes);
    close(file);
    free(written);
    free(data);
}
