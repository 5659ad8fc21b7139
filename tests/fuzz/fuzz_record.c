/* Any bytes as the records of two runs and what hc_bench measured: read, and drawn as pictures and tables. */
#include "runtime/files/json_file.h"
#include "src/analysis/comparison.h"
#include "src/analysis/plot.h"
#include "src/analysis/report.h"
#include "src/analysis/run_reader.h"
#include "src/analysis/runs.h"
#include "tests/fuzz/fuzz_file.h"
#include "tests/fuzz/fuzz_folder.h"
#include <stdio.h>
#include <stdlib.h>

/* As an analysis has them, see analyze.h; takes over the record. */
static json_t *analysis_of(json_t *record, const char *folder) {
    char path[128];
    json_t *bench = NULL, *measured = NULL, *values = NULL, *config = NULL;
    snprintf(path, sizeof path, "%s/bench.json", folder);
    json_file_read(path, 1 << 20, &bench);
    snprintf(path, sizeof path, "%s/h.json",
             folder); /* of earlier checkpoints, as hc_analyze --watch takes them over */
    json_file_read(path, 1 << 20, &measured);
    snprintf(path, sizeof path, "%s/values.json", folder);
    json_file_read(path, 1 << 20, &values);
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_file_read(path, 1 << 20, &config);
    json_t *run = json_pack("{s:s, s:s, s:i, s:o*, s:O, s:[{s:i, s:o*, s:o*}]}", "name", "run", "path", "run",
                            "kind", 0, "config", config, "record", record, "checkpoints", "iter", 1, "h", measured,
                            "value_means", values);
    json_t *repeat = json_pack("{s:s, s:s, s:i, s:o, s:[]}", "name", "again", "path", "again", "kind", 0, "record",
                               record, "checkpoints");
    json_t *runs = json_pack("[o, o]", run, repeat);
    return json_pack("{s:i, s:o, s:o*, s:o*}", "samples", 1, "runs", runs, "comparison",
                     comparison_make(runs, "rc,identity"), "bench", bench);
}

static void draw(const json_t *analysis) {
    char *text = NULL;
    size_t bytes;
    FILE *page = open_memstream(&text, &bytes);
    json_t *words = report_words(), *means = run_seed_means(json_object_get(analysis, "runs"));
    for (size_t i = 0; i < PLOT_KINDS; i++) {
        struct plot plot;
        plot_make(&plot_kinds[i], words, analysis, means, &plot);
        plot_free(&plot);
    }
    report_tables(analysis, words, page);
    fclose(page);
    free(text);
    json_decref(means);
    json_decref(words);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const names[] = {"metrics.jsonl", "h_statistics.jsonl", "settings.conf",
                                        "eval-a.json",   "bench.json",         "h.json",
                                        "values.json",   "config.json",        NULL};
    const char *folder = fuzz_folder(data, bytes, names);
    json_t *record = run_read(folder);
    if (record) {
        json_t *analysis = analysis_of(record, folder);
        draw(analysis);
        json_decref(analysis);
    }
    return 0;
}
