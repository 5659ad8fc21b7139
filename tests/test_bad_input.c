/* Input that is wrong: every program says what is wrong, where, and what to do, exits with the right status, and
 * leaves nothing behind. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/files.h"
#include "runtime/safetensors.h"
#include "tests/program.h"
#include "tests/scratch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL                                                                                                      \
    "--device", "pocl", "--n-layer", "1", "--n-head", "2", "--n-embd", "8", "--block-size", "8", "--batch-size",   \
        "2", "--eval-iters", "0"
#define TRAIN(...) PROGRAM_RUN("hc_train", SMALL, "--out-dir", scratch_path("run"), __VA_ARGS__)
#define PROBE(checkpoint, batch)                                                                                   \
    PROGRAM_RUN("hc_probe", "--device", "pocl", "--checkpoint", checkpoint, "--batch", batch, "--out",             \
                scratch_path("probe.safetensors"))

/* A data folder of this many tokens, all of one value, without meta.json. */
static const char *make_data(const char *name, size_t bytes, uint16_t token) {
    static uint16_t tokens[1000];
    char path[64];
    for (size_t i = 0; i < 1000; i++) {
        tokens[i] = token;
    }
    files_make_folder(scratch_path(name));
    snprintf(path, sizeof path, "%s/train.bin", name);
    scratch_write(path, tokens, bytes);
    snprintf(path, sizeof path, "%s/val.bin", name);
    scratch_write(path, tokens, 2000);
    return scratch_path(name);
}

static void assert_nothing_ran(void) {
    assert_false(files_exist(scratch_path("run/ckpt-1")));
}

/* ---- token files */

static void token_files(void **state) {
    (void)state;
    assert_int_equal(TRAIN("--data-dir", scratch_path("nowhere")), 1);
    program_expect("nowhere/train.bin does not exist");
    program_expect("hc_prepare");
    assert_int_equal(TRAIN("--vocab-size", "256", "--data-dir", make_data("empty", 0, 1)), 1);
    program_expect("empty/train.bin");
    assert_int_equal(TRAIN("--vocab-size", "256", "--data-dir", make_data("odd", 101, 1)), 1);
    program_expect("odd/train.bin");
    assert_int_equal(TRAIN("--vocab-size", "256", "--data-dir", make_data("short", 10, 1)), 1);
    program_expect("too few for block_size = 8");
    assert_int_equal(TRAIN("--vocab-size", "256", "--data-dir", make_data("beyond", 2000, 300)), 1);
    program_expect("beyond/train.bin: token 300 at position");
    assert_int_equal(TRAIN("--data-dir", make_data("bare", 2000, 1)), 1);
    program_expect("vocab_size is needed");
    scratch_write("bare/meta.json", "{\"vocab_size\": \"many\"}", 22);
    assert_int_equal(TRAIN("--data-dir", scratch_path("bare")), 1);
    program_expect("bare/meta.json: 'vocab_size'");
    assert_nothing_ran();
}

/* ---- settings */

static void settings(void **state) {
    (void)state;
    const char *const data = make_data("plain", 2000, 1);
    const char *config = scratch_write("bad.conf", "n_layer = 2\nn_layers = 3\n", 25);
    assert_int_equal(TRAIN("--data-dir", data, "--config", config), 2);
    program_expect("bad.conf:2: unknown option 'n_layers'");
    assert_int_equal(TRAIN("--learning-rate", "fast"), 2);
    program_expect("--learning-rate: 'fast' is not a number");
    assert_int_equal(TRAIN("--n-streams", "9"), 2);
    program_expect("--n-streams");
    assert_int_equal(TRAIN("surplus"), 2);
    program_expect("'surplus'");
    assert_int_equal(TRAIN("--data-dir", data, "--vocab-size", "256", "--n-embd", "9"), 1);
    program_expect("n_embd = 9 is not divisible by n_head = 2");
    assert_int_equal(TRAIN("--data-dir", data, "--vocab-size", "256", "--n-streams", "1"), 1);
    program_expect("'shc' needs 2 to 8 streams");
    assert_int_equal(TRAIN("--data-dir", data, "--vocab-size", "256", "--device", "no such device"), 1);
    program_expect("there are: 0: ");
    assert_nothing_ran();
}

