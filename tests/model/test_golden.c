/* hc_probe's way through the model against results of an independent implementation in double precision
 * (tests/golden): one pass, and some optimizer steps, for every variant, with both GEMM backends and with the
 * kernels as GPUs run them (several work-items for a row).
 *
 *   test_golden [cpus [PATTERN]...]   on PoCL, as CPUs run them
 *   test_golden lanes [PATTERN]...    on PoCL, as GPUs run them
 *   test_golden DEVICE [PATTERN]...   on another device: with the backends that it chooses for itself
 *
 * A PATTERN is one of a shell, for names of tests: tests that match one are run, or all if none is given. */
#include "runtime/files/files.h"
#include "runtime/gemm/gemm.h"
#include "src/checkpoint/config_file.h"
#include "src/evaluation/probe.h"
#include "src/settings/settings.h"
#include "tests/support/lanes.h"
#include "tests/support/rounding.h"
#include "tests/support/scratch.h"
#include "tests/support/tensors.h"
#include "tests/support/test.h"
#include <dirent.h>
#include <fnmatch.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What single precision can keep. */
static const double LOSS_TOLERANCE = 1e-5;       /* relative */
static const double ACTIVATION_TOLERANCE = 1e-5; /* of the largest value of the tensor, at least of 1 */
static const double GRADIENT_TOLERANCE = 1e-4;   /* relative L2 norm of a tensor */
static const double STEP_TOLERANCE = 1e-4;       /* relative, of losses and norms in training */
static const double WEIGHT_TOLERANCE = 1e-3;     /* relative L2 norm of the change from the start */

/* Some gradients are exactly zero: all streams are equal before the first sublayer, so its H_res changes nothing
 * (its rows sum to one, or it moves equal streams around), and in single precision rounding is left of sums of
 * numbers as large as other gradients. So every tensor may also be off by this much of the norm of the whole
 * gradient. */
static const double GRADIENT_FLOOR = 1e-8;

enum { MOST_CASES = 512 };

struct setting {
    const char *name, *gemm;
    unsigned lanes;
    enum element_type operands;
    struct compute *compute; /* opened when first needed, closed at the end */
};

static const char *device = "pocl";
static struct setting cblas = {"cblas", .gemm = "cblas"}, clblast = {"clblast", .gemm = "clblast"},
                      eight_lanes = {"eight_lanes", .gemm = "clblast", .lanes = 8}, own = {"own", .gemm = "auto"},
                      own_bf16 = {"own_bf16", .gemm = "auto", .operands = ELEMENT_BF16},
                      own_fp16 = {"own_fp16", .gemm = "auto", .operands = ELEMENT_FP16};

struct golden_case {
    const char *folder;
    struct setting *setting;
    const char *dtype; /* of passes in 16 bits */
};

/* The largest errors so far, as parts of what is allowed: printed at the end. */
static struct {
    double loss, logits, h, gradient, rounded, step_loss, step_norm, weights;
} worst;

static struct compute *compute_of(struct setting *setting) {
    if (!setting->compute) {
        const struct compute_options options = {.device = device,
                                                .gemm = setting->gemm,
                                                .operands = setting->operands,
                                                .cache_dir = ""};
        require(gemm_compute_open(&setting->compute, &options));
        setting->compute->lanes = setting->lanes ? setting->lanes : setting->compute->lanes;
    }
    return setting->compute;
}

static const char *golden_path(const struct golden_case *golden, const char *name) {
    static char paths[8][512];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/golden/%s/%s", HC_TEST_DATA, golden->folder, name);
    return path;
}

static void judge(const char *name, double error, double allowed, double *so_far) {
    *so_far = fmax(*so_far, error / allowed);
    if (!(error <= allowed)) {
        fail_msg("%s: error %.3g, allowed %.3g", name, error, allowed);
    }
}

/* ---- one pass */

static double gradient_norm(const struct safetensors *expected) {
    double sum = 0.0;
    for (size_t i = 0; i < expected->count; i++) {
        const struct tensor_info *info = &expected->infos[i];
        if (strncmp(info->name, "grad.", 5) == 0) {
            FREED float *values = tensors_read(expected, info);
            const double norm = tensors_norm(values, info->elements);
            sum += norm * norm;
        }
    }
    return sqrt(sum);
}

