/* hc_analyze on the records of runs, without a device: its numbers, files and page, and what it says of bad input.
 * What it measures of checkpoints is held to numpy by compare_analysis.py, the page in a browser by
 * check_report.py. */
#include "runtime/files/files.h"
#include "tests/support/child.h"
#include "tests/support/runs.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ANALYZE(...) CHILD_RUN(HC_PROGRAMS "/hc_analyze", "--out", scratch_path("out"), __VA_ARGS__)

enum { STEPS = 250 };

static void make_folder(const char *name) {
    assert_int_equal(mkdir(scratch_path(name), 0777), 0);
}

/* Steps with losses 5 - i / 100, evaluations at 0 and 100. */
static void make_run(const char *run) {
    make_folder(run);
    FILE *file = fopen(scratch_path(run_path(run, "metrics.jsonl")), "w");
    assert_non_null(file);
    for (int i = 0; i < STEPS; i++) {
        if (i % 100 == 0) {
            fprintf(file, "{\"iter\":%d,\"train_loss\":4.5,\"val_loss\":%g,\"time\":1}\n", i,
                    i == 100 ? 3.25 : 3.5);
        }
        fprintf(file, "{\"iter\":%d,\"loss\":", i);
        fprintf(file, i + 1 < STEPS ? "%g" : "null", 5.0 - i / 100.0); /* the last one has no targets */
        fprintf(file, ",\"grad_norm\":%g,\"tokens_per_sec\":100}\n", i == 7 ? 12.5 : 0.5);
    }
    fprintf(file, "{\"iter\":250,\"lo"); /* it goes on */
    assert_int_equal(fclose(file), 0);
}

static json_t *results; /* of the last test that read them */

static char *read_out(const char *name) {
    return scratch_text(scratch_path(run_path("out", name)), NULL);
}

static const json_t *read_analysis(void) {
    json_decref(results);
    return results = json_loads(read_out("analysis.json"), 0, NULL);
}

/* Behind each test. */
static int clean(void **state) {
    (void)state;
    json_decref(results);
    results = NULL;
    return files_exist(scratch_path("out")) ? files_remove_folder(scratch_path("out")) : 0;
}

static void assert_holds(const char *text, const char *part) {
    if (!strstr(text, part)) {
        fail_msg("'%s' is not in '%.3000s'", part, text);
    }
}

UNIT_TEST_BETWEEN(NULL, records_become_numbers_tables_and_plots, clean) {
    static const char *const pictures[] = {"loss.svg", "loss.png", "loss.gp", "loss.csv", "gradient_norm.svg"};
    make_run("one");
    make_run("two");
    scratch_write("one/eval-wiki.json", "{\"word_perplexity\": 123.456}", 28);
    assert_int_equal(ANALYZE(scratch_path("one"), scratch_path("two/")), 0);
    for (size_t i = 0; i < COUNT(pictures); i++) {
        read_out(run_path("figures", pictures[i]));
    }
    const char *csv = read_out("figures/loss.csv"), *page = read_out("report.html");
    const json_t *runs = json_object_get(read_analysis(), "runs");
    assert_int_equal(json_array_size(runs), 2);
    const json_t *record = json_object_get(json_array_get(runs, 1), "record"),
                 *final = json_object_get(record, "final");
    assert_string_equal(json_string_value(json_object_get(json_array_get(runs, 1), "name")), "two");
    assert_int_equal(json_integer_value(json_object_get(final, "iter")), STEPS);
    /* the mean of the last 200, of which the last one has no loss */
    assert_true(fabs(json_number_value(json_object_get(final, "train_loss")) - (5.0 - (50 + 248) / 200.0)) < 1e-6);
    assert_true(json_number_value(json_object_get(final, "best_val_loss")) == 3.25);
    assert_true(json_number_value(json_object_get(final, "val_loss")) == 3.5);
    assert_holds(csv, "run,split,iteration,loss\none,train,0,5\none,train,1,4.99\n");
    assert_holds(csv, "two,val,100,3.25\n");
    assert_holds(page, "one: largest 12.5, above 5 in 1 steps");
    assert_holds(page, "<th><button type=\"button\">wiki</button></th>");
    assert_holds(page, "<td>123.46</td>");
    assert_null(strstr(page, "http-equiv"));
}

