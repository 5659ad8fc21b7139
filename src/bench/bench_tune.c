#include "src/bench/bench_tune.h"
#include "runtime/gemm/gemm.h"
#include "runtime/gemm/gemm_mma.h"
#include "runtime/gemm/gemm_tune.h"
#include "runtime/gemm/mma_tune.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include <stdlib.h>
#include <string.h>

#define ROWS_MOST 1024         /* more tokens take longer to measure and say no more */
#define TYPE      ELEMENT_BF16 /* on matrix units; fp16 runs at the same rate */

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

static bool is_about_units(const struct bench_settings *settings) {
    return settings->train.device.gemm == GEMM_MMA;
}

static int open_device(const struct bench_settings *settings, struct compute **compute) {
    const bool units = is_about_units(settings);
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

static void print_result(const struct gemm_tune_result *result) {
    printf("CLBlast's own choice   %.4g GFLOP/s\n", 1e-9 * result->stock);
    if (!result->improved) {
        printf("none of %d candidates is faster: nothing kept\n", result->tried);
        return;
    }
    printf("tuned                  %.4g GFLOP/s, %.2f times that (best of %d candidates, %d refused)\n",
           1e-9 * result->rate, result->rate / result->stock, result->tried, result->refused);
    for (int i = 0; i < GEMM_PARAMETERS; i++) {
        printf("%s%s %zu", i ? ", " : "parameters             ", gemm_parameter_names[i], result->best.value[i]);
    }
    printf("\nproducts below         %zu x %zu x %zu go through CLBlast's direct kernel\n",
           result->best.direct_below, result->best.direct_below, result->best.direct_below);
}

/* The product to measure. */
struct product {
    size_t m, n, k;
};

static struct product product_of(const struct bench_settings *settings) {
    const struct model_config *model = &settings->train.model;
    const int64_t tokens = settings->train.batch_size * model->block_size;
    const size_t k = (size_t)model->n_embd;
    return (struct product){tokens < ROWS_MOST ? (size_t)tokens : ROWS_MOST, 4 * k, k};
}

static int tune_clblast(double seconds, struct compute *compute, struct product product, const char *path) {
    struct gemm_parameters known;
    struct gemm_tune_result result;
    bool found = false;
    /* a file that cannot be used is about to be replaced */
    const bool usable = gemm_parameters_read(path, &compute->device, &known, &found) == 0 && found;
    if (gemm_tune(compute, product.m, product.n, product.k, seconds, usable ? &known : NULL, &result)) {
        return -1;
    }
    print_result(&result);
    if (!result.improved) {
        return 0;
    }
    if (gemm_parameters_write(path, &compute->device, &result.best)) {
        return -1;
    }
    printf("kept in                %s; runs with --gemm clblast use it from now on\n", path);
    return 0;
}

static void print_tiles(const struct mma_tune_result *result) {
    const struct mma_tiles *best = &result->best;
    printf("default tiles          %.4g GFLOP/s\n", 1e-9 * result->stock);
    if (!result->improved) {
        printf("none of %d candidates is faster: nothing kept\n", result->tried);
        return;
    }
    printf("tuned                  %.4g GFLOP/s, %.2f times that (best of %d candidates, %d refused)\n",
           1e-9 * result->rate, result->rate / result->stock, result->tried, result->refused);
    printf("tiles                  %u x %u x %u, %u x %u per warp, %u stages\n", best->block_m, best->block_n,
           best->block_k, best->warp_m, best->warp_n, best->stages);
}

static int tune_units(double seconds, struct compute *compute, struct product product, const char *path) {
    const struct mma *mma = mma_of(compute);
    struct mma_tiles known;
    struct mma_tune_result result;
    bool found = false;
    const bool usable = mma_tiles_read(path, &compute->device, &mma->unit, &known, &found) == 0 && found;
    printf("matrix unit            %s\n", mma->unit.name);
    fflush(stdout);
    if (mma_tune(compute, TYPE, product.m, product.n, product.k, seconds, usable ? &known : NULL, &result)) {
        return -1;
    }
    print_tiles(&result);
    if (!result.improved) {
        return 0;
    }
    if (mma_tiles_write(path, &compute->device, &result.best)) {
        return -1;
    }
    printf("kept in                %s; runs with --gemm mma use it from now on\n", path);
    return 0;
}

static int tune(const struct bench_settings *settings, struct compute *compute) {
    const struct product product = product_of(settings);
    const double seconds = 60.0 * (double)settings->tune_minutes;
    const bool units = is_about_units(settings);
    char *path = units ? mma_tiles_path(compute->cache_dir, &compute->device, &mma_of(compute)->unit)
                       : gemm_parameters_path(compute->cache_dir, &compute->device);
    if (!path) {
        return -1;
    }
    printf("device                 %s (%s)\n", compute->device.name, compute->device.platform_name);
    printf("product                %zu x %zu x %zu, in the three forms of a layer\n", product.m, product.n,
           product.k);
    fflush(stdout);
    const int status =
        units ? tune_units(seconds, compute, product, path) : tune_clblast(seconds, compute, product, path);
    free(path);
    return status;
}

enum bench_status bench_tune_run(const struct bench_settings *settings, struct ranks *ranks) {
    struct compute *compute = NULL;
    if (ranks_agree(ranks, check(settings, ranks))) {
        return BENCH_WRONG;
    }
    interrupt_install();
    int status = open_device(settings, &compute);
    if (status == 0) {
        status = tune(settings, compute);
    }
    compute_close(compute);
    return status ? BENCH_FAILED : BENCH_DONE;
}