/* What rounding on the way adds to the tolerance of activations; 0 in fp32. */
static void judge_tensor(const char *name, const float *actual, const float *expected, size_t count,
                         double whole_norm, double rounding) {
    if (strcmp(name, "loss") == 0 && rounding == 0.0) {
        judge(name, fabs((double)*actual - (double)*expected), LOSS_TOLERANCE * fabs((double)*expected),
              &worst.loss);
    } else if (strncmp(name, "grad.", 5) == 0) {
        judge(name, tensors_distance(actual, expected, count),
              GRADIENT_TOLERANCE * tensors_norm(expected, count) + GRADIENT_FLOOR * whole_norm, &worst.gradient);
    } else {
        judge(name, tensors_largest_difference(actual, expected, count),
              (ACTIVATION_TOLERANCE + rounding) * fmax(1.0, tensors_largest(expected, count)),
              rounding > 0.0                ? &worst.rounded
              : strcmp(name, "logits") == 0 ? &worst.logits
                                            : &worst.h);
    }
}

/* In 16 bits, as test_model.c derives it: twice the root of the roundings on the way, 8 a sublayer and 4 outside,
 * units of roundoff. With qk_norm queries and keys are rounded once more, and a square doubles a number's error. Of
 * fractions, H is computed from few channels, whose errors do not average. */
static double rounding_of(enum element_type type, const struct golden_case *golden) {
    struct model_config config;
    require(config_file_read(golden_path(golden, "."), &config));
    const double more = (config.qk_norm != QK_NORM_NONE ? 1.0 : 0.0) + (config.mlp == MLP_RELU2 ? 1.0 : 0.0) +
                        (config.residual->has_fractions ? 6.0 : 0.0);
    return 2.0 * sqrt((8.0 + more) * 2.0 * (double)config.n_layer + 4.0) * rounding_unit(type);
}

/* In fp32 all tensors, in 16 bits loss, logits and H. */
static void pass_agrees(void **state) {
    const struct golden_case *golden = *state;
    const enum element_type type = !golden->dtype                       ? ELEMENT_FP32
                                   : strcmp(golden->dtype, "bf16") == 0 ? ELEMENT_BF16
                                                                        : ELEMENT_FP16;
    const char *adapter = golden_path(golden, "adapter");
    struct probe_settings settings = {
        .checkpoint = (char *)(uintptr_t)golden_path(golden, "."),
        .adapter = files_exist(adapter) ? (char *)(uintptr_t)adapter : NULL,
        .batch = (char *)(uintptr_t)golden_path(golden, "batch.safetensors"),
        .out = (char *)(uintptr_t)scratch_path("probe.safetensors"),
        .logits = true,
        .grad = type == ELEMENT_FP32,
        .dtype = (int)type,
    };
    require(probe_run(compute_of(golden->setting), &settings));
    struct safetensors *actual = tensors_open(settings.out, "");
    struct safetensors *expected = tensors_open(golden_path(golden, "expected.safetensors"), "");
    const double whole_norm = gradient_norm(expected);
    const double rounding = type == ELEMENT_FP32 ? 0.0 : rounding_of(type, golden);
    assert_true(type != ELEMENT_FP32 || actual->count == expected->count);
    for (size_t i = 0; i < actual->count; i++) {
        const struct tensor_info *info = &actual->infos[i];
        const struct tensor_info *wanted = tensors_need(expected, "", info->name);
        assert_int_equal(info->rank, wanted->rank);
        assert_memory_equal(info->shape, wanted->shape, wanted->rank * sizeof *wanted->shape);
        FREED float *values = tensors_read(actual, info), *right = tensors_read(expected, wanted);
        judge_tensor(info->name, values, right, info->elements, whole_norm, rounding);
    }
    safetensors_close(actual);
    safetensors_close(expected);
}

/* ---- optimizer steps */

/* Sets options of the optimizer by what the case has of the same names: words, numbers, switches, or a list. */
static void set_options(struct option_table *table, json_t *train) {
    const char *name;
    json_t *value;
    require(options_set_defaults(table->rows, table->count));
    json_object_foreach(train, name, value) {
        char *text = json_dumps(value, JSON_ENCODE_ANY), *inside = text + strspn(text, "[\"");
        size_t row = 0;
        inside[strcspn(inside, "]\"")] = '\0';
        while (row < table->count && (!table->rows[row].name || strcmp(table->rows[row].name, name) != 0)) {
            row++;
        }
        assert_true(row < table->count);
        require(option_set(&table->rows[row], inside, name));
        free(text);
    }
}