/* Runs that differ in the seed alone, or in when they write what, are of one kind and have one entry in legends. */
UNIT_TEST_BETWEEN(NULL, repeats_are_of_one_kind, clean) {
    static const struct {
        const char *name, *settings;
        int kind;
    } runs[] = {{"a", "# Data\nseed = 1\nresidual = \"shc\"\neval_interval = 100\n", 0},
                {"b", "# Data\nseed = 1\nresidual = \"rc\"\n", 1},
                {"c", "seed = 2\nresidual = \"shc\"\neval_interval = 50\nstatistics_interval = 10\nbroken line\n",
                 0},
                {"d", "", 3},
                {"e", "", 4}};
    const char *paths[5];
    for (size_t i = 0; i < COUNT(runs); i++) {
        make_run(runs[i].name);
        scratch_write(run_path(runs[i].name, "settings.conf"), runs[i].settings, strlen(runs[i].settings));
        paths[i] = scratch_path(runs[i].name);
    }
    assert_int_equal(ANALYZE(paths[0], paths[1], paths[2], paths[3], paths[4]), 0);
    const char *script = read_out("figures/loss.gp");
    const json_t *json = read_analysis();
    for (size_t i = 0; i < COUNT(runs); i++) {
        const json_t *run = json_array_get(json_object_get(json, "runs"), i);
        assert_int_equal(json_integer_value(json_object_get(run, "kind")), runs[i].kind);
    }
    assert_holds(script, "title 'shc (2 runs)'");
    assert_null(strstr(script, "title 'c'"));
    assert_holds(script, "title 'd'");
}

/* A run of a variant with a seed whose last validation loss, and lowest one but for 0.5, is at iteration `last`. */
static void make_seed(const char *name, const char *settings, int last, double loss) {
    make_folder(name);
    scratch_write(run_path(name, "settings.conf"), settings, strlen(settings));
    const char *text = scratch_format("{\"iter\":%d,\"val_loss\":%g}\n{\"iter\":%d,\"val_loss\":%g}\n", last - 1,
                                      loss - 0.5, last, loss);
    scratch_write(run_path(name, "metrics.jsonl"), text, strlen(text));
}

static void assert_estimate(const json_t *estimate, double mean, double half_width) {
    const json_t *width = json_object_get(estimate, "half_width");
    assert_true(fabs(json_number_value(json_object_get(estimate, "mean")) - mean) < 1e-6);
    assert_true(half_width < 0.0 ? !width : fabs(json_number_value(width) - half_width) < 1e-5);
}

static const json_t *variant_of(const json_t *analysis, size_t index) {
    return json_array_get(json_object_get(json_object_get(analysis, "comparison"), "variants"), index);
}

static const json_t *difference_of(const json_t *variant, const char *baseline) {
    return json_object_get(json_object_get(variant, "differences"), baseline);
}

/* Differences of 0.01 to 0.03 between runs of the same seed have a deviation of 0.01 and, at t = 4.3027, an
 * interval of 0.0248, though seeds are 0.1 apart. Of two kinds of rc the one that has as large a rate is the
 * baseline. */
