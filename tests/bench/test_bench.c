/* hc_bench: its figures hang together. */
#include "runtime/files/json_file.h"
#include "tests/support/runs.h"

static const char program[] = HC_PROGRAMS "/hc_bench";

/* As wide as the model of tests/support/runs.c: where its kernels are in the cache these are not compiled. */
#define SMALL                                                                                                      \
    "--device", "pocl", "--n-layer", "2", "--n-embd", "16", "--n-head", "2", "--block-size", "16", "--batch-size", \
        "2", "--vocab-size", "300", "--allreduce-bucket", "0.01", "--ranks", "--json"

static double median(const json_t *json, const char *name) {
    const json_t *figure = json_object_get(json_object_get(json, "seconds"), name);
    assert_true(number_in(figure, "min") <= number_in(figure, "median"));
    assert_true(number_in(figure, "median") <= number_in(figure, "max"));
    return number_in(figure, "median");
}

UNIT_TEST(test_alone) {
    const char *path = scratch_path("alone.json");
    json_t *json;
    assert_done(CHILD_RUN(program, SMALL, path, "--steps", "1", "--warmup", "1", "--gradient-accumulation-steps",
                          "3", "--residual", "mhc"));
    assert_int_equal(json_file_read(path, 10000, &json), 0);
    const double step = median(json, "step");
    assert_string_equal(json_string_value(json_object_get(json, "residual")), "mhc");
    assert_float_equal(number_in(json, "tokens"), 3 * 2 * 16, 0);
    assert_float_equal(number_in(json, "tokens_per_second") * step / (3 * 2 * 16), 1.0, 1e-6);
    assert_float_equal((median(json, "compute") + median(json, "rest")) / step, 1.0, 1e-3);
    assert_true(median(json, "compute") > 0.0 && median(json, "rest") > 0.0);
    assert_float_equal(median(json, "exposed"), 0.0, 0);
    assert_float_equal(number_in(json, "bytes_sent"), 0.0, 0);
    assert_true(number_in(json, "gemm_rate") > 0.0);
    json_decref(json);
}

/* With one step measured, the parts of the mean rank add up to no more than the step of the slowest one, and to
 * much of it, since all wait for the sums. What is frozen has no gradients to exchange. */
static json_t *run_three_ranks(const char *per_host) {
    const char *path = scratch_path("ranks.json");
    json_t *json;
    assert_done(CHILD_RUN(HC_MPIRUN, "-np", "3", "-x", per_host, program, SMALL, path, "--steps", "1", "--warmup",
                          "1", "--gradient-accumulation-steps", "6", "--freeze", "mlp"));
    assert_int_equal(json_file_read(path, 10000, &json), 0);
    const double parts = median(json, "compute") + median(json, "exposed") + median(json, "rest");
    const double step = median(json, "step");
    assert_float_equal(number_in(json, "ranks"), 3, 0);
    assert_float_equal(number_in(json, "micro_steps"), 2, 0);
    assert_float_equal(number_in(json, "tokens"), 6 * 2 * 16, 0);
    assert_true(number_in(json, "buckets") > 2);
    assert_true(parts <= 1.001 * step && parts >= 0.5 * step);
    assert_true(median(json, "active") > 0.0 &&
                number_in(json_object_get(json, "seconds"), "exchange_alone") > 0.0);
    assert_true(number_in(json, "memory_rate") > 0.0);
    return json;
}

/* Each adds a third of three ranks' gradients and puts the sums where all three have them: reads and writes the
 * size of them. */
UNIT_TEST(test_three_ranks_that_share_memory) {
    json_t *json = run_three_ranks("HCTRAIN_RANKS_PER_HOST=3");
    assert_float_equal(number_in(json, "near"), 3, 0);
    assert_float_equal(number_in(json, "bytes_sent"), 0.0, 0);
    assert_float_equal(number_in(json, "bytes_moved_alone") / (2.0 * number_in(json, "gradient_bytes")), 1.0, 0.2);
    json_decref(json);
}

/* Reduce-scatter and all-gather: 2 (R - 1) / R of the gradients, up to the rounding of parts; in steps the rows of
 * tokens go, too. */
