/* hc_analyze: what the paper shows, of runs and checkpoints of one's own. */
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "src/analysis/analyze.h"
#include "src/analysis/report.h"
#include "src/settings/settings.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct program_info program = {
    .name = "hc_analyze",
    .summary = "Shows what the paper shows, of your own runs: reads the records of run directories, measures the "
               "residual matrices "
               "H_res of their checkpoints on samples of a token file, and writes OUT/report.html, one page with "
               "everything in it, "
               "OUT/figures/ with each picture as SVG, PNG, gnuplot's script and CSV, and OUT/analysis.json with "
               "all numbers.",
    .usage = "--out OUT [OPTIONS] RUN_OR_CHECKPOINT...",
    .examples = "hc_analyze --out report --data-dir data/corpus/gcide out/rc out/mhc out/shc\n"
                "hc_analyze --out report --data-dir data/mine --all-checkpoints out/shc\n"
                "hc_analyze --out report --watch 60 out/shc",
};

struct settings {
    struct device_settings device;
    char *out, *data_dir, *split, *bench;
    int64_t samples, batch_size, watch;
    bool all_checkpoints;
};

static int write_results(const struct settings *settings, const json_t *json) {
    char *path = files_path("%s/analysis.json", settings->out);
    const int result = !path || files_make_folder(settings->out) ||
                       json_file_write(path, json, JSON_COMPACT | JSON_REAL_PRECISION(9)) ||
                       report_write(json, settings->out, settings->watch);
    free(path);
    return result ? -1 : 0;
}

/* Waits; true to go on. */
static bool wait_for_next(int64_t seconds) {
    for (int64_t tenths = 10 * seconds; tenths > 0 && !interrupt_requested(); tenths--) {
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    return !interrupt_requested();
}

/* Once, or again and again with what is new. */
static int analyze_all(struct compute *compute, const struct settings *settings, struct analyze_settings *analyze) {
    json_t *last = NULL;
    int result = 0;
    do {
        analyze->before = last;
        json_t *json = analyze_run(compute, analyze);
        result = json ? write_results(settings, json) : -1;
        json_decref(last);
        last = json;
        if (result == 0) {
            fprintf(stderr, "wrote %s/report.html\n", settings->out);
        }
    } while (result == 0 && settings->watch > 0 && wait_for_next(settings->watch));
    json_decref(last);
    return result;
}

static int run(const struct settings *settings, const char *const *inputs, size_t input_count) {
    struct compute *compute = NULL;
    const bool computes = settings->data_dir && *settings->data_dir;
    if (!settings->out || input_count == 0) {
        error_set("--out and at least one run directory or checkpoint are needed; see hc_analyze --help");
        return settings_fail(program.name, 2);
    }
    struct analyze_settings analyze = {.inputs = inputs,
                                       .input_count = input_count,
                                       .data_dir = computes ? settings->data_dir : NULL,
                                       .split = settings->split,
                                       .samples = settings->samples,
                                       .batch_size = settings->batch_size,
                                       .all_checkpoints = settings->all_checkpoints,
                                       .bench = settings->bench && *settings->bench ? settings->bench : NULL};
    int result = computes ? settings_open_device(&settings->device, ELEMENT_FP32, 0, &compute) : 0;
    result = result || analyze_all(compute, settings, &analyze);
    compute_close(compute);
    return result ? settings_fail(program.name, interrupt_requested() ? 130 : 1) : 0;
}

int main(int argc, char **argv) {
    static struct settings settings;
    struct option_spec specs[] = {
        {.type = OPTION_HEADING, .help = "What to measure"},
        {.type = OPTION_TEXT,
         .name = "out",
         .target = &settings.out,
         .help = "folder of the results, made if missing"},
        {.type = OPTION_TEXT,
         .name = "data_dir",
         .target = &settings.data_dir,
         .help = "folder of token files to measure H_res on; without it only the records of runs are read"},
        {.type = OPTION_CHOICE,
         .name = "split",
         .target = &settings.split,
         .default_value = "val",
         .choices = "val|train",
         .help = "which of its files"},
        {.type = OPTION_INT,
         .name = "samples",
         .target = &settings.samples,
         .default_value = "1024",
         .minimum = 1,
         .maximum = 1e9,
         .help = "sequences of block_size tokens, spread evenly over the file"},
        {.type = OPTION_INT,
         .name = "batch_size",
         .target = &settings.batch_size,
         .default_value = "8",
         .minimum = 1,
         .maximum = 1e6,
         .help = "sequences at a time"},
        {.type = OPTION_BOOL,
         .name = "all_checkpoints",
         .target = &settings.all_checkpoints,
         .default_value = "false",
         .help = "measure every checkpoint of a run directory, not only the newest"},
        {.type = OPTION_TEXT,
         .name = "bench",
         .target = &settings.bench,
         .help = "what hc_bench --compare --json wrote: throughput and auxiliary parameters against streams"},
        {.type = OPTION_INT,
         .name = "watch",
         .target = &settings.watch,
         .default_value = "0",
         .minimum = 0,
         .maximum = 1e6,
         .help = "do it again after so many seconds, until Ctrl-C; an open page loads itself again. 0: once"},
        DEVICE_OPTIONS(&settings.device),
    };
    int first_free = argc;
    device_prepare_environment();
    interrupt_install();
    int status = settings_parse(specs, COUNT(specs), &program, argc, argv, &first_free);
    if (status == 0) {
        status = run(&settings, (const char *const *)argv + first_free, (size_t)(argc - first_free));
    }
    options_free(specs, COUNT(specs));
    return status < 0 ? 0 : status;
}
