#include "src/analysis/comparison.h"
#include "runtime/system/distribution.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/analysis/runs.h"
#include "src/variants/residual.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What all of it is about. */
struct comparison {
    const json_t *runs;
    json_t *variants;
    double *values; /* owned: [runs], for sums */
};

static const char *const losses[][2] = {{"final", "record.final.val_loss"}, {"best", "record.final.best_val_loss"}};
enum { LOSSES = COUNT(losses) };

/* ---- reading */

static const json_t *run_at(const json_t *runs, const json_t *indices, size_t i) {
    return json_array_get(runs, (size_t)json_integer_value(json_array_get(indices, i)));
}

static const json_t *settings_of(const json_t *run) {
    return run_member(run, "record.settings");
}

/* False where a seed is not known. */
static bool same_seed(const json_t *a, const json_t *b) {
    const json_t *seed = run_member(a, "record.settings.seed");
    return seed && json_equal(seed, run_member(b, "record.settings.seed"));
}

/* What a run's evaluation batches depend on; runs of versions without the setting have batches by seed. */
static const char *batches_of(const json_t *run) {
    const char *batches = json_string_value(run_member(run, "record.settings.eval_batches"));
    return batches ? batches : "by_seed";
}

/* ---- a variant */

static json_t *estimate(const double *values, size_t count) {
    const struct mean_interval interval = mean_interval_of(values, count);
    json_t *json = json_object();
    if (count > 0) {
        json_object_set_new(json, "mean", json_real(interval.mean));
    }
    if (count > 1) {
        json_object_set_new(json, "deviation", json_real(interval.deviation));
        json_object_set_new(json, "half_width", json_real(interval.half_width));
    }
    return json;
}

/* Why a run is left out of its variant, whose last evaluation is at `iteration`; NULL: it is not. */
static const char *find_fault(const struct comparison *comparison, const json_t *kept, const json_t *run,
                              double iteration) {
    if (!isfinite(run_number(run, "record.final.val_loss"))) {
        return "it has no validation loss at its end";
    }
    if (run_number(run, "record.final.val_iter") < iteration) {
        return "its last evaluation is at an earlier iteration";
    }
    for (size_t i = 0; i < json_array_size(kept); i++) {
        if (same_seed(run, run_at(comparison->runs, kept, i))) {
            return "another run has its seed";
        }
    }
    return NULL;
}

/* Sorts the runs of a kind into those that count and those that are left out. */
static void take_runs(const struct comparison *comparison, size_t kind, json_t *variant) {
    json_t *kept = json_object_get(variant, "runs"), *left_out = json_object_get(variant, "left_out");
    const double iteration = run_number(variant, "iter");
    const json_t *run;
    size_t i;
    json_array_foreach(comparison->runs, i, run) {
        if (run_repeats(comparison->runs, i, kind)) {
            const char *why = find_fault(comparison, kept, run, iteration);
            json_array_append_new(why ? left_out : kept,
                                  why ? json_pack("{s:I, s:s}", "run", (json_int_t)i, "why", why)
                                      : json_integer((json_int_t)i));
        }
    }
}

static double last_evaluation(const json_t *runs, size_t kind) {
    double last = -1.0;
    for (size_t i = 0; i < json_array_size(runs); i++) {
        const double iteration = run_number(json_array_get(runs, i), "record.final.val_iter");
        last = run_repeats(runs, i, kind) && iteration > last ? iteration : last;
    }
    return last;
}

/* Nothing where no run of the kind has a validation loss. */
static void add_variant(struct comparison *comparison, size_t kind) {
    const json_t *run = json_array_get(comparison->runs, kind);
    const double iteration = last_evaluation(comparison->runs, kind), streams = run_streams(run);
    if (iteration < 0.0) {
        return;
    }
    json_t *variant = json_pack("{s:s, s:I, s:I, s:[], s:[], s:{}}", "residual", run_variant(run), "kind",
                                (json_int_t)kind, "iter", (json_int_t)iteration, "runs", "left_out", "differences");
    json_array_append_new(comparison->variants, variant);
    json_object_set(variant, "learning_rate", json_object_get(settings_of(run), "learning_rate"));
    if (streams >= 1.0 && streams <= RESIDUAL_MAX_STREAMS) {
        json_object_set_new(variant, "n_streams", json_integer((json_int_t)streams));
    }
    take_runs(comparison, kind, variant);
    const json_t *kept = json_object_get(variant, "runs");
    for (size_t loss = 0; loss < LOSSES; loss++) {
        for (size_t i = 0; i < json_array_size(kept); i++) {
            comparison->values[i] = run_number(run_at(comparison->runs, kept, i), losses[loss][1]);
        }
        json_object_set_new(variant, losses[loss][0], estimate(comparison->values, json_array_size(kept)));
    }
}