UNIT_TEST(test_three_ranks_across) {
    json_t *json = run_three_ranks("HCTRAIN_RANKS_PER_HOST=1");
    const double least = number_in(json, "gradient_bytes") * 4.0 / 3.0;
    assert_float_equal(number_in(json, "across"), 3, 0);
    assert_float_equal(number_in(json, "bytes_alone") / least, 1.0, 0.2);
    assert_true(number_in(json, "bytes_sent") >= number_in(json, "bytes_alone") &&
                number_in(json, "bytes_sent") < 1.5 * least);
    assert_float_equal(number_in(json, "bytes_moved_alone"), 0.0, 0);
    json_decref(json);
}

UNIT_TEST(test_recomputing_needs_less_memory) {
    static const char *const words[] = {"off", "layer"};
    double bytes[2];
    for (int i = 0; i < 2; i++) {
        const char *path = scratch_path("memory.json");
        json_t *json;
        assert_done(CHILD_RUN(program, SMALL, path, "--n-layer", "6", "--block-size", "64", "--steps", "1",
                              "--recompute", words[i]));
        assert_int_equal(json_file_read(path, 10000, &json), 0);
        bytes[i] = number_in(json, "planned_bytes");
        json_decref(json);
    }
    assert_true(bytes[1] < 0.8 * bytes[0]);
}

/* Ratios are to the first case with plain residuals, which is 1 to itself. */
UNIT_TEST(test_compare) {
    const char *path = scratch_path("cases.json"), *output = scratch_path("table");
    json_t *json;
    assert_done(CHILD_RUN_WRITING(output, program, SMALL, path, "--steps", "3", "--warmup", "1", "--compare",
                                  "shc:2,rc,mhc_lite", "--n-streams", "3", "--profile"));
    assert_int_equal(json_file_read(path, 100000, &json), 0);
    const json_t *cases = json_object_get(json, "cases");
    assert_int_equal(json_array_size(cases), 3);
    static const char *const names[] = {"shc", "rc", "mhc_lite"};
    static const double streams[] = {2, 1, 3};
    for (size_t i = 0; i < 3; i++) {
        const json_t *one = json_array_get(cases, i);
        assert_string_equal(json_string_value(json_object_get(one, "residual")), names[i]);
        assert_float_equal(number_in(one, "n_streams"), streams[i], 0);
        assert_true((number_in(one, "auxiliary") == 0.0) == (i == 1));
        assert_true(median(one, "step") > 0.0 && number_in(one, "mfu") > 0.0 && number_in(one, "peak_bytes") > 1e6);
        assert_float_equal(number_in(one, "tokens_per_second") * median(one, "step"), number_in(one, "tokens"),
                           1e-3);
        assert_true(json_array_size(json_object_get(one, "kernels")) > 10);
    }
    assert_float_equal(number_in(json_array_get(cases, 1), "ratio_to_rc"), 1.0, 0);
    assert_true(number_in(json_array_get(cases, 0), "ratio_to_rc") > 0.1);
    json_decref(json);
    const char *text = scratch_text(output, NULL);
    assert_non_null(strstr(text, "vocabulary 300 (as given)"));
    assert_non_null(strstr(text, "of GEMM  the model's FLOPs a second"));
    assert_non_null(strstr(text, "to rc    time of a step divided by that of rc in the same round"));
}

/* Writes a folder of prepared data, as far as hc_bench reads one, and returns its path. */
static const char *data_of(const char *name, const char *meta) {
    assert_int_equal(mkdir(scratch_path(name), 0700), 0);
    scratch_write(run_path(name, "meta.json"), meta, strlen(meta));
    return scratch_path(name);
}

/* Fails unless `arguments` make hc_bench print and write this vocabulary; nothing runs, the step is only
 * counted. */
