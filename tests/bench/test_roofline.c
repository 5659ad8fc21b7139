/* hc_bench --roofline: the launches of a step that does not run are those that a step of that shape puts into the
 * queue, as tests/support/counting_opencl.c sees it there. */
#include "runtime/files/json_file.h"
#include "tests/support/child.h"
#include "tests/support/runs.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char program[] = HC_PROGRAMS "/hc_bench";

/* The shape of the tests' model, from which bytes are worked out by hand below. */
enum { HEADS = 2, CHANNELS = 64, TOKENS = 2 * 32, VOCABULARY = 96, STREAMS = 4, SUBLAYERS = 2 /* a layer */ };

#define SHAPE                                                                                                      \
    "--n-layer", "1", "--n-head", "2", "--n-embd", "64", "--block-size", "32", "--batch-size", "2",                \
        "--vocab-size", "96", "--n-streams", "4", "--gradient-accumulation-steps", "2"

/* What is measured: a residual variant, the type of activations, and what computes products. */
struct model {
    const char *residual, *type, *gemm;
};

/* ---- rows of the roofline, and the same of the queue: everything with one name and size, added up */

struct row {
    char name[64]; /* as at the queue */
    size_t groups, local;
    size_t count;
    double read, written;            /* of a roofline */
    double sizes, writable, changed; /* of a queue, as counting_opencl.c has them; sizes: a transfer's bytes */
};

enum { MOST_ROWS = 128 };

struct rows {
    struct row row[MOST_ROWS];
    size_t count;
};

static struct row *row_of(struct rows *rows, const char *name, size_t groups, size_t local) {
    size_t i = 0;
    while (i < rows->count && !(strcmp(rows->row[i].name, name) == 0 && rows->row[i].groups == groups &&
                                rows->row[i].local == local)) {
        i++;
    }
    assert_true(i < MOST_ROWS);
    if (i == rows->count) {
        rows->row[rows->count++] = (struct row){.groups = groups, .local = local};
        snprintf(rows->row[i].name, sizeof rows->row[i].name, "%s", name);
    }
    return &rows->row[i];
}

/* ---- the roofline's file */

static const char *text(const json_t *json, const char *name) {
    return json_string_value(json_object_get(json, name));
}

static json_t *read_roofline(const char *path) {
    json_t *json;
    assert_int_equal(json_file_read(path, 1 << 20, &json), 0);
    return json;
}

/* What the queue calls it. */
static const char *queue_name(const char *name, const char *product) {
    static const char *const names[][2] = {{"buffer_write", "write"},
                                           {"buffer_send", "send"},
                                           {"buffer_read", "read"},
                                           {"buffer_zero", "fill"},
                                           {"buffer_copy", "copy"}};
    for (size_t i = 0; i < COUNT(names); i++) {
        if (strcmp(names[i][0], name) == 0) {
            return names[i][1];
        }
    }
    return strncmp(name, "gemm_", 5) == 0 ? product : name;
}

static void add_up_roofline(const json_t *roofline, const char *product, struct rows *rows) {
    const json_t *kernels = json_object_get(roofline, "kernels"), *kernel;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)kernels, i, kernel) {
        struct row *row = row_of(rows, queue_name(text(kernel, "name"), product),
                                 (size_t)number_in(kernel, "groups"), (size_t)number_in(kernel, "group_size"));
        const double launches = number_in(kernel, "launches"), waits = number_in(kernel, "waits");
        row->count += (size_t)(launches > 0.0 ? launches : waits);
        row->read += number_in(kernel, "read");
        row->written += number_in(kernel, "written");
    }
}

/* ---- the queue's file */

static struct row parse_command(const char *line) {
    struct row row = {.groups = 0};
    if (sscanf(line, "kernel %63s %zu %zu %lf %lf %lf", row.name, &row.groups, &row.local, &row.sizes,
               &row.writable, &row.changed) != 6) {
        assert_true(sscanf(line, "%63s %lf", row.name, &row.sizes) >= 1);
    }
    return row;
}

/* The last `wanted` commands, but for the waits with which a device is closed. */
static void add_up_queue(const char *path, size_t wanted, struct rows *rows, size_t *waits) {
    char *content = scratch_read(path, &(size_t){0});
    assert_non_null(content);
    char *end = content + strlen(content);
    bool closing = true;
    *waits = 0;
    while (wanted > 0) {
        assert_true(end > content); /* else the queue saw less than the roofline has */
        end[-1] = '\0';
        char *line = strrchr(content, '\n');
        line = line ? line + 1 : content;
        end = line;
        const struct row command = parse_command(line);
        const bool waiting = strcmp(command.name, "finish") == 0;
        if (waiting && closing) {
            continue;
        }
        closing = false;
        struct row *row = row_of(rows, command.name, command.groups, command.local);
        row->count++;
        row->sizes += command.sizes;
        row->writable += command.writable;
        row->changed += command.changed;
        *waits += waiting || strcmp(command.name, "write") == 0 || strcmp(command.name, "read") == 0;
        wanted--;
    }
    free(content);
}

/* ---- one held to the other */

/* How often a kernel is said to read what it reads. */
static double passes(const char *name) {
    return strcmp(name, "cross_entropy") == 0 ? 2.0 : 1.0;
}

