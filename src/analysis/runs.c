#include "src/analysis/runs.h"
#include "runtime/system/utf8.h"
#include "src/variants/residual.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values */

const json_t *run_member(const json_t *object, const char *path) {
    char key[64];
    while (object) {
        const size_t length = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        object = json_object_get(object, key);
        if (path[length] == '\0') {
            break;
        }
        path += length + 1;
    }
    return object;
}

double run_number(const json_t *object, const char *path) {
    const json_t *member = run_member(object, path);
    return json_is_number(member) ? json_number_value(member) : (double)NAN;
}

const char *run_text(const json_t *object, const char *path) {
    return run_plain(json_string_value(run_member(object, path)));
}

double run_element(const json_t *array, size_t index) {
    return json_number_value(json_array_get(array, index));
}

const json_t *run_last(const json_t *array) {
    return json_array_get(array, json_array_size(array) - 1); /* jansson refuses SIZE_MAX */
}

/* ---- texts */

/* One of four buffers in turn. */
static char *text_buffer(size_t *size) {
    static char texts[4][160];
    static unsigned next;
    *size = sizeof texts[0];
    return texts[next++ % 4];
}

/* Letters of any language, but no marks that direct how text is laid out. */
static bool is_plain(uint32_t character) {
    if (character < 0x80) {
        return (character >= '0' && character <= '9') || (character >= 'A' && character <= 'Z') ||
               (character >= 'a' && character <= 'z') || (character > 0 && strchr("._-+=()/, ", (int)character));
    }
    return !utf8_is_control(character);
}

const char *run_plain(const char *text) {
    size_t size, length = 0, bytes;
    uint32_t character;
    char *plain = text_buffer(&size);
    for (const char *at = text ? text : ""; *at; at += bytes) {
        bytes = utf8_decode(at, strlen(at), &character); /* not 0: jansson's strings are UTF-8 */
        const bool kept = is_plain(character);
        const size_t more = kept ? bytes : 1;
        if (length + more >= size) {
            break;
        }
        memcpy(plain + length, kept ? at : "?", more);
        length += more;
    }
    plain[length] = '\0';
    return plain;
}

/* ---- one run */

const char *run_name(const json_t *run) {
    return run_text(run, "name");
}

/* A value of its newest checkpoint's config, or else, of a run that has none yet, of its settings. */
static const json_t *configured(const json_t *run, const char *key) {
    const json_t *value = json_object_get(json_object_get(run, "config"), key);
    return value ? value : json_object_get(run_member(run, "record.settings"), key);
}

const char *run_variant(const json_t *run) {
    const char *name = json_string_value(configured(run, "residual"));
    const struct residual_variant *known = name ? residual_find(name) : NULL;
    return known ? known->name : "";
}

double run_streams(const json_t *run) {
    const struct residual_variant *known = residual_find(run_variant(run));
    const json_t *streams = configured(run, "n_streams");
    return known && residual_is_single(known) ? 1.0
           : json_is_number(streams)          ? json_number_value(streams)
                                              : (double)NAN;
}

const json_t *run_h(const json_t *run) {
    return json_object_get(run_last(json_object_get(run, "checkpoints")), "h");
}

const json_t *run_values(const json_t *run) {
    return json_object_get(run_last(json_object_get(run, "checkpoints")), "value_means");
}

/* ---- runs that differ in the seed alone */

static json_int_t kind_of(const json_t *runs, size_t index) {
    const json_t *kind = json_object_get(json_array_get(runs, index), "kind");
    return json_is_integer(kind) ? json_integer_value(kind) : (json_int_t)index;
}

bool run_is_first(const json_t *runs, size_t index) {
    return kind_of(runs, index) == (json_int_t)index;
}

bool run_repeats(const json_t *runs, size_t index, size_t first) {
    return kind_of(runs, index) == kind_of(runs, first);
}

void run_colour(const json_t *runs, const json_t *run, char colour[8]) {
    const char *variant = run_variant(run);
    const struct residual_variant *known = residual_find(variant);
    const char *base = known ? known->colour : "#555555"; /* a run of a program that has other variants */
    const unsigned long rgb = strtoul(base + 1, NULL, 16);
    const json_int_t kind = json_integer_value(json_object_get(run, "kind"));
    double place = 0.0, last = -1.0; /* among the kinds of this variant; of the last of them */
    for (size_t i = 0; i < json_array_size(runs); i++) {
        if (run_is_first(runs, i) && strcmp(run_variant(json_array_get(runs, i)), variant) == 0) {
            place += (json_int_t)i < kind;
            last++;
        }
    }
    const double shade = last > 0.0 ? 0.9 * place / last - 0.3 : 0.0; /* -1 is black, 1 is white */
    unsigned long shaded = 0;
    for (int bits = 16; bits >= 0; bits -= 8) {
        const double part = (double)(rgb >> bits & 255);
        shaded = shaded << 8 | (unsigned long)(part + shade * (shade < 0.0 ? part : 255.0 - part));
    }
    snprintf(colour, 8, "#%06lx", shaded & 0xffffff);
}

const char *run_kind_label(const json_t *runs, size_t kind) {
    const char *variant = run_variant(json_array_get(runs, kind));
    bool alone = *variant != '\0';
    for (size_t i = 0; alone && i < json_array_size(runs); i++) {
        alone = run_repeats(runs, i, kind) || strcmp(run_variant(json_array_get(runs, i)), variant) != 0;
    }
    return alone ? variant : run_name(json_array_get(runs, kind));
}

const char *run_kind_name(const json_t *runs, size_t kind, size_t count) {
    const double seed = run_number(json_array_get(runs, kind), "record.settings.seed");
    const char *label = run_kind_label(runs, kind);
    size_t size;
    char *name = text_buffer(&size);
    snprintf(name, size, count > 1 ? "%s (%.0f runs)" : "%s (seed %.0f)", label, count > 1 ? (double)count : seed);
    return name;
}

const char *run_legend(const json_t *runs, size_t index) {
    size_t repeats = 0;
    for (size_t i = 0; i < json_array_size(runs); i++) {
        repeats += run_repeats(runs, i, index);
    }
    return repeats < 2                  ? run_name(json_array_get(runs, index))
           : !run_is_first(runs, index) ? ""
                                        : run_kind_name(runs, index, repeats);
}

/* ---- means over seeds */

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
                json_equal(run_member(a, "record.statistics.iter"), run_member(b, "record.statistics.iter"));
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
        const bool repeat = run_repeats(runs, i, kind);
        repeats += repeat;
        if (repeat && same_iterations(first, run)) {
            json_array_append_new(same,
                                  json_pack("{s:O?, s:O?}", "statistics", run_member(run, "record.statistics"),
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
        json_object_set_new(merged, "name", json_string(run_kind_name(runs, kind, json_array_size(same))));
        json_decref(means);
    }
    json_decref(record);
    json_decref(same);
    return merged;
}

json_t *run_seed_means(const json_t *runs) {
    json_t *means = json_array();
    for (size_t i = 0; i < json_array_size(runs); i++) {
        if (run_is_first(runs, i)) {
            json_array_append_new(means, merge_kind(runs, i));
        }
    }
    return means;
}