/* ---- differences */

/* What follows from a setting that differs. */
enum difference { UNIMPORTANT, NOTED, BARRING };

static bool is_listed(const char *name, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* UNIMPORTANT: it is of the residual connection, which is compared, or training does the same with either value.
 * NOTED: a reader has to know of it, since variants need learning rates of their own, and others change losses by
 * rounding. BARRING: all others, which forbid a comparison. */
static enum difference kind_of(const char *name) {
    static const char *const unimportant[] = {
        "seed",       "residual",        "n_streams",           "stream_expand",   "stream_reduce",
        "read_delay", "log_interval",    "statistics_interval", "rank_timeout",    "checkpoint_interval",
        "recompute",  "shard_optimizer", "keep_checkpoints",    "allreduce_bucket"};
    static const char *const noted[] = {"learning_rate", "min_lr",          "dtype",        "device",
                                        "gemm",          "allreduce_dtype", "eval_interval"};
    return is_listed(name, unimportant, COUNT(unimportant)) ||
                   residual_setting_at(residual_setting_find(name), NULL)
               ? UNIMPORTANT
           : is_listed(name, noted, COUNT(noted)) ? NOTED
                                                  : BARRING;
}

/* Whether a setting's values mean different things. eval_iters do not where evaluations are of the whole split. */
static bool differs(const json_t *run, const json_t *other, const char *name) {
    const json_t *ours = json_object_get(settings_of(run), name);
    if (strcmp(name, "eval_batches") == 0) {
        return strcmp(batches_of(run), batches_of(other)) != 0;
    }
    if (strcmp(name, "eval_iters") == 0 && strcmp(batches_of(run), "whole") == 0 &&
        strcmp(batches_of(other), "whole") == 0) {
        return false;
    }
    return !json_equal(ours, json_object_get(settings_of(other), name));
}

/* The number of settings that differ, those that forbid a comparison many times. The names of those, and of those
 * that a reader has to know of, are appended to lists, which may be NULL. */
static size_t contrast(const json_t *run, const json_t *other, json_t *barring, json_t *noted) {
    enum { MUCH = 1 << 16 };
    json_t *names = json_object(), *value;
    const char *name;
    size_t distance = 0;
    json_object_update(names, (json_t *)settings_of(run));
    json_object_update_missing(names, (json_t *)settings_of(other));
    json_object_foreach(names, name, value) {
        if (differs(run, other, name)) {
            const enum difference kind = kind_of(name);
            distance += kind == BARRING ? MUCH + 1 : 1;
            json_array_append_new(kind == BARRING ? barring : kind == NOTED ? noted : NULL, json_string(name));
        }
    }
    json_decref(names);
    return distance;
}

static const json_t *first_run(const struct comparison *comparison, const json_t *variant) {
    return json_array_get(comparison->runs, (size_t)run_number(variant, "kind"));
}

/* The nearest variant of this name; NULL: there is none. */
static const json_t *find_baseline(const struct comparison *comparison, const json_t *variant, const char *name) {
    const json_t *best = NULL, *other;
    size_t least = SIZE_MAX, i;
    json_array_foreach(comparison->variants, i, other) {
        if (other != variant && strcmp(json_string_value(json_object_get(other, "residual")), name) == 0) {
            const size_t distance =
                contrast(first_run(comparison, variant), first_run(comparison, other), NULL, NULL);
            best = distance < least ? other : best;
            least = distance < least ? distance : least;
        }
    }
    return best;
}

/* A setting's value as a page takes it. Valid as run_plain. */
static const char *value_text(const json_t *run, const char *name) {
    const json_t *value = json_object_get(settings_of(run), name);
    if (!value || json_is_string(value)) {
        return value ? run_plain(json_string_value(value)) : "none";
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    const char *plain = run_plain(text);
    free(text);
    return plain;
}

/* "rc-1 has another n_layer (12 instead of 24), another n_embd (...)" */
static json_t *describe(const json_t *run, const json_t *base, const json_t *names) {
    enum { MOST_NAMES = 4 };
    const size_t count = json_array_size(names);
    char text[4096];
    size_t length = (size_t)snprintf(text, sizeof text, "%s has ", run_name(base));
    for (size_t i = 0; i < count && i < MOST_NAMES; i++) {
        const char *name = json_string_value(json_array_get(names, i));
        length +=
            (size_t)snprintf(text + length, sizeof text - length, "%sanother %s (%s instead of %s)",
                             i > 0 ? ", " : "", run_plain(name), value_text(base, name), value_text(run, name));
    }
    if (count > MOST_NAMES) {
        snprintf(text + length, sizeof text - length, ", and %zu more settings", count - MOST_NAMES);
    }
    return json_string(text);
}

/* The losses' differences of runs with the same seed; their number. */
static size_t subtract(const struct comparison *comparison, const json_t *variant, const json_t *base,
                       const char *loss) {
    const json_t *ours = json_object_get(variant, "runs"), *theirs = json_object_get(base, "runs");
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(ours); i++) {
        for (size_t j = 0; j < json_array_size(theirs); j++) {
            const json_t *run = run_at(comparison->runs, ours, i), *other = run_at(comparison->runs, theirs, j);
            if (same_seed(run, other)) {
                comparison->values[count++] = run_number(run, loss) - run_number(other, loss);
            }
        }
    }
    return count;
}

/* The means of the differences, or why there are none. */
static void add_numbers(const struct comparison *comparison, const json_t *variant, const json_t *base,
                        json_t *difference) {
    if (run_number(variant, "iter") != run_number(base, "iter")) {
        json_object_set_new(difference, "why", json_string("its last evaluation is at another iteration"));
        return;
    }
    for (size_t loss = 0; loss < LOSSES; loss++) {
        const size_t pairs = subtract(comparison, variant, base, losses[loss][1]);
        json_object_set_new(difference, "pairs", json_integer((json_int_t)pairs));
        json_object_set_new(difference, losses[loss][0], estimate(comparison->values, pairs));
    }
    if (run_number(difference, "pairs") == 0.0) {
        json_object_set_new(difference, "why", json_string("no runs of the same seed"));
    }
}

static void add_difference(const struct comparison *comparison, json_t *variant, const char *name) {
    const json_t *base = find_baseline(comparison, variant, name), *run = first_run(comparison, variant);
    if (!base || strcmp(json_string_value(json_object_get(variant, "residual")), name) == 0) {
        return;
    }
    json_t *difference = json_object(), *barring = json_array(), *noted = json_array();
    const json_t *other = first_run(comparison, base);
    contrast(run, other, barring, noted);
    json_object_set_new(json_object_get(variant, "differences"), name, difference);
    json_object_set(difference, "kind", json_object_get(base, "kind"));
    if (json_array_size(barring) > 0) {
        json_object_set_new(difference, "why", describe(run, other, barring));
    } else {
        add_numbers(comparison, variant, base, difference);
        if (json_array_size(noted) > 0) {
            json_object_set_new(difference, "settings", describe(run, other, noted));
        }
    }
    json_decref(barring);
    json_decref(noted);
}

/* ---- all of it */

static int add_baseline(const struct comparison *comparison, const char *name) {
    json_t *variant;
    size_t i;
    if (!residual_find(name)) {
        return error_set("--baselines: '%s' is no residual variant; hc_train --list-residuals has them", name);
    }
    json_array_foreach(comparison->variants, i, variant) {
        add_difference(comparison, variant, name);
    }
    return 0;
}

json_t *comparison_make(const json_t *runs, const char *baselines) {
    const size_t count = json_array_size(runs);
    struct comparison comparison = {runs, json_array(), memory_allocate(count, sizeof(double))};
    char *names = memory_string(baselines), *rest = NULL;
    bool by_seed = false;
    int result = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *run = json_array_get(runs, i);
        by_seed |= isfinite(run_number(run, losses[0][1])) && strcmp(batches_of(run), "by_seed") == 0;
        if (run_is_first(runs, i)) {
            add_variant(&comparison, i);
        }
    }
    for (char *name = strtok_r(names, ", ", &rest); name && result == 0; name = strtok_r(NULL, ", ", &rest)) {
        result = add_baseline(&comparison, name);
    }
    free(names);
    free(comparison.values);
    if (result) {
        json_decref(comparison.variants);
        return NULL;
    }
    return json_pack("{s:b, s:o}", "batches_by_seed", by_seed, "variants", comparison.variants);
}