static void assert_vocabulary(double wanted, const char *words, const char *option, const char *value) {
    const char *path = scratch_path("vocabulary.json"), *output = scratch_path("vocabulary");
    json_t *json;
    assert_done(CHILD_RUN_WRITING(output, program, "--roofline", "--as", "a6000", "--n-layer", "1", "--n-embd",
                                  "64", "--n-head", "2", "--block-size", "16", "--json", path, option, value));
    assert_int_equal(json_file_read(path, 1000000, &json), 0);
    assert_float_equal(number_in(json, "vocab_size"), wanted, 0);
    json_decref(json);
    if (!strstr(scratch_text(output, NULL), words)) {
        fail_msg("no '%s' in: %s", words, scratch_text(output, NULL));
    }
}

/* The vocabulary is the one that hc_train would take: what is given, or the data's, with GPT-2's rounded up. The
 * folder that tests run in has no data where the default looks for them. */
UNIT_TEST(test_vocabulary) {
    static const char characters[] = "{\"vocab_size\": 65, \"tokenizer\": \"char\"}";
    static const char gpt2[] = "{\"vocab_size\": 50257, \"tokenizer\": \"gpt2\"}";
    static const char same[] = "{\"vocab_size\": 300}";
    const char *output = scratch_path("head");
    assert_vocabulary(777, "vocabulary 777 (as given)", "--vocab-size", "777");
    assert_vocabulary(65, "vocabulary 65 (of the data)", "--data-dir", data_of("characters", characters));
    assert_vocabulary(50304, "vocabulary 50304 (of the data)", "--data-dir", data_of("gpt2", gpt2));
    assert_vocabulary(50304, "vocabulary 50304 (of GPT-2, as no data are prepared)", "--n-streams", "4");
    assert_failed(CHILD_RUN(program, "--data-dir", scratch_path("nowhere")), 2, "nowhere/meta.json does not exist");
    assert_done(CHILD_RUN_WRITING(output, program, SMALL, "", "--steps", "1", "--warmup", "0", "--vocab-size", "0",
                                  "--data-dir", data_of("same", same)));
    const char *text = scratch_text(output, NULL);
    assert_non_null(strstr(text, "vocabulary 300 (of the data)"));
}

/* A line in, a line out; what is known first and last. */
UNIT_TEST(test_step_on_demand) {
    const char *output = scratch_path("steps");
    const char *const shell[] = {"/bin/sh",          "-c", "printf 'a\\n\\n' | \"$0\" \"$@\"", program, SMALL, "",
                                 "--step-on-demand", NULL};
    assert_done(child_finish(child_start_writing(output, CHILD_UNLIMITED, shell)));
    FILE *file = fopen(output, "r");
    assert_non_null(file);
    json_t *lines[4];
    for (int i = 0; i < 4; i++) {
        lines[i] = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL);
        assert_non_null(lines[i]);
    }
    assert_int_equal(fgetc(file), '\n');
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    assert_true(number_in(lines[0], "parameters") == number_in(lines[3], "parameters"));
    assert_true(number_in(lines[1], "seconds") > 0.0 && number_in(lines[2], "seconds") > 0.0);
    assert_true(number_in(lines[3], "peak_bytes") >= number_in(lines[0], "peak_bytes"));
    for (int i = 0; i < 4; i++) {
        json_decref(lines[i]);
    }
}

UNIT_TEST(test_errors) {
    const char *path = scratch_path("none/timings.json");
    assert_failed(CHILD_RUN(program, SMALL, path, "--steps", "1"), 1, "none/timings.json");
    assert_failed(CHILD_RUN(program, "--steps", "0"), 2, "steps");
    assert_failed(CHILD_RUN(program, "--compare", "rc,nonsense"), 2, "'nonsense' is no residual variant");
    assert_failed(CHILD_RUN(program, "--compare", "shc:9"), 2, "streams are a number from 1 to 8");
    assert_failed(CHILD_RUN(program, "--compare", "shc:"), 2, "streams are a number from 1 to 8");
    /* one of the processes cannot start */
    assert_failed(CHILD_RUN(program, "--compare", "rc,shc", "--device", "nonsense"), 1, "ended early");
    assert_failed(CHILD_RUN(program, "--compare", "rc,shc:1"), 2, "n_streams");
    assert_failed(CHILD_RUN(program, "--compare", "rc", "--step-on-demand"), 2, "--step-on-demand");
    assert_failed(CHILD_RUN(program, "--n-head", "3"), 2, "n_head");
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