UNIT_TEST_BETWEEN(NULL, variants_are_compared_at_the_same_seed, clean) {
    static const struct {
        const char *name, *settings;
        int last;
        double loss;
    } runs[] = {{"rc-1", "residual = \"rc\"\nlr = 1\nseed = 1\n", 9, 3.1},
                {"rc-2", "residual = \"rc\"\nlr = 1\nseed = 2\n", 9, 3.2},
                {"rc-3", "residual = \"rc\"\nlr = 1\nseed = 3\n", 9, 3.3},
                {"fast", "residual = \"rc\"\nlr = 2\nseed = 1\n", 9, 9.0},
                {"shc-3", "residual = \"shc\"\nlr = 1\nseed = 3\n", 9, 3.33},
                {"shc-1", "residual = \"shc\"\nlr = 1\nseed = 1\n", 9, 3.11},
                {"shc-2", "residual = \"shc\"\nlr = 1\nseed = 2\n", 9, 3.22},
                {"copy", "residual = \"shc\"\nlr = 1\nseed = 2\n", 9, 7.0},
                {"young", "residual = \"shc\"\nlr = 1\nseed = 4\n", 5, 7.0},
                {"hc-1", "residual = \"hc\"\nlr = 1\nseed = 1\n", 9, 3.0},
                {"mhc-5", "residual = \"mhc\"\nlr = 1\nseed = 5\n", 9, 3.0}};
    const char *paths[11];
    for (size_t i = 0; i < 11; i++) {
        make_seed(runs[i].name, runs[i].settings, runs[i].last, runs[i].loss);
    }
    for (size_t i = 0; i < 11; i++) {
        paths[i] = scratch_path(runs[i].name);
    }
    assert_int_equal(ANALYZE(paths[0], paths[1], paths[2], paths[3], paths[4], paths[5], paths[6], paths[7],
                             paths[8], paths[9], paths[10]),
                     0);
    const char *page = read_out("report.html");
    const json_t *json = read_analysis();
    const json_t *shc = variant_of(json, 2), *to_rc = difference_of(shc, "rc");
    assert_int_equal(json_array_size(json_object_get(shc, "left_out")), 2);
    assert_estimate(json_object_get(shc, "final"), 3.22, 0.273257);
    assert_int_equal(json_integer_value(json_object_get(to_rc, "pairs")), 3);
    assert_estimate(json_object_get(to_rc, "final"), 0.02, 0.024841);
    assert_estimate(json_object_get(to_rc, "best"), 0.02, 0.024841);
    assert_estimate(json_object_get(difference_of(variant_of(json, 3), "rc"), "final"), -0.1, -1.0);
    assert_null(difference_of(variant_of(json, 0), "rc"));
    assert_holds(page, "<td>3.2200 &plusmn; 0.2733</td><td>2.7200</td><td>+0.0200 &plusmn; 0.0248</td>");
    assert_holds(page, "<td>-0.1000 (one pair)</td>");
    assert_holds(
        page,
        "copy is left out: another run has its seed. young is left out: its last evaluation is at an earlier");
    assert_holds(page, "<tr><td>rc-1</td>"); /* two kinds of rc are told apart by their first runs */
    assert_holds(page, "<tr><td>fast</td>");
    assert_holds(page, "mhc has no difference to rc: no runs of the same seed.");
    assert_holds(page, "Too few pairs: one alone has no interval.");
    assert_holds(page, "Evaluation batches of these runs depend on the seed");
    assert_int_equal(ANALYZE("--baselines", "hc, nonsense", paths[0], paths[9]), 1);
    assert_holds(child_message(), "--baselines: 'nonsense' is no residual variant");
}

/* Runs whose batches do not depend on the seed are not said to, and are not compared with those of others. */
UNIT_TEST_BETWEEN(NULL, evaluation_batches_are_the_same, clean) {
    make_seed("fixed-1", "residual = \"rc\"\nseed = 1\neval_batches = \"whole\"\n", 9, 3.0);
    make_seed("fixed-2", "residual = \"hc\"\nseed = 1\neval_batches = \"whole\"\n", 9, 4.0);
    const char *first = scratch_path("fixed-1"), *second = scratch_path("fixed-2"), *third = scratch_path("shc-1");
    assert_int_equal(ANALYZE(first, second), 0);
    const char *page = read_out("report.html");
    assert_holds(page, "<td>+1.0000 (one pair)</td>");
    assert_null(strstr(page, "depend on the seed"));
    assert_int_equal(ANALYZE(first, third), 0);
    page = read_out("report.html");
    assert_holds(page, "depend on the seed");
    assert_null(strstr(page, "one pair"));
}

/* Compares a run of hc with one of rc whose settings end with these lines; the report. */
static char *compare_settings(const char *rc, const char *hc) {
    char text[512];
    make_folder("pair");
    snprintf(text, sizeof text, "residual = \"rc\"\nseed = 1\n%s", rc);
    make_seed("pair/a", text, 9, 3.0);
    snprintf(text, sizeof text, "residual = \"hc\"\nseed = 1\n%s", hc);
    make_seed("pair/b", text, 9, 4.0);
    assert_int_equal(ANALYZE(scratch_path("pair")), 0);
    assert_int_equal(files_remove_folder(scratch_path("pair")), 0);
    return read_out("report.html");
}

static const char compared[] = "<td>+1.0000 (one pair)</td>";

/* A baseline may have other settings of the residual connection and of what does not change training, and another
 * learning rate, which the report says; with others that differ there is no number, and the report says why. */
