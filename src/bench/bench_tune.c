#include "runtime/gemm/gemm.h"
#include "runtime/gemm/gemm_parameters.h"
#include "runtime/gemm/gemm_tune.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/message.h"
#include "src/bench/bench.h"
#include <stdlib.h>

#define ROWS_MOST     1024         /* more tokens take longer to measure and say no more */
#define ROWS_MOST_GPU 8192         /* which fewer would not keep busy */
#define TYPE          ELEMENT_BF16 /* on matrix units; fp16 runs at the same rate */

static int check(const struct bench_settings *settings, const struct ranks *ranks) {
    const int gemm = settings->train.device.gemm;
    char word[16];
    struct model_config config = settings->train.model;
    config.vocab_size = config.vocab_size == 0 ? 1 : config.vocab_size;
    if (ranks->count > 1) {
        return error_set("--tune measures one device: start one process");
    }
    if (gemm != GEMM_AUTO && gemm != GEMM_CLBLAST && gemm != GEMM_MMA) {
        return error_set("--tune is about CLBlast, or with --gemm mma about matrix units: leave --gemm %s out",
                         options_word(GEMM_WORDS, gemm, word, sizeof word));
    }
    return model_config_check(&config);
}

static int open_device(const struct bench_settings *settings, struct compute **compute) {
    const bool units = settings->train.device.gemm == GEMM_MMA;
    const struct compute_options options = {.device = settings->train.device.device,
                                            .gemm = units ? "mma" : "clblast",
                                            .operands = units ? TYPE : ELEMENT_FP32,
                                            .untuned = true};
    if (gemm_compute_open(compute, &options)) {
        return -1;
    }
    return (*compute)->cache_dir
               ? 0
               : error_set("there is no folder to keep parameters in: set HOME, or XDG_CACHE_HOME to a full path");
}

static void print_parameters(const struct tuned_kind *kind, const size_t *values) {
    for (int i = 0; i < GEMM_PARAMETERS; i++) {
        message_print(stdout, "%s%s %zu", i ? ", " : "parameters             ", kind->numbers[i].name, values[i]);
    }
    message_print(stdout, "\nproducts below         %zu x %zu x %zu go through CLBlast's direct kernel\n",
                  values[GEMM_DIRECT_BELOW], values[GEMM_DIRECT_BELOW], values[GEMM_DIRECT_BELOW]);
}

static void print_tiles(const struct mma_tiles *tiles) {
    message_print(stdout, "tiles                  %zu x %zu x %zu, %zu x %zu per warp, %zu stages\n",
                  tiles->block_m, tiles->block_n, tiles->block_k, tiles->warp_m, tiles->warp_n, tiles->stages);
}

static void print_result(const struct tuned_target *target, const struct gemm_tune_result *result) {
    message_print(stdout, "%-22s %.4g GFLOP/s\n", target->unit ? "default tiles" : "CLBlast's own choice",
                  1e-9 * result->stock);
    if (!result->improved) {
        message_print(stdout, "none of %d candidates is faster: nothing kept\n", result->tried);
        return;
    }
    message_print(stdout,
                  "tuned                  %.4g GFLOP/s, %.2f times that (best of %d candidates, %d refused)\n",
                  1e-9 * result->rate, result->rate / result->stock, result->tried, result->refused);
    if (target->unit) {
        print_tiles(&result->best.tiles);
    } else {
        print_parameters(target->kind, result->best.at);
    }
}

/* For the product of the model's widest layer. */
static int tune_and_keep(const struct bench_settings *settings, struct compute *compute,
                         const struct tuned_target *target, const char *path) {
    const struct model_config *model = &settings->train.model;
    const int64_t tokens = settings->train.batch_size * model->block_size;
    const int64_t most = compute->device.is_gpu ? ROWS_MOST_GPU : ROWS_MOST;
    const size_t m = (size_t)(tokens < most ? tokens : most), k = (size_t)model->n_embd, n = 4 * k;
    union tuned_values known;
    struct gemm_tune_result result;
    bool found = false;
    message_print(stdout, "device                 %s (%s)\n", compute->device.name, compute->device.platform_name);
    message_print(stdout, "product                %zu x %zu x %zu, in the three forms of a layer\n", m, n, k);
    if (target->unit) {
        message_print(stdout, "matrix unit            %s\n", target->unit->name);
    }
    fflush(stdout);
    /* a file that cannot be used is about to be replaced */
    const bool usable = tuned_read(target, path, &known, &found) == 0 && found;
    if (gemm_tune(compute, m, n, k, 60.0 * (double)settings->tune_minutes, usable ? &known : NULL, &result)) {
        return -1;
    }
    print_result(target, &result);
    if (!result.improved) {
        return 0;
    }
    if (tuned_write(target, path, &result.best)) {
        return -1;
    }
    message_print(stdout, "kept in                %s; runs with --gemm %s use it from now on\n", path,
                  target->kind->backend);
    return 0;
}

static int tune(const struct bench_settings *settings, struct compute *compute) {
    struct tuned_target target;
    if (gemm_tune_target(compute, &target)) {
        return -1;
    }
    char *path = tuned_path(&target, compute->cache_dir);
    const int status = path ? tune_and_keep(settings, compute, &target, path) : -1;
    free(path);
    return status;
}

enum bench_status bench_tune_run(const struct bench_settings *settings, struct ranks *ranks) {
    struct compute *compute = NULL;
    if (ranks_agree(ranks, check(settings, ranks))) {
        return BENCH_WRONG;
    }
    interrupt_install();
    const int status = open_device(settings, &compute) || tune(settings, compute);
    compute_close(compute);
    return status ? BENCH_FAILED : BENCH_DONE;
}
