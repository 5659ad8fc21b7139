/* hc_bench --roofline: the launches of a step that does not run are those of a step of that shape that runs.
 * test_launches compares what is logged with what is put into the queue. */
#include "runtime/files/json_file.h"
#include "tests/support/runs.h"

static const char program[] = HC_PROGRAMS "/hc_bench";

/* The shape of the tests' model, from which bytes are worked out by hand below. */
enum { HEADS = 2, CHANNELS = 64, TOKENS = 2 * 32, VOCABULARY = 96, STREAMS = 4, SUBLAYERS = 2 /* a layer */ };

#define SHAPE                                                                                                      \
    "--n-layer", "1", "--n-head", "2", "--n-embd", "64", "--block-size", "32", "--batch-size", "2",                \
        "--vocab-size", "96", "--n-streams", "4", "--gradient-accumulation-steps", "2"

/* What is measured: a residual variant, the type of activations, what computes products, and the optimizer. */
struct model {
    const char *residual, *type, *gemm, *optimizer;
};

static const char *text(const json_t *json, const char *name) {
    return json_string_value(json_object_get(json, name));
}

static json_t *read_roofline(const char *path) {
    json_t *json;
    assert_int_equal(json_file_read(path, 1 << 20, &json), 0);
    return json;
}

/* ---- the launches of a dry step against those of one that ran */

/* But for what tells the two apart. */
static void check_same(json_t *dry, json_t *ran) {
    static const char *const own[] = {"device", "platform", "peak_bytes", "ran"};
    assert_true(json_is_false(json_object_get(dry, "ran")) && json_is_true(json_object_get(ran, "ran")));
    for (size_t i = 0; i < COUNT(own); i++) {
        assert_int_equal(json_object_del(dry, own[i]), 0);
        assert_int_equal(json_object_del(ran, own[i]), 0);
    }
    assert_true(json_object_size(dry) > 15);
    assert_true(json_equal(dry, ran));
}

static json_t *count(const struct model *model) {
    const char *path = scratch_path("dry.json");
    assert_done(CHILD_RUN(program, SHAPE, "--roofline", "--as", "emulation", "--residual", model->residual,
                          "--dtype", model->type, "--gemm", model->gemm, "--optimizer", model->optimizer, "--json",
                          path));
    return read_roofline(path);
}

static void check_model(const struct model *model) {
    const char *path = scratch_path("ran.json");
    json_t *dry = count(model);
    assert_done(CHILD_RUN(program, SHAPE, "--roofline", "--roofline-run", "--device", "pocl", "--as", "emulation",
                          "--residual", model->residual, "--dtype", model->type, "--gemm", model->gemm,
                          "--optimizer", model->optimizer, "--json", path));
    json_t *ran = read_roofline(path);
    check_same(dry, ran);
    json_decref(dry);
    json_decref(ran);
}

UNIT_TEST(test_a_dry_step_launches_what_runs) {
    check_model(&(struct model){"shc", "bf16", "auto", "adamw"});
    check_model(&(struct model){"rc", "fp32", "portable", "muon"});
}

/* ---- bytes and FLOPs by hand */

/* The sum over all launches of this name. */
static void check_kernel(const json_t *roofline, const char *name, double launches, double read, double written,
                         double flops) {
    const json_t *kernels = json_object_get(roofline, "kernels"), *kernel;
    double sums[4] = {0.0};
    const double expected[4] = {launches, launches * read, launches * written, launches * flops};
    static const char *const columns[4] = {"launches", "read", "written", "flops"};
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)kernels, i, kernel) {
        for (int column = 0; column < 4 && strcmp(text(kernel, "name"), name) == 0; column++) {
            sums[column] += number_in(kernel, columns[column]);
        }
    }
    for (int column = 0; column < 4; column++) {
        if (sums[column] != expected[column]) {
            fail_msg("%s: %s is %.0f, by hand %.0f", name, columns[column], sums[column], expected[column]);
        }
    }
}

/* Queries, keys and values of all tokens, and per head half of a square of scores with its diagonal, in two
 * products. */
static void check_attention(const json_t *roofline, double size) {
    const double pairs = 2 * 32.0 * 33.0 / 2.0;
    check_kernel(roofline, "attention_matrix_cores_forward", 1, 3 * TOKENS * CHANNELS * size,
                 TOKENS * CHANNELS * size + TOKENS * HEADS * 4.0, 2 * 2 * pairs * CHANNELS);
}

/* fp32 but for the operands, which are rounded from the weights. The arenas are of whole vectors. */
static void check_adamw(const json_t *roofline) {
    double elements = 0.0;
    const json_t *kernels = json_object_get(roofline, "kernels"), *kernel;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)kernels, i, kernel) {
        elements += strcmp(text(kernel, "name"), "square_sums") == 0 ? (number_in(kernel, "read")) / 4.0 : 0.0;
    }
    const double least = number_in(roofline, "parameters");
    assert_true(elements >= least && elements <= least + 64.0 * 32.0);
    check_kernel(roofline, "adamw", 1, 4 * 4 * elements + 4, 3 * 4 * elements + 2 * elements, 0.0);
}