UNIT_TEST_BETWEEN(NULL, baselines_are_of_runs_that_compare, clean) {
    static const struct {
        const char *rc, *hc, *says;
        bool has_number;
    } cases[] = {
        {"n_layer = 24\nn_streams = 4\nlog_interval = 1\nsinkhorn_iters = 20\n",
         "n_layer = 24\nn_streams = 2\nlog_interval = 5\nsinkhorn_iters = 5\n", NULL, true},
        {"learning_rate = 0.004\ndtype = \"bf16\"\n", "learning_rate = 0.016\ndtype = \"fp32\"\n",
         " hc is compared with rc although a has another learning_rate (0.004 instead of 0.016), another dtype "
         "(bf16 "
         "instead of fp32).",
         true},
        {"n_layer = 12\n", "n_layer = 24\n",
         " hc has no difference to rc: a has another n_layer (12 instead of 24).", false},
        {"", "<b> = \"<i>\"\n", " hc has no difference to rc: a has another ?b? (none instead of ?i?).", false},
        {"eval_batches = \"auto\"\neval_iters = 20\n", "eval_batches = \"auto\"\neval_iters = 40\n",
         "another eval_iters (20 instead of 40)", false},
        {"eval_batches = \"whole\"\neval_iters = 20\n", "eval_batches = \"whole\"\neval_iters = 40\n", NULL, true},
        {"eval_batches = \"by_seed\"\n", "", NULL, true},
        {"data_dir = \"/nowhere/a\"\n", "data_dir = \"/nowhere/b\"\n", "another data_dir (/nowhere/a", false},
        {"data_dir = \"/nowhere/a\"\n", "data_dir = \"/nowhere/a\"\n", NULL, true},
        {"data_dir = \"/\"\n", "data_dir = \"/dev/..\"\n", NULL, true},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *page = compare_settings(cases[i].rc, cases[i].hc);
        if ((strstr(page, compared) != NULL) != cases[i].has_number) {
            fail_msg("case %zu has %s number", i, cases[i].has_number ? "no" : "a");
        }
        if (cases[i].says) {
            assert_holds(page, cases[i].says);
        } else {
            assert_null(strstr(page, "has no difference to"));
            assert_null(strstr(page, "is compared with"));
        }
    }
}

/* Runs that name one folder of data by two paths are of one kind. */
UNIT_TEST_BETWEEN(NULL, data_have_several_paths, clean) {
    make_folder("paths");
    make_seed("paths/rc-1", "residual = \"rc\"\nseed = 1\ndata_dir = \"/dev/..\"\n", 9, 3.0);
    make_seed("paths/rc-2", "residual = \"rc\"\nseed = 2\ndata_dir = \"/\"\n", 9, 3.5);
    make_seed("paths/rc-3", "residual = \"rc\"\nseed = 3\ndata_dir = \"/dev\"\n", 9, 9.0);
    assert_int_equal(ANALYZE(scratch_path("paths")), 0);
    const json_t *json = read_analysis();
    assert_estimate(json_object_get(variant_of(json, 0), "final"), 3.25, 12.7062 * 0.25);
    assert_int_equal(json_integer_value(json_object_get(variant_of(json, 1), "kind")), 2);
}

/* With baselines of two sizes, each variant is compared with the one of its size, and with none where it has
 * none. */
UNIT_TEST_BETWEEN(NULL, baselines_are_of_the_same_size, clean) {
    make_folder("sizes");
    make_seed("sizes/rc-M", "residual = \"rc\"\nseed = 1\nn_layer = 12\nlearning_rate = 1\n", 9, 3.0);
    make_seed("sizes/hc-L", "residual = \"hc\"\nseed = 1\nn_layer = 24\nlearning_rate = 1\n", 9, 2.0);
    make_seed("sizes/hc-M", "residual = \"hc\"\nseed = 1\nn_layer = 12\nlearning_rate = 2\n", 9, 2.5);
    assert_int_equal(ANALYZE(scratch_path("sizes")), 0);
    const char *page = read_out("report.html");
    assert_holds(page, "<td>-0.5000 (one pair)</td>");
    assert_null(strstr(page, "<td>-1.0000 (one pair)</td>"));
    assert_holds(page, "hc-L has no difference to rc: rc-M has another n_layer (12 instead of 24).");
    make_seed("sizes/rc-L", "residual = \"rc\"\nseed = 1\nn_layer = 24\nlearning_rate = 3\n", 9, 2.9);
    assert_int_equal(ANALYZE(scratch_path("sizes")), 0);
    page = read_out("report.html");
    assert_holds(page, "<td>-0.5000 (one pair)</td>");
    assert_holds(page, "<td>-0.9000 (one pair)</td>");
    assert_holds(page, "hc-L is compared with rc although rc-L has another learning_rate (3 instead of 1).");
}

/* The labels of the vertical axis of a picture, which end at the axis, as numbers do and names in legends do
 * not. */
