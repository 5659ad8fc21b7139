#include "src/analysis/seed_means.h"
#include "src/analysis/figure.h"
#include <math.h>
#include <string.h>

/* How a number over runs comes from those of runs. */
enum merge { MERGE_MEAN, MERGE_LEAST, MERGE_MOST };

static enum merge merge_of(const char *key) {
    return strcmp(key, "min") == 0 || strcmp(key, "smallest_entry") == 0                             ? MERGE_LEAST
           : strcmp(key, "max") == 0 || strcmp(key, "largest_entry") == 0 || strstr(key, "norm_max") ? MERGE_MOST
                                                                                                     : MERGE_MEAN;
}

static json_t *merge_numbers(const json_t *values, enum merge merge) {
    double sum = 0.0, least = HUGE_VAL, most = -HUGE_VAL;
    const json_t *value;
    size_t numbers = 0, i;
    json_array_foreach(values, i, value) {
        if (json_is_number(value)) {
            sum += json_number_value(value);
            least = fmin(least, json_number_value(value));
            most = fmax(most, json_number_value(value));
            numbers++;
        }
    }
    return numbers == 0          ? json_null()
           : merge == MERGE_MEAN ? json_real(sum / (double)numbers)
                                 : json_real(merge == MERGE_LEAST ? least : most);
}

static json_t *merge_values(const json_t *values, enum merge merge);

/* The members of this name, or at this place where it is NULL, of all values. */
static json_t *merge_members(const json_t *values, const char *key, size_t place, enum merge merge) {
    json_t *members = json_array();
    const json_t *value;
    size_t i;
    json_array_foreach(values, i, value) {
        json_array_append(members, key ? json_object_get(value, key) : json_array_get(value, place));
    }
    json_t *merged = merge_values(members, merge);
    json_decref(members);
    return merged;
}

/* What stands at one place in the runs becomes one value of the same form; a new reference. */
static json_t *merge_values(const json_t *values, enum merge merge) {
    const json_t *first = json_array_get(values, 0);
    const char *key;
    json_t *merged, *member;
    if (json_is_object(first)) {
        merged = json_object();
        json_object_foreach((json_t *)first, key, member) {
            json_object_set_new(merged, key, merge_members(values, key, 0, merge_of(key)));
        }
        return merged;
    }
    if (!json_is_array(first)) {
        return json_is_string(first) ? json_incref((json_t *)first) : merge_numbers(values, merge);
    }
    merged = json_array();
    for (size_t i = 0; i < json_array_size(first); i++) {
        json_array_append_new(merged, merge_members(values, NULL, i, merge));
    }
    return merged;
}

/* Whether statistics and checkpoints of two runs are of the same iterations. */
static bool same_iterations(const json_t *a, const json_t *b) {
    const json_t *first = json_object_get(a, "checkpoints"), *second = json_object_get(b, "checkpoints");
    bool same = json_array_size(first) == json_array_size(second) &&
                json_equal(figure_column(a, "statistics", "iter"), figure_column(b, "statistics", "iter"));
    for (size_t i = 0; same && i < json_array_size(first); i++) {
        same = json_equal(json_object_get(json_array_get(first, i), "iter"),
                          json_object_get(json_array_get(second, i), "iter"));
    }
    return same;
}

/* One run of the kind of run `kind`. */
static json_t *merge_kind(const json_t *runs, size_t kind) {
    json_t *first = json_array_get(runs, kind), *same = json_array(), *record = json_object(), *run;
    size_t repeats = 0, i;
    json_array_foreach(runs, i, run) {
        const bool repeat = figure_repeats(runs, i, kind);
        repeats += repeat;
        if (repeat && same_iterations(first, run)) {
            json_array_append_new(same, json_pack("{s:O?, s:O?}", "statistics",
                                                  json_object_get(json_object_get(run, "record"), "statistics"),
                                                  "checkpoints", json_object_get(run, "checkpoints")));
        }
    }
    json_t *merged = json_copy(first);
    if (repeats > 1) {
        json_t *means = merge_values(same, MERGE_MEAN);
        json_object_update(record, json_object_get(first, "record"));
        json_object_set(record, "statistics", json_object_get(means, "statistics"));
        json_object_set(merged, "record", record);
        json_object_set(merged, "checkpoints", json_object_get(means, "checkpoints"));
        json_object_set_new(merged, "name", json_string(figure_kind_name(runs, kind, json_array_size(same))));
        json_decref(means);
    }
    json_decref(record);
    json_decref(same);
    return merged;
}

json_t *seed_means(const json_t *runs) {
    json_t *means = json_array();
    for (size_t i = 0; i < json_array_size(runs); i++) {
        if (figure_is_first(runs, i)) {
            json_array_append_new(means, merge_kind(runs, i));
        }
    }
    return means;
}
