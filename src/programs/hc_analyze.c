/* hc_analyze: the paper's tables and plots of runs and checkpoints. */
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/message.h"
#include "src/analysis/analyze.h"
#include "src/analysis/report.h"
#include "src/analysis/runs.h"
#include "src/programs/program.h"
#include "src/settings/settings.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static struct program program = {
    .info.name = "hc_analyze",
    .info.summary = "Makes the paper's tables and plots of your own runs: reads the logs of run directories, "
                    "measures the residual matrices H_res of their checkpoints on samples of a token file, and "
                    "writes OUT/report.html, one page with everything in it, OUT/figures/ with each plot as SVG, "
                    "PNG, gnuplot's script and CSV, and OUT/analysis.json with all numbers.",
    .info.usage = "--out OUT [OPTIONS] RUN_CHECKPOINT_OR_FOLDER_OF_RUNS...",
    .info.examples = "hc_analyze --out report --data-dir data/corpus/gcide out/rc out/mhc out/shc\n"
                     "hc_analyze --out report --data-dir data/mine --all-checkpoints out/shc\n"
                     "hc_analyze --out report out\n"
                     "hc_analyze --out report --watch 60 out/shc",
    .computes = true,
    .takes_arguments = true,
};

struct settings {
    struct device_settings device;
    struct analyze_settings analyze;
    char *out;
    int64_t watch;
};

static int write_results(const struct settings *settings, json_t *json) {
    const struct path path = path_of("%s/analysis.json", settings->out);
    return files_make_folder(settings->out) ||
                   json_file_write(path.text, json_incref(json), JSON_COMPACT | JSON_REAL_PRECISION(9)) ||
                   report_write(json, settings->out, settings->watch)
               ? -1
               : 0;
}

/* Waits; true to go on. */
static bool wait_for_next(int64_t seconds) {
    for (int64_t tenths = 10 * seconds; tenths > 0 && !interrupt_requested(); tenths--) {
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    return !interrupt_requested();
}

/* Whether a checkpoint has several streams, whose H_res can be measured. */
static bool has_streams(const json_t *json) {
    const json_t *run;
    size_t i;
    json_array_foreach(json_object_get(json, "runs"), i, run) {
        if (json_object_get(run, "config") && run_streams(run) > 1.0) {
            return true;
        }
    }
    return false;
}

/* Once, or again and again with what is new. */
static int analyze_all(struct compute *compute, struct settings *settings) {
    json_t *last = NULL;
    int result = 0;
    bool warned = *settings->analyze.data_dir;
    do {
        settings->analyze.before = last;
        json_t *json = analyze_run(compute, &settings->analyze);
        result = json ? write_results(settings, json) : -1;
        if (result == 0 && !warned && has_streams(json)) {
            message_print(stderr,
                          "H_res was not measured: give --data-dir DIR with the token files of these runs\n");
            warned = true;
        }
        json_decref(last);
        last = json;
        if (result == 0) {
            message_print(stderr, "wrote %s/report.html\n", settings->out);
        }
    } while (result == 0 && settings->watch > 0 && wait_for_next(settings->watch));
    json_decref(last);
    return result;
}

static int run(struct settings *settings) {
    struct compute *compute = NULL;
    interrupt_install();
    if (!settings->out || program.argument_count == 0) {
        error_set("--out and at least one run directory or checkpoint are needed; see hc_analyze --help");
        return PROGRAM_WRONG;
    }
    settings->analyze.inputs = program.arguments;
    settings->analyze.input_count = program.argument_count;
    settings->analyze.waits = settings->watch > 0;
    const int result =
        (*settings->analyze.data_dir && settings_open_device(&settings->device, ELEMENT_FP32, 0, &compute)) ||
        analyze_all(compute, settings);
    compute_close(compute);
    return result ? program_failed(&program) : PROGRAM_DONE;
}

int main(int argc, char **argv) {
    static struct settings settings;
    struct option_spec specs[] = {
        HEADING("What to measure"),
        TEXT("out", &settings.out, NULL, "folder of the results, made if missing"),
        TEXT("data_dir", &settings.analyze.data_dir, "",
             "folder of token files to measure H_res on; without it only the logs of runs are read"),
        CHOICE("split", &settings.analyze.split, "val", SPLIT_WORDS, "which of its files"),
        INT("samples", &settings.analyze.samples, "1024", 1, 1e9,
            "sequences of block_size tokens, spread evenly over the file"),
        INT("batch_size", &settings.analyze.batch_size, "8", 1, 1e6, "sequences at a time"),
        BOOL("all_checkpoints", &settings.analyze.all_checkpoints, "false",
             "measure every checkpoint of a run directory, not only the newest"),
        TEXT(
            "bench", &settings.analyze.bench, "",
            "file of hc_bench --compare --json: adds plots of throughput and auxiliary parameters against streams"),
        TEXT("baselines", &settings.analyze.baselines, "rc,identity",
             "residual variants, separated by commas, whose losses are subtracted from the others' at the same "
             "seed",
             .may_be_empty = true),
        INT("watch", &settings.watch, "0", 0, 1e6,
            "repeat after this many seconds, until Ctrl-C, and wait for runs that have not begun; an open page "
            "reloads itself. 0: once"),
        DEVICE_OPTIONS(&settings.device),
    };
    if (program_begin(&program, specs, COUNT(specs), argc, argv)) {
        program.status = run(&settings);
    }
    return program_end(&program);
}