static size_t read_labels(const char *picture, char labels[][32], size_t most) {
    char *text = read_out(picture), *rest;
    size_t count = 0;
    for (const char *at = text; (at = strstr(at, "text-anchor=\"end\"")) != NULL && count < most; at++) {
        const char *label = strstr(at, "<text>");
        snprintf(labels[count], sizeof labels[count], "%.*s", label ? (int)strcspn(label + 6, "<") : 0, label + 6);
        count += strtod(labels[count], &rest) != 0.0 && *rest == '\0';
    }
    return count;
}

/* Neighbours differ, and not all would without their last digit. */
UNIT_TEST_BETWEEN(NULL, labels_tell_tics_apart, clean) {
    static const double cases[][2] = {{1, 1e-9}, {1, 3e-8},   {1, 4e-7},   {1, 2e-6},     {1, 1e-4}, {0.5, 3e-7},
                                      {5, 1e-2}, {300, 1e-5}, {300, 2e-7}, {12345, 3e-4}, {2, 0}};
    char labels[64][32];
    make_folder("close");
    for (size_t i = 0; i < COUNT(cases); i++) {
        FILE *file = fopen(scratch_path("close/metrics.jsonl"), "w");
        assert_non_null(file);
        for (int step = 0; step < STEPS; step++) {
            fprintf(file, "{\"iter\":%d,\"loss\":%.17g}\n", step, cases[i][0] + cases[i][1] * step);
        }
        assert_int_equal(fclose(file), 0);
        assert_int_equal(ANALYZE(scratch_path("close")), 0);
        const size_t count = read_labels("figures/loss.svg", labels, 64);
        bool needed = false;
        assert_in_range(count, 3, 20);
        for (size_t label = 0; label < count; label++) {
            const char *text = labels[label];
            needed = needed || !strchr(text, '.') || text[strlen(text) - 1] != '0';
            if (label > 0 && strcmp(text, labels[label - 1]) == 0) {
                fail_msg("from %g by %g a step: two labels are %s", cases[i][0], cases[i][1], text);
            }
        }
        if (!needed) {
            fail_msg("from %g by %g a step: labels such as %s are too long", cases[i][0], cases[i][1], labels[0]);
        }
    }
}

/* A run of two sublayers with a seed, at iterations 0 and 10: streams' cosines are 1 and `last`. */
static void make_statistics(const char *name, const char *residual, int seed, double last) {
    char text[512];
    make_run(name);
    snprintf(text, sizeof text, "residual = \"%s\"\nseed = %d\n", residual, seed);
    scratch_write(run_path(name, "settings.conf"), text, strlen(text));
    snprintf(text, sizeof text,
             "{\"iter\":0,\"row_max_median\":1,\"stream_cosine\":[1,1]}\n"
             "{\"iter\":10,\"row_max_median\":%g,\"stream_cosine\":[1,%g]}\n",
             last, last);
    scratch_write(run_path(name, "h_statistics.jsonl"), text, strlen(text));
}

/* Plots of H_res show means over seeds, in panels with one axis, which is fitted to them. */
UNIT_TEST_BETWEEN(NULL, plots_of_h_are_over_all_seeds, clean) {
    make_folder("h");
    make_statistics("h/mhc-1", "mhc", 1, 0.97);
    make_statistics("h/shc-1", "shc", 1, 0.90);
    make_statistics("h/shc-2", "shc", 2, 0.92);
    assert_int_equal(ANALYZE(scratch_path("h")), 0);
    const char *script = read_out("figures/similarity.gp"), *csv = read_out("figures/similarity.csv"),
               *page = read_out("report.html");
    assert_holds(csv, "mhc-1,10,1,0.97\n");
    assert_holds(csv, "shc (2 runs),10,1,0.91\n");
    assert_null(strstr(csv, "shc-1"));
    assert_holds(script, "set yrange [0.9055:1.0045]"); /* 0.91 to 1 and a twentieth to either side */
    assert_holds(script, "dt 1+layer%2");
    assert_null(strstr(strstr(script, "yrange") + 1, "yrange"));
    assert_holds(page, "shc (2 runs): median 0.910");
}

/* Beside all iterations stand the later two thirds, where means over seeds have an axis of their own, and there is
 * a form of the picture for phones. */