static void check_transfer(const struct row *counted, const struct row *seen) {
    const bool reads = strcmp(counted->name, "read") == 0 || strcmp(counted->name, "copy") == 0;
    const bool writes = strcmp(counted->name, "read") != 0;
    assert_true(counted->read == (reads ? seen->sizes : 0.0));
    assert_true(counted->written == (writes ? seen->sizes : 0.0));
}

static void check_row(const struct row *counted, const struct row *seen) {
    if (counted->count != seen->count) {
        fail_msg("%s, %zu groups of %zu: the roofline has %zu, the queue got %zu", counted->name, counted->groups,
                 counted->local, counted->count, seen->count);
    }
    if (!counted->groups) {
        check_transfer(counted, seen);
        return;
    }
    const bool possible = counted->read > 0.0 && counted->read <= passes(counted->name) * seen->sizes &&
                          counted->written > 0.0 && counted->written <= seen->writable &&
                          counted->written >= seen->changed;
    if (!possible) {
        fail_msg(
            "%s, %zu groups of %zu: the roofline has %.0f bytes read and %.0f written; its arguments have %.0f, of "
            "which it may write to %.0f, and %.0f changed",
            counted->name, counted->groups, counted->local, counted->read, counted->written, seen->sizes,
            seen->writable, seen->changed);
    }
}

static double count_of(const json_t *roofline, const char *what) {
    return number_in(json_object_get(roofline, "micro_step"), what) +
           number_in(json_object_get(roofline, "optimiser_step"), what);
}

/* As many commands as the roofline has, and each of them in both. */
static void check_queue(const json_t *roofline, const char *path, const char *product) {
    struct rows counted = {.count = 0}, seen = {.count = 0};
    size_t commands = 0, waits;
    add_up_roofline(roofline, product, &counted);
    for (size_t i = 0; i < counted.count; i++) {
        commands += counted.row[i].count;
    }
    add_up_queue(path, commands, &seen, &waits);
    for (size_t i = 0; i < counted.count; i++) {
        check_row(&counted.row[i], row_of(&seen, counted.row[i].name, counted.row[i].groups, counted.row[i].local));
    }
    assert_int_equal(seen.count, counted.count);
    assert_int_equal(waits, (size_t)count_of(roofline, "waits"));
    assert_true(count_of(roofline, "launches") <= (double)commands);
}

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
                          "--dtype", model->type, "--gemm", model->gemm, "--json", path));
    return read_roofline(path);
}

static json_t *count_and_run(const struct model *model, const char *log) {
    const char *path = scratch_path("ran.json");
    setenv("LD_PRELOAD", HC_PRELOADED, 1);
    setenv("HC_COUNT", log, 1);
    const int status =
        CHILD_RUN(program, SHAPE, "--roofline", "--roofline-run", "--device", "pocl", "--as", "emulation",
                  "--residual", model->residual, "--dtype", model->type, "--gemm", model->gemm, "--json", path);
    unsetenv("LD_PRELOAD");
    unsetenv("HC_COUNT");
    assert_done(status);
    return read_roofline(path);
}

static void check_model(const struct model *model, const char *product) {
    const char *log = scratch_path("queue");
    json_t *dry = count(model), *ran = count_and_run(model, log);
    check_same(dry, ran);
    check_queue(dry, log, product);
    json_decref(dry);
    json_decref(ran);
}

UNIT_TEST(test_shc_is_what_the_queue_gets) {
    check_model(&(struct model){"shc", "bf16", "auto"}, "mma_gemm");
}

UNIT_TEST(test_fp32_is_what_the_queue_gets) {
    check_model(&(struct model){"rc", "fp32", "portable"}, "gemm_blocks");
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
    json_t *roofline = count(&(struct model){"shc", "bf16", "auto"});
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

/* ---- limits: what has been reached for model M, 8 x 1024 tokens in bf16, does not become worse unseen */

/* Of a micro-step. Whoever makes a figure better lowers its limit to a little above it. */
static const struct limit {
    const char *device, *residual;
    double launches, waits;
    double sublayer_bytes; /* of a hyper-connection, forward and backward */
    double seconds;
} limits[] = {
    {"a6000", "shc", 405, 0, 388e6, 84.5e-3},
    {"a6000", "mhc", 405, 0, 389e6, 84.6e-3},
    {"a6000", "rc", 378, 0, 143e6, 75.0e-3},
    {"mi300x", "shc", 405, 0, 408e6, 12.7e-3},
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
        fail_msg("%s on %s: %s are %g, and have been %g", limit->residual, limit->device, what, found, most);
    }
}

UNIT_TEST(test_limits) {
    const char *path = scratch_path("limits.json");
    for (size_t i = 0; i < COUNT(limits); i++) {
        const struct limit *limit = &limits[i];
        assert_done(CHILD_RUN(program, "--roofline", "--as", limit->device, "--config",
                              HC_TEST_DATA "/../configs/M.conf", "--residual", limit->residual, "--dtype", "bf16",
                              "--batch-size", "8", "--gradient-accumulation-steps", "2", "--json", path));
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
    assert_failed(CHILD_RUN(program, SHAPE, "--roofline", "--device", "pocl"), 2, "--roofline without --as");
    assert_failed(CHILD_RUN(program, SHAPE, "--roofline", "--device", "pocl"), 2,
                  "name a device that is like it, of: a6000");
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