static void memory(void **state) {
    (void)state;
    const char *const data = make_data("plain", 2000, 1);
    assert_int_equal(TRAIN("--data-dir", data, "--vocab-size", "256", "--batch-size", "1000000", "--n-embd",
                           "4096"),
                     1);
    program_expect("not enough memory: this run needs");
    program_expect("smaller batch_size");
    assert_nothing_ran();
}

/* The paper's largest case: its size is said, and refused before anything is allocated. */
static void mhc_lite_with_eight_streams_is_refused_in_words(void **state) {
    (void)state;
    assert_int_equal(PROGRAM_RUN("hc_train", "--device", "pocl", "--residual", "mhc_lite", "--n-streams", "8",
                                 "--n-layer", "12", "--n-head", "12", "--n-embd", "768", "--block-size", "1024",
                                 "--vocab-size", "50304", "--batch-size", "8", "--plan-only"),
                     1);
    program_expect("6.073e+09 parameters");
    program_expect("5.949e+09 auxiliary (5948900808)");
    program_expect("not enough memory: this run needs");
}

/* ---- checkpoints */

static char *model_bytes(const char *run, size_t *bytes) {
    char path[64];
    snprintf(path, sizeof path, "%s/ckpt-1/model.safetensors", run);
    char *model = scratch_read(scratch_path(path), bytes);
    assert_non_null(model);
    return model;
}

static int resume(const char *run) {
    return PROGRAM_RUN("hc_train", "--out-dir", scratch_path(run), "--init-from", "resume", "--max-iters", "2");
}

static void damaged_checkpoints(void **state) {
    (void)state;
    size_t bytes;
    const char *const data = make_data("plain", 2000, 1);
    assert_int_equal(TRAIN("--data-dir", data, "--init-from", "resume"), 1);
    program_expect("run");
    assert_int_equal(PROGRAM_RUN("hc_train", SMALL, "--vocab-size", "256", "--data-dir", data, "--out-dir",
                                 scratch_path("saved"), "--max-iters", "1"),
                     0);
    char *model = model_bytes("saved", &bytes);
    model[bytes - 3] ^= 1;
    scratch_write("saved/ckpt-1/model.safetensors", model, bytes);
    assert_int_equal(resume("saved"), 1);
    program_expect("ckpt-1/model.safetensors is damaged");
    model[bytes - 3] ^= 1;
    scratch_write("saved/ckpt-1/model.safetensors", model, bytes - 7);
    assert_int_equal(resume("saved"), 1);
    assert_int_equal(PROBE(scratch_path("saved/ckpt-1"), scratch_path("none")), 1);
    scratch_write("saved/ckpt-1/model.safetensors", model, bytes);
    assert_int_equal(resume("saved"), 0);
    free(model);
}

static void checkpoints_of_another_model(void **state) {
    (void)state;
    size_t bytes;
    char *config = scratch_read(scratch_path("saved/ckpt-1/config.json"), &bytes);
    assert_non_null(config);
    char *width = strstr(config, "\"n_embd\": 8");
    assert_non_null(width);
    width[10] = '6';
    scratch_write("saved/ckpt-1/config.json", config, bytes);
    assert_int_equal(PROGRAM_RUN("hc_sample", "--device", "pocl", "--checkpoint", scratch_path("saved/ckpt-1")), 1);
    program_expect("has another shape than the model");
    width[10] = '7';
    scratch_write("saved/ckpt-1/config.json", config, bytes);
    assert_int_equal(PROGRAM_RUN("hc_sample", "--device", "pocl", "--checkpoint", scratch_path("saved/ckpt-1")), 1);
    program_expect("config.json: n_embd = 7 is not divisible");
    scratch_write("saved/ckpt-1/config.json", "{\"n_layer\": 1,", 14);
    assert_int_equal(PROGRAM_RUN("hc_sample", "--device", "pocl", "--checkpoint", scratch_path("saved/ckpt-1")), 1);
    program_expect("config.json: line 1");
    width[10] = '8';
    scratch_write("saved/ckpt-1/config.json", config, bytes);
    free(config);
    assert_int_equal(PROGRAM_RUN("hc_sample", "--device", "pocl", "--checkpoint", scratch_path("absent")), 1);
    program_expect("absent/config.json");
}