UNIT_TEST_BETWEEN(NULL, later_losses_have_a_plot, clean) {
    assert_int_equal(ANALYZE(scratch_path("h")), 0);
    const char *script = read_out("figures/loss.gp"), *page = read_out("report.html");
    assert_holds(script, "later = 83.3333333\n");
    assert_holds(script, "plot $later_steps0 with lines");
    assert_holds(script, "$later_steps1 with lines");
    assert_null(strstr(script, "$later_steps2"));
    read_out("figures/loss-narrow.svg");
    assert_holds(page, "<source media=\"(max-width: 40rem)\" width=\"350\"");
}

/* Names of hc_sweep's runs keep their commas. The last validation loss is drawn. Runs of a variant whose rates
 * differ have shades of their own, and those that differ in the seed have one. A step without a loss is no part of
 * a mean. */
UNIT_TEST_BETWEEN(NULL, runs_of_a_sweep_can_be_told_apart, clean) {
    static const struct {
        const char *name, *settings;
    } runs[] = {{"s/residual=mhc,seed=1", "residual = \"mhc\"\nseed = 1\n"},
                {"s/residual=mhc,seed=2", "residual = \"mhc\"\nseed = 2\n"},
                {"s/residual=mhc,learning_rate=1e-2,seed=1",
                 "residual = \"mhc\"\nlearning_rate = 1e-2\nseed = 1\n"},
                {"s/residual=rc,seed=1", "residual = \"rc\"\nseed = 1\n"}};
    static const char lines[] = "{\"iter\":0,\"loss\":5}\n{\"iter\":248,\"loss\":null}\n"
                                "{\"iter\":249,\"loss\":4}\n{\"iter\":250,\"val_loss\":3.25}\n";
    make_folder("s");
    for (size_t i = 0; i < COUNT(runs); i++) {
        make_folder(runs[i].name);
        scratch_write(run_path(runs[i].name, "settings.conf"), runs[i].settings, strlen(runs[i].settings));
        scratch_write(run_path(runs[i].name, "metrics.jsonl"), lines, sizeof lines - 1);
    }
    assert_int_equal(ANALYZE(scratch_path("s")), 0);
    const char *script = read_out("figures/loss.gp");
    assert_holds(read_out("figures/loss.csv"), "\"residual=mhc,seed=1\",val,250,3.25\n");
    assert_holds(read_out("report.html"), "<td>residual=mhc,learning_rate=1e-2,seed=1</td>");
    assert_holds(script, "$later_evaluations0 << END_OF_DATA\n250 3.25\n");
    for (size_t i = 0; i < COUNT(runs); i++) { /* in the order of their names */
        assert_holds(script, scratch_format("$evaluations%zu with linespoints pt 7 ps 0.5 lw 2 lc rgb '%s'", i,
                                            i == 0  ? "#15537e"
                                            : i < 3 ? "#a5c8e1"
                                                    : "#888888"));
    }
    const json_t *run = json_array_get(json_object_get(read_analysis(), "runs"), 0),
                 *final = json_object_get(json_object_get(run, "record"), "final");
    assert_true(json_number_value(json_object_get(final, "train_loss")) == 4.5);
}

UNIT_TEST_BETWEEN(NULL, names_cannot_write_the_page, clean) {
    make_run("<b>'$x");
    assert_int_equal(ANALYZE(scratch_path("<b>'$x")), 0);
    const char *page = read_out("report.html");
    assert_null(strstr(page, "<b>"));
    assert_holds(page, "<td>?b???x</td>");
}

UNIT_TEST_BETWEEN(NULL, bad_records_are_named, clean) {
    make_folder("bad");
    scratch_write("bad/metrics.jsonl", "{\"iter\":0,\"loss\":1}\nnonsense\n", 29);
    assert_int_equal(ANALYZE(scratch_path("bad")), 0);
    assert_holds(child_message(),
                 "bad/metrics.jsonl: lines that cannot be read are left out: 1; the first is line 2");
    scratch_write("bad/metrics.jsonl", "{\"loss\":1}\n", 11);
    assert_int_equal(ANALYZE(scratch_path("bad")), 1);
    assert_holds(child_message(),
                 "bad/metrics.jsonl: lines that cannot be read are left out: 1; the first is line 1");
    clean(state);
    scratch_write("bad/metrics.jsonl", "", 0);
    scratch_write("bad/eval-x.json", "{", 1);
    assert_int_equal(ANALYZE(scratch_path("bad")), 1);
    assert_holds(child_message(), "bad/eval-x.json:1");
    assert_int_equal(ANALYZE(scratch_path("nowhere")), 1);
    assert_holds(child_message(), "nowhere");
    assert_false(files_exist(scratch_path("out/report.html")));
    assert_int_equal(CHILD_RUN(HC_PROGRAMS "/hc_analyze", scratch_path("bad")), 2);
}

