/* hc_bench: measures training steps. */
#include "runtime/system/error.h"
#include "src/bench/bench.h"
#include "src/programs/program.h"
#include "src/settings/schedule.h"
#include "src/training/same_job.h"
#include "src/training/train_settings.h"

static struct program program = {
    .info.name = "hc_bench",
    .info.summary =
        "Measures training steps of a model on random tokens: time, tokens/s, memory; with --profile each kernel, "
        "with --compare several residual variants side by side, with --ranks how a step divides into computation, "
        "communication that computation does not hide, and the rest; --tune looks for the parameters of CLBlast's "
        "products, or with --gemm mma for the tiles of matrix units, that suit the device; --ledger counts "
        "launches, bytes and FLOPs of a step as a GPU would get it, which need not be there. Takes all options of "
        "hc_train, so that its config files can be used; under mpirun all ranks measure together.",
    .info.usage = "[--config FILE]... [OPTIONS]",
    .info.examples = "hc_bench --config configs/small.conf --residual mhc --device pocl --profile\n"
                     "hc_bench --config configs/small.conf --compare rc,identity,hc,mhc,mhc_lite,shc\n"
                     "hc_bench --config configs/small.conf --compare rc,shc:2,shc:4,shc:8 --json streams.json\n"
                     "hc_bench --ledger --as a6000 --config configs/M.conf --residual shc --dtype bf16\n"
                     "hc_bench --tune --config configs/M.conf --device pocl\n"
                     "hc_bench --tune --gemm mma --config configs/M.conf --device gpu\n"
                     "mpirun -np 2 hc_bench --ranks --config configs/M.conf --batch-size 1 --device pocl\n"
                     "mpirun -np 8 hc_bench --ranks --config configs/M.conf --device gpu --json bench-8.json",
    .computes = true,
    .is_job = true,
};

static void bench_options(struct bench_settings *settings, struct option_table *table) {
    const struct option_spec own[] = {
        HEADING("Measuring"),
        INT("steps", &settings->steps, "10", 1, 1e6, "optimiser steps that are measured"),
        INT("warmup", &settings->warmup, "2", 0, 1e6, "steps before those"),
        BOOL("ranks", &settings->ranks, "false",
             "split a step into computation, exposed communication and the rest"),
        TEXT("json", &settings->json, "", "file for the figures, in seconds"),
        TEXT("compare", &settings->compare, "",
             "variants to measure side by side, with their numbers of streams, e.g. rc,shc,mhc:2; each in a "
             "process of its own, a step each in turn (a round). The column 'to rc' is the step's time divided by "
             "rc's "
             "in the same round, median of the rounds, which is not the quotient of the medians in other columns"),
        BOOL("turns", &settings->turns, "false",
             "a step for each line of stdin, answered by a line of JSON: for programs that compare"),
        BOOL("tune", &settings->tune, "false",
             "find and keep the fastest parameters of CLBlast, or with --gemm mma of matrix units, for this device "
             "and the model's widths; all later runs of this user use them. Ctrl-C keeps the best so far"),
        BOOL("ledger", &settings->ledger, "false",
             "count what a step puts into a GPU's queue, and predict its time from data sheets: no GPU is needed"),
        TEXT("as", &settings->as, "",
             "for --ledger: a6000, h100, h200, mi300x, rx7900xtx, arc770 or pocl, whose shape kernels take; "
             "without, the device's own, if it is one of these"),
        BOOL("ledger_run", &settings->run, "false", "for --ledger: run the step, too, in that shape on --device"),
        INT("tune_minutes", &settings->tune_minutes, "6", 0, 10000, "how long to look"),
    };
    options_append(table, own, COUNT(own));
    train_options(&settings->train, table);
}

/* Whether what was asked for goes together. */
static int check_modes(const struct bench_settings *settings) {
    const bool compares = *settings->compare;
    if (settings->turns && (compares || *settings->json)) {
        return error_set("--turns talks on stdin and stdout: leave --compare and --json out");
    }
    if (settings->tune && (settings->turns || compares || *settings->json)) {
        return error_set("--tune prints and keeps what it finds: leave --compare, --turns and --json out");
    }
    if (settings->ledger &&
        (settings->turns || settings->tune || settings->ranks || compares || program.ranks.count > 1)) {
        return error_set(
            "--ledger counts one model on one rank: leave --compare, --turns, --tune, --ranks and mpirun out");
    }
    if (!settings->ledger && *settings->as) {
        return error_set("--as says for which device --ledger counts: give --ledger, too, or leave it out");
    }
    if (!settings->ledger && settings->run) {
        return error_set("--ledger-run runs what --ledger counts: give --ledger, too, or leave it out");
    }
    return 0;
}

static enum bench_status run(struct bench_settings *settings, const struct option_table *table, int argc,
                             char **argv) {
    struct ranks *ranks = &program.ranks;
    train_options_apply(&settings->train, table);
    if (settings->train.list_residuals) {
        return train_options_list_residuals() ? BENCH_FAILED : BENCH_DONE;
    }
    schedule_complete(table->rows, table->count, settings->train.max_iters, &settings->train.optimizer, NULL);
    if (same_job_settings(ranks, &settings->train)) {
        return BENCH_FAILED;
    }
    if (check_modes(settings)) {
        return BENCH_WRONG;
    }
    if (settings->ledger) {
        return bench_ledger_run(settings, ranks);
    }
    if (settings->tune) {
        return bench_tune_run(settings, ranks);
    }
    if (settings->turns) {
        return bench_turns_run(settings, ranks);
    }
    return *settings->compare ? bench_compare_run(settings, ranks, argc, argv) : bench_run(settings, ranks);
}

int main(int argc, char **argv) {
    static struct bench_settings settings;
    static struct option_table table;
    bench_options(&settings, &table);
    if (program_begin(&program, table.rows, table.count, argc, argv)) {
        program.status = (int)run(&settings, &table, argc, argv);
    }
    return program_end(&program);
}
