/* hc_bench: measures training steps. */
#include "runtime/system/error.h"
#include "src/bench/bench.h"
#include "src/programs/program.h"
#include "src/training/train_settings.h"

static struct program program = {
    .info.name = "hc_bench",
    .info.summary =
        "Measures training steps of a model on random tokens: time, tokens/s, memory. --profile adds each kernel; "
        "--ranks divides a step into computation, communication that computation does not hide, and the rest; "
        "--roofline estimates from data sheets how long a step takes on a GPU, which need not be there. Takes all "
        "options of hc_train, so that its config files can be used; under mpirun all ranks measure together. "
        "bench/compare.py of the sources measures several residual variants side by side.",
    .info.usage = "[--config FILE]... [OPTIONS]",
    .info.examples = "hc_bench --config configs/small.conf --residual mhc --device cpu --profile\n"
                     "hc_bench --roofline --as a6000 --config configs/M.conf --residual shc --dtype bf16\n"
                     "mpirun -np 2 hc_bench --ranks --config configs/M.conf --batch-size 1 --device cpu\n"
                     "mpirun -np 8 hc_bench --ranks --config configs/M.conf --device gpu --json bench-8.json",
    .computes = true,
    .is_job = true,
};

/* Whether what was asked for goes together. */
static int check_modes(const struct bench_settings *settings) {
    if (settings->step_on_demand && *settings->json) {
        return error_set("--step-on-demand uses stdin and stdout: leave --json out");
    }
    if (settings->roofline && (settings->step_on_demand || settings->ranks || program.ranks.count > 1)) {
        return error_set("--roofline counts one model on one rank: leave --step-on-demand, --ranks and mpirun out");
    }
    if (!settings->roofline && *settings->as) {
        return error_set("--as names the device of --roofline: give --roofline, too, or leave it out");
    }
    if (!settings->roofline && settings->roofline_runs) {
        return error_set("--roofline-run runs the step of --roofline: give --roofline, too, or leave it out");
    }
    return 0;
}

static enum program_status run(struct bench_settings *settings, const struct option_table *table) {
    struct ranks *ranks = &program.ranks;
    train_options_apply(&settings->train, table);
    if (settings->train.list_residuals) {
        return train_options_list_residuals() ? PROGRAM_FAILED : PROGRAM_DONE;
    }
    schedule_complete(table->rows, table->count, settings->train.max_iters, &settings->train.optimizer, NULL);
    if (same_job_settings(ranks, &settings->train)) {
        return PROGRAM_FAILED;
    }
    if (check_modes(settings) || optimizer_check(&settings->train.optimizer)) {
        return PROGRAM_WRONG;
    }
    if (settings->roofline) {
        return bench_roofline_run(settings, ranks);
    }
    return settings->step_on_demand ? bench_step_on_demand_run(settings, ranks) : bench_run(settings, ranks);
}

int main(int argc, char **argv) {
    static struct bench_settings settings;
    static struct option_table table;
    const struct option_spec own[] = {
        HEADING("Measuring"),
        INT("steps", &settings.steps, "10", 1, 1e6, "optimizer steps to measure"),
        INT("warmup", &settings.warmup, "2", 0, 1e6, "steps before those, not measured"),
        BOOL("ranks", &settings.ranks, "false",
             "split a step into computation, exposed communication and the rest"),
        TEXT("json", &settings.json, "", "file for the timings, in seconds"),
        BOOL("step_on_demand", &settings.step_on_demand, "false",
             "measure a step for each line of stdin and answer with a line of JSON: for programs that compare"),
        BOOL("roofline", &settings.roofline, "false",
             "count the launches, bytes and FLOPs of a step and estimate its time from a GPU's data sheet: no GPU "
             "is needed"),
        TEXT("as", &settings.as, "",
             "for --roofline: a6000, h100, h200, mi300x, rx7900xtx, arc770 or pocl; default: that of --device, if "
             "it is one of these"),
        BOOL("roofline_run", &settings.roofline_runs, "false",
             "for --roofline: run the step, too, on --device, with kernels in the shape for that GPU"),
    };
    options_append(&table, own, COUNT(own));
    train_options(&settings.train, &table);
    if (program_begin(&program, table.rows, table.count, argc, argv)) {
        program.status = (int)run(&settings, &table);
    }
    return program_end(&program);
}