UNIT_TEST_BETWEEN(NULL, a_run_that_has_not_begun_is_a_row, clean) {
    make_folder("begun");
    scratch_write("begun/settings.conf", "seed = 1\n# device: cpu-x <b>\n", 28);
    assert_int_equal(ANALYZE(scratch_path("begun")), 0);
    const char *page = read_out("report.html");
    assert_holds(page, "<td>begun</td>");
    assert_holds(page, "<td class=\"text\">cpu-x ?b?</td>");
    assert_null(strstr(page, "<img"));
}

/* Checkpoints with streams have matrices that only data can measure; without streams, or without a checkpoint,
 * there is nothing to say. */
UNIT_TEST_BETWEEN(NULL, a_report_without_data_reports_what_it_lacks, clean) {
    static const char config[] = "{\"residual\": \"%s\", \"n_streams\": %d, \"n_layer\": 1, \"n_head\": 1, "
                                 "\"n_embd\": 8, \"block_size\": 8, \"vocab_size\": 256}";
    static const char words[] = "H_res was not measured: give --data-dir DIR with the token files of these runs\n";
    char text[256];
    make_run("lacking");
    assert_int_equal(ANALYZE(scratch_path("lacking")), 0);
    assert_null(strstr(child_message(), words));
    make_folder("lacking/ckpt-9");
    scratch_write("lacking/ckpt-9/config.json", text, (size_t)snprintf(text, sizeof text, config, "rc", 1));
    assert_int_equal(ANALYZE(scratch_path("lacking")), 0);
    assert_null(strstr(child_message(), words));
    scratch_write("lacking/ckpt-9/config.json", text, (size_t)snprintf(text, sizeof text, config, "shc", 4));
    assert_int_equal(ANALYZE(scratch_path("lacking")), 0);
    assert_holds(child_message(), words);
}

/* Of a folder, the runs in it, numbers in their names by value; where there is nothing, what was looked for. */
UNIT_TEST_BETWEEN(NULL, a_folder_of_runs_stands_for_them, clean) {
    make_folder("all");
    make_folder("all/other");
    make_run("all/shc-10");
    make_run("all/shc-2");
    assert_int_equal(ANALYZE(scratch_path("all")), 0);
    const char *page = read_out("report.html");
    const char *second = strstr(page, "<td>shc-2</td>"), *tenth = strstr(page, "<td>shc-10</td>");
    assert_true(second && tenth && second < tenth);
    assert_null(strstr(page, "<td>other</td>"));
    clean(state);
    assert_int_equal(ANALYZE(scratch_path("all/other")), 1);
    assert_holds(child_message(), "all/other: no run is here: neither this folder nor one in it has metrics.jsonl");
    make_folder("mute");
    scratch_write("mute/metrics.jsonl", "", 0);
    assert_int_equal(ANALYZE(scratch_path("mute")), 1);
    assert_holds(child_message(), "there is nothing to show: looked for lines of metrics.jsonl");
    assert_false(files_exist(scratch_path("out/report.html")));
}

/* A folder of evaluations of documents alone is a run, unless runs are in it. */
UNIT_TEST_BETWEEN(NULL, evaluations_of_documents_are_a_run, clean) {
    static const char evaluation[] = "{\"word_perplexity\": 123.456}";
    make_folder("documents");
    scratch_write("documents/eval-wiki.json", evaluation, strlen(evaluation));
    assert_int_equal(ANALYZE(scratch_path("documents")), 0);
    const char *page = read_out("report.html");
    assert_holds(page, "<td>documents</td>");
    assert_holds(page, "<td>123.46</td>");
    make_run("documents/inner");
    assert_int_equal(ANALYZE(scratch_path("documents")), 0);
    page = read_out("report.html");
    assert_holds(page, "<td>inner</td>");
    assert_null(strstr(page, "<td>documents</td>"));
}