static void compare_series(const json_t *actual, const json_t *expected, const char *name, double *so_far) {
    const json_t *a = json_object_get(actual, name), *e = json_object_get(expected, name);
    assert_true(json_array_size(e) > 0);
    assert_int_equal(json_array_size(a), json_array_size(e));
    for (size_t i = 0; i < json_array_size(e); i++) {
        const double wanted = json_number_value(json_array_get(e, i));
        judge(name, fabs(json_number_value(json_array_get(a, i)) - wanted), STEP_TOLERANCE * wanted, so_far);
    }
}

/* All weights together: tensors without a gradient of their own (GRADIENT_FLOOR) move by rounding alone. */
static void compare_weights(const char *folder, const struct golden_case *golden) {
    struct safetensors *actual = tensors_open(folder, "model.safetensors");
    struct safetensors *start = tensors_open(golden_path(golden, "train_init.safetensors"), "");
    struct safetensors *end = tensors_open(golden_path(golden, "train_final.safetensors"), "");
    double error = 0.0, change = 0.0;
    assert_int_equal(actual->count, end->count);
    for (size_t i = 0; i < end->count; i++) {
        const struct tensor_info *info = &end->infos[i];
        FREED float *a = tensors_read(actual, tensors_need(actual, "", info->name)), *b = tensors_read(end, info);
        FREED float *from = tensors_read(start, tensors_need(start, "", info->name));
        error += pow(tensors_distance(a, b, info->elements), 2.0);
        change += pow(tensors_distance(from, b, info->elements), 2.0);
    }
    judge("weights", sqrt(error), WEIGHT_TOLERANCE * sqrt(change), &worst.weights);
    safetensors_close(actual);
    safetensors_close(start);
    safetensors_close(end);
}

/* A checkpoint folder with the initial weights. */
static const char *copy_start(const struct golden_case *golden) {
    const char *folder = scratch_path("start");
    size_t bytes;
    require(files_make_folder(folder));
    char *config = scratch_text(golden_path(golden, "config.json"), &bytes);
    scratch_write("start/config.json", config, bytes);
    char *weights = scratch_text(golden_path(golden, "train_init.safetensors"), &bytes);
    scratch_write("start/model.safetensors", weights, bytes);
    return folder;
}

static void training_agrees(void **state) {
    const struct golden_case *golden = *state;
    json_t *expected = json_load_file(golden_path(golden, "train_expected.json"), 0, NULL);
    struct probe_settings settings = {
        .checkpoint = (char *)(uintptr_t)copy_start(golden),
        .batch = (char *)(uintptr_t)golden_path(golden, "train_batches.safetensors"),
        .out = (char *)(uintptr_t)scratch_path("trained"),
        .train = true,
    };
    struct option_table table = {.count = 0};
    settings_optimizer_options(&settings.optimizer, "", &table);
    set_options(&table, json_object_get(expected, "train"));
    require(probe_run(compute_of(golden->setting), &settings));
    json_t *actual = json_load_file(scratch_path("trained/losses.json"), 0, NULL);
    compare_series(actual, expected, "losses", &worst.step_loss);
    compare_series(actual, expected, "grad_norms", &worst.step_norm);
    json_decref(actual);
    json_decref(expected);
    compare_weights(settings.out, golden);
    options_free(table.rows, table.count);
}

/* ---- all cases */

static int end(void **state) {
    struct setting *const settings[] = {&cblas, &clblast, &eight_lanes, &own, &own_bf16, &own_fp16};
    for (size_t i = 0; i < COUNT(settings); i++) {
        assert_true(!settings[i]->compute || settings[i]->compute->programs_refused == 0);
        compute_close(settings[i]->compute);
    }
    print_message("largest errors, as parts of the tolerances: loss %.2g, logits %.2g, h %.2g, gradients %.2g; in "
                  "16 bits %.2g; training losses %.2g, norms %.2g, weights %.2g\n",
                  worst.loss, worst.logits, worst.h, worst.gradient, worst.rounded, worst.step_loss,
                  worst.step_norm, worst.weights);
    return scratch_end(state);
}

/* What cmocka runs. */
static struct {
    struct CMUnitTest tests[MOST_CASES];
    struct golden_case cases[MOST_CASES];
    char names[MOST_CASES][96];
    size_t count;
} all;

