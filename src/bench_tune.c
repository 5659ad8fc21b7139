#include "src/bench_tune.h"
#include "runtime/error.h"
#include "runtime/gemm_tune.h"
#include "runtime/interrupt.h"
#include <stdlib.h>
#include <string.h>

#define ROWS_MOST 1024 /* more tokens take longer to measure and say no more */

static int check(const struct bench_settings *settings, const struct ranks *ranks) {
    const char *gemm = settings->train.device.gemm;
    struct model_config config = settings->train.model;
    config.vocab_size = config.vocab_size == 0 ? 1 : config.vocab_size;
    if (ranks->count > 1) {
        return error_set("--tune measures one device: start one process");
    }
    if (strcmp(gemm, "auto") != 0 && strcmp(gemm, "clblast") != 0) {
        return error_set("--tune is about CLBlast: leave --gemm %s out", gemm);
    }
    return model_config_check(&config);
}

static int open_device(const struct device_settings *settings, struct compute **compute) {
    const struct compute_options options = {.device = settings->device, .gemm = "clblast", .untuned = true};
    if (compute_open(compute, &options)) {
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

static int tune(const struct bench_settings *settings, struct compute *compute, const char *path) {
    const struct model_config *model = &settings->train.model;
    const int64_t tokens = settings->train.batch_size * model->block_size;
    const size_t m = tokens < ROWS_MOST ? (size_t)tokens : ROWS_MOST;
    const size_t k = (size_t)model->n_embd, n = 4 * k;
    struct gemm_parameters known;
    struct gemm_tune_result result;
    bool found = false;
    printf("device                 %s (%s)\n", compute->device.name, compute->device.platform_name);
    printf("product                %zu x %zu x %zu, in the three forms of a layer\n", m, n, k);
    fflush(stdout);
    /* a file that cannot be used is about to be replaced */
    const bool usable = gemm_parameters_read(path, &compute->device, &known, &found) == 0 && found;
    if (gemm_tune(compute, m, n, k, 60.0 * (double)settings->tune_minutes, usable ? &known : NULL, &result)) {
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

enum bench_status bench_tune_run(const struct bench_settings *settings, struct ranks *ranks) {
    struct compute *compute = NULL;
    char *path = NULL;
    if (ranks_agree(ranks, check(settings, ranks))) {
        return BENCH_WRONG;
    }
    interrupt_install();
    int status = open_device(&settings->train.device, &compute);
    if (status == 0) {
        path = gemm_parameters_path(compute->cache_dir, &compute->device);
        status = path ? tune(settings, compute, path) : -1;
    }
    free(path);
    compute_close(compute);
    return status ? BENCH_FAILED : BENCH_DONE;
}