/* Columns are those that some run has numbers for. */
UNIT_TEST_BETWEEN(NULL, tasks_have_a_table, clean) {
    static const char answers[] =
        "{\"task\": \"piqa\", \"acc\": 0.625, \"acc_stderr\": 0.03125, \"acc_norm\": 0.75}",
                      words[] = "{\"task\": \"lambada\", \"acc\": 0.5, \"perplexity\": 12.25}";
    make_folder("answers");
    scratch_write("answers/eval-PIQA.json", answers, strlen(answers));
    scratch_write("answers/eval-words.json", words, strlen(words));
    assert_int_equal(ANALYZE(scratch_path("answers")), 0);
    const char *page = read_out("report.html");
    assert_holds(page, "<h2>Downstream tasks</h2>");
    assert_holds(page, ">PIQA</button></th><th><button type=\"button\">&plusmn;</button></th><th><button "
                       "type=\"button\">acc_norm</button></th><");
    assert_holds(page, ">words</button></th><th><button type=\"button\">perplexity</button></th><");
    assert_holds(page, "<td>0.6250</td><td>0.0312</td><td>0.7500</td><");
    assert_holds(page, "<td>0.5000</td><td>12.25</td><");
    assert_null(strstr(page, "<h2>Perplexity of documents</h2>"));
}

/* Those of a folder, whatever the order in which the file system lists it, and whichever run has them. */
UNIT_TEST_BETWEEN(NULL, tasks_and_runs_are_in_order, clean) {
    static const char *const files[] = {"tasks/run-10/eval-ptb.json", "tasks/run-2/eval-wiki-9.json",
                                        "tasks/run-10/eval-wiki-10.json", "tasks/run-2/eval-arc.json",
                                        "tasks/run-10/eval-piqa.json"};
    static const char *const wanted[] = {">arc<",     ">piqa<",         ">ptb<",          ">wiki-9<",
                                         ">wiki-10<", "<td>run-2</td>", "<td>run-10</td>"};
    make_folder("tasks");
    make_folder("tasks/run-10");
    make_folder("tasks/run-2");
    for (size_t i = 0; i < COUNT(files); i++) {
        scratch_write(files[i], "{\"task\": \"piqa\", \"acc\": 0.5}", 28);
    }
    assert_int_equal(ANALYZE(scratch_path("tasks")), 0);
    const char *at = strstr(read_out("report.html"), "<h2>Downstream tasks</h2>");
    for (size_t i = 0; i < COUNT(wanted); i++) {
        assert_non_null(at);
        at = strstr(at, wanted[i]);
    }
    assert_non_null(at);
}

/* Waits until the report holds a text, for half a minute, which is much longer than it takes. */
static void await_report(pid_t child, const char *part) {
    for (int i = 0; i < 600; i++) {
        size_t bytes;
        char *page = scratch_read(scratch_path("out/report.html"), &bytes);
        const bool holds = page && strstr(page, part);
        free(page);
        if (holds) {
            return;
        }
        usleep(50000);
    }
    kill(child, SIGINT);
    const int status = child_finish_within(child, 30);
    fail_msg("the report has no '%s' (status %d): %s", part, status, child_message());
}

/* --watch waits for runs whose folders are not there or are empty, and for what will be in them. */
UNIT_TEST_BETWEEN(NULL, watching_begins_before_the_run, clean) {
    make_folder("empty");
    const char *out = scratch_path("out"), *folder = scratch_path("new"), *empty = scratch_path("empty");
    const char *const arguments[] = {HC_PROGRAMS "/hc_analyze", "--out", out, "--watch", "1", folder, empty, NULL};
    assert_int_equal(ANALYZE(folder), 1);
    const pid_t child = child_start(CHILD_UNLIMITED, arguments);
    await_report(child, "</html>");
    make_folder("new");
    scratch_write("new/metrics.jsonl", "", 0);
    await_report(child, "<td>new</td>");
    const char line[] = "{\"iter\":0,\"loss\":4.25}\n";
    scratch_write("new/metrics.jsonl", line, strlen(line));
    await_report(child, "<td>4.2500</td>");
    kill(child, SIGINT);
    assert_true(child_finish_within(child, 30) >= 0);
    assert_holds(child_message(), "new: it is not there yet");
    assert_holds(child_message(), "empty: no run is here yet");
}

UNIT_TEST_BETWEEN(NULL, without_gnuplot_there_are_numbers, clean) {
    char *path = strdup(getenv("PATH"));
    make_run("three");
    setenv("PATH", "/nowhere", 1);
    const int status = ANALYZE(scratch_path("three"));
    setenv("PATH", path, 1);
    free(path);
    assert_int_equal(status, 1);
    assert_holds(child_message(), "gnuplot-nox");
    read_out("analysis.json");
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