/* The tests to run, up to a NULL; none: all. */
static char *const *patterns;

static bool is_wanted(const char *name) {
    bool wanted = !*patterns;
    for (char *const *pattern = patterns; *pattern && !wanted; pattern++) {
        wanted = fnmatch(*pattern, name, 0) == 0;
    }
    return wanted;
}

static void add(CMUnitTestFunction test, const char *what, const char *folder, struct setting *setting,
                const char *dtype) {
    if (all.count == MOST_CASES) {
        fprintf(stderr, "more than %d golden cases\n", MOST_CASES);
        exit(2);
    }
    const size_t i = all.count;
    all.cases[i] = (struct golden_case){folder, setting, dtype};
    snprintf(all.names[i], sizeof *all.names, "%s_%s_%s", folder, what, dtype ? dtype : setting->name);
    all.tests[i] = (struct CMUnitTest){.name = all.names[i], .test_func = test, .initial_state = &all.cases[i]};
    all.count += is_wanted(all.names[i]);
}

static void add_fp32(const char *folder, struct setting *setting) {
    if (files_exist(golden_path(&(struct golden_case){.folder = folder}, "expected.safetensors"))) {
        add(pass_agrees, "pass_agrees_with", folder, setting, NULL);
    }
    if (files_exist(golden_path(&(struct golden_case){.folder = folder}, "train_expected.json"))) {
        add(training_agrees, "training_agrees_with", folder, setting, NULL);
    }
}

static void add_16_bits(const char *folder, struct setting *bf16, struct setting *fp16) {
    if (!files_exist(golden_path(&(struct golden_case){.folder = folder}, "expected.safetensors"))) {
        return;
    }
    add(pass_agrees, "pass_agrees_in", folder, bf16, "bf16");
    add(pass_agrees, "pass_agrees_in", folder, fp16, "fp16");
}

enum way { ON_CPU, ON_LANES, ON_DEVICE };

static void add_folder(const char *folder, enum way way) {
    if (way == ON_LANES) {
        add_fp32(folder, &eight_lanes);
    } else if (way == ON_DEVICE) {
        add_fp32(folder, &own);
        add_16_bits(folder, &own_bf16, &own_fp16);
    } else {
        add_fp32(folder, &cblas);
        add_fp32(folder, &clblast);
        add_16_bits(folder, &cblas, &cblas);
    }
}

static int is_case(const struct dirent *entry) {
    return entry->d_name[0] != '.' && !strchr(entry->d_name, '.'); /* README.md */
}

/* The residual variant of a case. */
static const struct residual_variant *variant_of(const char *folder) {
    struct model_config config;
    const struct golden_case golden = {.folder = folder};
    if (config_file_read(golden_path(&golden, "."), &config)) {
        fprintf(stderr, "%s: %s\n", folder, error_text());
        exit(2);
    }
    return config.residual;
}

/* A case is a folder of tests/golden, and every variant has one. */
static void add_folders(enum way way) {
    struct dirent **entries;
    const int count = scandir(HC_TEST_DATA "/golden", &entries, is_case, alphasort);
    if (count <= 0) {
        fprintf(stderr, "no golden cases in " HC_TEST_DATA "/golden\n");
        exit(2);
    }
    bool has_case[64] = {false}; /* by the variant's number */
    for (int i = 0; i < count; i++) {
        has_case[residual_number(variant_of(entries[i]->d_name))] = true;
        add_folder(strdup(entries[i]->d_name), way); /* kept to the end */
        free(entries[i]);
    }
    free(entries);
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        if (!has_case[i]) {
            fprintf(stderr, "%s has no golden case in " HC_TEST_DATA "/golden\n", variant->name);
            exit(2);
        }
    }
}

int main(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : "cpus";
    const enum way way = strcmp(word, "cpus") == 0 ? ON_CPU : strcmp(word, "lanes") == 0 ? ON_LANES : ON_DEVICE;
    device_prepare_environment();
    patterns = argv + (argc > 2 ? 2 : argc);
    if (way == ON_LANES && !lanes_can_be_tried_on_pocl()) {
        return LANES_SKIPPED;
    }
    if (way == ON_DEVICE) {
        device = word;
    }
    add_folders(way);
    if (all.count == 0) {
        fprintf(stderr, "no golden case has such a name\n");
        return 2;
    }
    return _cmocka_run_group_tests("golden", all.tests, all.count, scratch_begin, end);
}
