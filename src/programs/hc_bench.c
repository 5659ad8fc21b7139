/* hc_bench: measures training steps. */
#include "runtime/device/device.h"
#include "runtime/system/error.h"
#include "src/bench/bench_compare.h"
#include "src/bench/bench_tune.h"
#include "src/bench/bench_turns.h"
#include "src/training/same_job.h"
#include "src/training/train_options.h"

static const struct program_info program = {
    .name = "hc_bench",
    .summary =
        "Measures training steps of a model on random tokens: time, tokens/s, memory; with --profile each kernel, "
        "with --compare several residual variants side by side, with --ranks how a step divides into computation, "
        "communication that computation does not hide, and the rest; --tune looks for the parameters of CLBlast's "
        "products, or with --gemm mma for the tiles of matrix units, that suit the device. Takes all options of "
        "hc_train, so that its "
        "config files can be used; under mpirun all ranks measure together.",
    .usage = "[--config FILE]... [OPTIONS]",
    .examples = "hc_bench --config configs/small.conf --residual mhc --device pocl --profile\n"
                "hc_bench --config configs/small.conf --compare rc,identity,hc,mhc,mhc_lite,shc\n"
                "hc_bench --config configs/small.conf --compare rc,shc:2,shc:4,shc:8 --json streams.json\n"
                "hc_bench --tune --config configs/M.conf --device pocl\n"
                "hc_bench --tune --gemm mma --config configs/M.conf --device gpu\n"
                "mpirun -np 2 hc_bench --ranks --config configs/M.conf --batch-size 1 --device pocl\n"
                "mpirun -np 8 hc_bench --ranks --config configs/M.conf --device gpu --json bench-8.json",
};

static size_t bench_options(struct bench_settings *settings, struct option_spec *specs, size_t room) {
    const struct option_spec own[] = {
        {.type = OPTION_HEADING, .help = "Measuring"},
        {.type = OPTION_INT,
         .name = "steps",
         .target = &settings->steps,
         .default_value = "10",
         .minimum = 1,
         .maximum = 1e6,
         .help = "optimiser steps that are measured"},
        {.type = OPTION_INT,
         .name = "warmup",
         .target = &settings->warmup,
         .default_value = "2",
         .minimum = 0,
         .maximum = 1e6,
         .help = "steps before those"},
        {.type = OPTION_BOOL,
         .name = "ranks",
         .target = &settings->ranks,
         .default_value = "false",
         .help = "split a step into computation, exposed communication and the rest"},
        {.type = OPTION_TEXT,
         .name = "json",
         .target = &settings->json,
         .default_value = "",
         .help = "file for the figures, in seconds"},
        {.type = OPTION_TEXT,
         .name = "compare",
         .target = &settings->compare,
         .default_value = "",
         .help = "variants to measure side by side, with their numbers of streams, e.g. rc,shc,mhc:2; each in a "
                 "process of its own, a step each in turn"},
        {.type = OPTION_BOOL,
         .name = "turns",
         .target = &settings->turns,
         .default_value = "false",
         .help = "a step for each line of stdin, answered by a line of JSON: for programs that compare"},
        {.type = OPTION_BOOL,
         .name = "tune",
         .target = &settings->tune,
         .default_value = "false",
         .help =
             "find and keep the fastest parameters of CLBlast, or with --gemm mma of matrix units, for this device "
             "and the model's widths; all later runs of this user use them. Ctrl-C keeps the best so far"},
        {.type = OPTION_INT,
         .name = "tune-minutes",
         .target = &settings->tune_minutes,
         .default_value = "6",
         .minimum = 0,
         .maximum = 10000,
         .help = "how long to look"},
    };
    const size_t count = sizeof own / sizeof *own;
    for (size_t i = 0; i < count && i < room; i++) {
        specs[i] = own[i];
    }
    return count + train_options(&settings->train, specs + count, room - count);
}

static enum bench_status run(const struct bench_settings *settings, struct ranks *ranks, int argc, char **argv) {
    if (settings->turns && (*settings->compare || *settings->json)) {
        error_set("--turns talks on stdin and stdout: leave --compare and --json out");
        return BENCH_WRONG;
    }
    if (settings->tune && (settings->turns || *settings->compare || *settings->json)) {
        error_set("--tune prints and keeps what it finds: leave --compare, --turns and --json out");
        return BENCH_WRONG;
    }
    if (settings->tune) {
        return bench_tune_run(settings, ranks);
    }
    if (settings->turns) {
        return bench_turns_run(settings, ranks);
    }
    return *settings->compare ? bench_compare_run(settings, ranks, argc, argv) : bench_run(settings, ranks);
}

static int parse_and_run(struct option_spec *specs, size_t count, struct bench_settings *settings,
                         struct ranks *ranks, int argc, char **argv) {
    const enum options_result result = settings_read(specs, count, &program, argc, argv, NULL);
    int status = 0;
    if (ranks_agree(ranks, result == OPTIONS_WRONG || result == OPTIONS_FAILED)) {
        status = result == OPTIONS_FAILED ? 1 : 2;
    } else if (result == OPTIONS_OK && settings->train.list_residuals) {
        status = residual_list(stdout) ? (error_set("cannot write the list"), 1) : 0;
    } else if (result == OPTIONS_OK) {
        train_options_apply(&settings->train, specs, count);
        status = same_job_settings(ranks, &settings->train) ? BENCH_FAILED : run(settings, ranks, argc, argv);
    }
    if (status) {
        ranks_end_others(ranks, program.name);
    }
    return status && ranks->index == 0 ? settings_fail(program.name, status) : status;
}

int main(int argc, char **argv) {
    static struct bench_settings settings;
    static struct option_spec specs[TRAIN_OPTIONS_MOST + 10];
    struct ranks ranks;
    if (train_start_ranks(program.name, &ranks)) {
        return 1;
    }
    const size_t count = bench_options(&settings, specs, TRAIN_OPTIONS_MOST + 10);
    const int status = parse_and_run(specs, count, &settings, &ranks, argc, argv);
    options_free(specs, count);
    ranks_stop(&ranks);
    return status;
}