/* A file with one tensor short, or one too many. */
static void write_tensor(const char *name, const char *tensor) {
    const struct tensor_info info = {.name = (char *)(uintptr_t)tensor,
                                     .type = TENSOR_F32,
                                     .rank = 1,
                                     .shape = {4}};
    const float values[4] = {0};
    struct safetensors_writer *writer = NULL;
    assert_int_equal(safetensors_create(scratch_path(name), &info, 1, &writer), 0);
    assert_int_equal(safetensors_append(writer, values, sizeof values), 0);
    assert_int_equal(safetensors_finish(writer), 0);
}

static void checkpoints_with_other_tensors(void **state) {
    (void)state;
    size_t bytes;
    char *model = model_bytes("saved", &bytes);
    write_tensor("saved/ckpt-1/model.safetensors", "transformer.wte.weight");
    assert_int_equal(PROGRAM_RUN("hc_sample", "--device", "pocl", "--checkpoint", scratch_path("saved/ckpt-1")), 1);
    program_expect("it belongs to another model");
    scratch_write("saved/ckpt-1/model.safetensors", model, bytes);
    free(model);
}

/* ---- batches of hc_probe */

static const char *write_batch(const char *name, enum tensor_type type, unsigned rank, int32_t rows, int32_t y_rows,
                               int32_t token) {
    struct tensor_info infos[2] = {
        {.name = (char[]){"x"}, .type = type, .rank = rank, .shape = {(uint64_t)rows, 4}},
        {.name = (char[]){"y"}, .type = type, .rank = rank, .shape = {(uint64_t)y_rows, 4}}};
    struct safetensors_writer *writer = NULL;
    assert_int_equal(safetensors_create(scratch_path(name), infos, 2, &writer), 0);
    for (int32_t i = 0; i < (rows + y_rows) * (rank > 1 ? 4 : 1); i++) {
        assert_int_equal(safetensors_append(writer, &token, sizeof token), 0);
    }
    assert_int_equal(safetensors_finish(writer), 0);
    return scratch_path(name);
}

static void batches(void **state) {
    (void)state;
    const char *const checkpoint = scratch_path("saved/ckpt-1");
    char checkpoint_copy[512];
    snprintf(checkpoint_copy, sizeof checkpoint_copy, "%s", checkpoint);
    assert_int_equal(PROBE(checkpoint_copy, write_batch("good", TENSOR_I32, 2, 2, 2, 5)), 0);
    assert_int_equal(PROBE(checkpoint_copy, write_batch("high", TENSOR_I32, 2, 2, 2, 256)), 1);
    program_expect("x[0] = 256 is not a token of this model");
    assert_int_equal(PROBE(checkpoint_copy, write_batch("low", TENSOR_I32, 2, 2, 2, -2)), 1);
    program_expect("x[0] = -2");
    assert_int_equal(PROBE(checkpoint_copy, write_batch("unequal", TENSOR_I32, 2, 2, 3, 5)), 1);
    program_expect("x and y have different shapes");
    assert_int_equal(PROBE(checkpoint_copy, write_batch("flat", TENSOR_I32, 1, 4, 4, 5)), 1);
    program_expect("I32 with 2 dimensions");
    assert_int_equal(PROBE(checkpoint_copy, write_batch("floats", TENSOR_F32, 2, 2, 2, 5)), 1);
    program_expect("I32");
    write_tensor("lonely", "x");
    assert_int_equal(PROBE(checkpoint_copy, scratch_path("lonely")), 1);
    program_expect("tensor 'x'");
    assert_int_equal(PROGRAM_RUN("hc_probe", "--checkpoint", checkpoint_copy), 2);
    program_expect("--batch");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_files),
        cmocka_unit_test(settings),
        cmocka_unit_test(memory),
        cmocka_unit_test(mhc_lite_with_eight_streams_is_refused_in_words),
        cmocka_unit_test(damaged_checkpoints),
        cmocka_unit_test(checkpoints_of_another_model),
        cmocka_unit_test(checkpoints_with_other_tensors),
        cmocka_unit_test(batches),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