UNIT_TEST(test_bytes_by_hand) {
    json_t *roofline = count(&(struct model){"shc", "bf16", "auto", "adamw"});
    const double values = TOKENS * CHANNELS, size = 2.0, h = STREAMS * (STREAMS + 2);
    /* behind the topmost branch; the others' is in the fused frame */
    check_kernel(roofline, "depth_mix_forward", 1, (STREAMS + 1) * values * size + TOKENS * h * 4.0,
                 STREAMS * values * size + TOKENS * STREAMS * 4.0, 0.0);
    check_kernel(roofline, "frame_output_gradient", 1, STREAMS * values * size + TOKENS * h * 4.0, values * size,
                 0.0);
    check_kernel(roofline, "gemm_nt 64x192x64", 1, (values + 3.0 * CHANNELS * CHANNELS) * size, 3 * values * size,
                 2 * 64.0 * 192.0 * 64.0);
    /* the gradient of a weight is fp32 and added to what is there */
    check_kernel(roofline, "gemm_tn 192x64x64", 1, 4 * values * size + 3.0 * CHANNELS * CHANNELS * 4,
                 3.0 * CHANNELS * CHANNELS * 4, 2 * 64.0 * 192.0 * 64.0);
    check_kernel(roofline, "cross_entropy", 1, TOKENS * (1.0 * VOCABULARY * 4 + 4),
                 TOKENS * (VOCABULARY * size + 4), 0);
    /* between steps nothing is cleared but the loss: the first micro-step writes its gradients */
    check_kernel(roofline, "buffer_zero", 1, 0.0, 4.0, 0.0);
    check_attention(roofline, size);
    check_adamw(roofline);
    json_decref(roofline);
}

/* ---- limits: what has been reached for 8 x 1024 tokens in bf16 does not become worse unseen */

/* Of a micro-step. Whoever makes a figure better lowers its limit to a little above it. */
static const struct limit {
    const char *device, *model, *residual;
    double launches, waits;
    double sublayer_bytes; /* of a hyper-connection, forward and backward */
    double seconds;
} limits[] = {
    {"a6000", "M", "shc", 382, 0, 388e6, 84.3e-3},      {"a6000", "M", "mhc", 382, 0, 389e6, 84.4e-3},
    {"a6000", "M", "rc", 378, 0, 143e6, 75.0e-3},       {"mi300x", "M", "shc", 346, 0, 408e6, 13.0e-3},
    {"a6000", "M", "gated", 633, 0, 1092e6, 110.4e-3},  {"a6000", "llama_M", "shc", 417, 0, 388e6, 82.8e-3},
    {"a6000", "llama_M", "rc", 413, 0, 143e6, 73.5e-3}, {"a6000", "M", "mudd", 718, 0, 476e6, 89.2e-3},
};

/* Bytes of the part in a micro-step. */
static double part_bytes(const json_t *roofline, const char *part) {
    const json_t *parts = json_object_get(roofline, "parts"), *row;
    double bytes = 0.0;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)parts, i, row) {
        bytes += strcmp(text(row, "part"), part) == 0 ? number_in(row, "bytes") : 0.0;
    }
    return bytes;
}

static void check_limit(const struct limit *limit, const char *what, double found, double most) {
    if (!(found > 0.0 && found <= most)) {
        fail_msg("%s with %s on %s: %s are %g, and have been %g", limit->model, limit->residual, limit->device,
                 what, found, most);
    }
}

UNIT_TEST(test_limits) {
    const char *path = scratch_path("limits.json");
    for (size_t i = 0; i < COUNT(limits); i++) {
        const struct limit *limit = &limits[i];
        char config[4096];
        snprintf(config, sizeof config, "%s/../configs/%s.conf", HC_TEST_DATA, limit->model);
        assert_done(CHILD_RUN(program, "--roofline", "--as", limit->device, "--config", config, "--residual",
                              limit->residual, "--dtype", "bf16", "--batch-size", "8",
                              "--gradient-accumulation-steps", "2", "--json", path));
        json_t *roofline = read_roofline(path);
        const json_t *micro = json_object_get(roofline, "micro_step");
        const double sublayers = SUBLAYERS * number_in(roofline, "n_layer");
        check_limit(limit, "launches", number_in(micro, "launches"), limit->launches);
        assert_true(number_in(micro, "waits") <= limit->waits);
        check_limit(limit, "bytes of a sublayer", part_bytes(roofline, "hyper-connections") / sublayers,
                    limit->sublayer_bytes);
        check_limit(limit, "seconds", number_in(micro, "seconds"), limit->seconds);
        json_decref(roofline);
    }
}

/* ---- errors */

UNIT_TEST(test_errors) {
    assert_failed(CHILD_RUN(program, SHAPE, "--roofline", "--as", "a7000"), 2,
                  "'a7000' here, but of: a6000, h100, h200, mi300x");
    const int status = CHILD_RUN(program, SHAPE, "--roofline", "--device", "pocl");
    assert_failed(status, 2, "--roofline without --as");
    assert_failed(status, 2, "name a device that is like it, of: a6000");
    assert_failed(CHILD_RUN(program, SHAPE, "--roofline-run"), 2, "give --roofline, too");
    assert_failed(CHILD_RUN(program, SHAPE, "--as", "a6000"), 2, "give --roofline, too");
    assert_failed(CHILD_RUN(program, SHAPE, "--roofline", "--as", "a6000", "--compare", "rc,shc"), 2,
                  "one model on one rank");
    assert_failed(CHILD_RUN(program, SHAPE, "--roofline", "--as", "a6000", "--json",
                            scratch_path("none/roofline.json")),
                  1, "none/roofline.json");
}

static int set_up(void **state) {
    return scratch_begin(state) || child_keep_no_programs();
}

UNIT_TEST_MAIN(set_up, scratch_end)
