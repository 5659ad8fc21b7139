#include "src/bench/ledger.h"
#include "runtime/system/error.h"
#include "runtime/system/message.h"
#include <stdlib.h>
#include <string.h>

/* ---- adding up */

double ledger_seconds(const struct gpu_model *model, const struct launch_entry *record) {
    const struct gpu_work work = {
        .groups = (double)record->groups,
        .local = (double)record->local,
        .bytes = record->read + record->written,
        .padded_flops = record->padded_flops > record->flops ? record->padded_flops : record->flops,
        .on_matrix_cores = record->on_matrix_cores,
    };
    return record->launches ? gpu_model_seconds(model, &work) : 0.0;
}

static struct ledger_sum sum_of(const struct gpu_model *model, const struct launch_entry *record) {
    return (struct ledger_sum){record->launches,
                               record->waits,
                               record->read,
                               record->written,
                               record->flops,
                               record->padded_flops > record->flops ? record->padded_flops : record->flops,
                               ledger_seconds(model, record)};
}

static void add(struct ledger_sum *to, const struct ledger_sum *from) {
    to->launches += from->launches;
    to->waits += from->waits;
    to->read += from->read;
    to->written += from->written;
    to->flops += from->flops;
    to->padded_flops += from->padded_flops;
    to->seconds += from->seconds;
}

static bool are_alike(const struct launch_entry *a, const struct launch_entry *b) {
    return strcmp(a->name, b->name) == 0 && strcmp(a->module, b->module) == 0 && a->groups == b->groups &&
           a->local == b->local;
}

/* The row that the record belongs to, a new one if need be: there is room for as many as records. */
static struct ledger_row *row_of(struct ledger *ledger, const struct launch_entry *record) {
    for (size_t i = 0; i < ledger->count; i++) {
        if (are_alike(&ledger->rows[i].record, record)) {
            return &ledger->rows[i];
        }
    }
    struct ledger_row *row = &ledger->rows[ledger->count++];
    *row = (struct ledger_row){.record = *record};
    return row;
}

static int by_seconds(const void *a, const void *b) {
    const struct ledger_row *one = a, *other = b;
    return (one->sum.seconds < other->sum.seconds) - (one->sum.seconds > other->sum.seconds);
}

int ledger_create(struct ledger *ledger, const struct gpu_model *model, const struct launch_log *log) {
    *ledger = (struct ledger){.model = model, .rows = calloc(log->count + 1, sizeof *ledger->rows)};
    if (!ledger->rows) {
        return error_set("out of memory for the ledger");
    }
    for (size_t i = 0; i < log->count; i++) {
        const struct launch_entry *record = &log->entries[i];
        const struct ledger_sum sum = sum_of(model, record);
        add(&row_of(ledger, record)->sum, &sum);
        add(&ledger->all, &sum);
        ledger->narrow += record->groups > 0 && record->groups < 2 * (size_t)model->cores;
    }
    qsort(ledger->rows, ledger->count, sizeof *ledger->rows, by_seconds);
    return 0;
}

void ledger_release(struct ledger *ledger) {
    free(ledger->rows);
    ledger->rows = NULL;
}

struct ledger_sum ledger_part(const struct ledger *ledger, const char *part) {
    struct ledger_sum sum = {0};
    for (size_t i = 0; i < ledger->count; i++) {
        if (strcmp(ledger->rows[i].record.module, part) == 0) {
            add(&sum, &ledger->rows[i].sum);
        }
    }
    return sum;
}

/* Whether the row's part was not in a row before. */
static bool begins_part(const struct ledger *ledger, size_t row) {
    for (size_t i = 0; i < row; i++) {
        if (strcmp(ledger->rows[i].record.module, ledger->rows[row].record.module) == 0) {
            return false;
        }
    }
    return true;
}

/* ---- for people */

static void print_head(const char *title, FILE *file) {
    message_print(file, "\n%-46s %8s %5s %11s %11s %9s %7s\n", title, "launches", "waits", "MB", "GFLOP", "ms",
                  "share");
}

static void print_sum(const struct ledger_sum *sum, double whole, FILE *file) {
    message_print(file, " %8zu %5zu %11.1f %11.1f %9.3f %5.1f %%\n", sum->launches, sum->waits,
                  1e-6 * (sum->read + sum->written), 1e-9 * sum->flops, 1e3 * sum->seconds,
                  whole > 0.0 ? 100.0 * sum->seconds / whole : 0.0);
}

void ledger_print(const struct ledger *ledger, const char *title, FILE *file) {
    enum { MOST = 40 };
    print_head(title, file);
    for (size_t i = 0; i < ledger->count; i++) {
        if (begins_part(ledger, i)) {
            const struct ledger_sum sum = ledger_part(ledger, ledger->rows[i].record.module);
            message_print(file, "  %-44s", ledger->rows[i].record.module);
            print_sum(&sum, ledger->all.seconds, file);
        }
    }
    message_print(file, "  %-44s", "in all");
    print_sum(&ledger->all, ledger->all.seconds, file);
    print_head("  kernel                          groups x size", file);
    for (size_t i = 0; i < ledger->count && i < MOST; i++) {
        const struct launch_entry *record = &ledger->rows[i].record;
        message_print(file, "  %-30s %7zu x %4zu", record->name, record->groups, record->local);
        print_sum(&ledger->rows[i].sum, ledger->all.seconds, file);
    }
    if (ledger->count > MOST) {
        message_print(file, "  and %zu more\n", ledger->count - MOST);
    }
}

/* ---- for programs */

static json_t *sum_json(const struct ledger_sum *sum) {
    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "launches", (json_int_t)sum->launches, "waits",
                     (json_int_t)sum->waits, "bytes", sum->read + sum->written, "read", sum->read, "written",
                     sum->written, "flops", sum->flops, "padded_flops", sum->padded_flops, "seconds", sum->seconds);
}

json_t *ledger_totals(const struct ledger *ledger) {
    json_t *json = sum_json(&ledger->all);
    json_object_set_new(json, "narrow", json_integer((json_int_t)ledger->narrow));
    return json;
}

json_t *ledger_parts(const struct ledger *ledger, const char *step) {
    json_t *list = json_array();
    for (size_t i = 0; i < ledger->count; i++) {
        if (begins_part(ledger, i)) {
            const struct ledger_sum sum = ledger_part(ledger, ledger->rows[i].record.module);
            json_t *json = sum_json(&sum);
            json_object_set_new(json, "step", json_string(step));
            json_object_set_new(json, "part", json_string(ledger->rows[i].record.module));
            json_array_append_new(list, json);
        }
    }
    return list;
}

json_t *ledger_kernels(const struct ledger *ledger, const char *step) {
    json_t *list = json_array();
    for (size_t i = 0; i < ledger->count; i++) {
        const struct launch_entry *record = &ledger->rows[i].record;
        json_t *json = sum_json(&ledger->rows[i].sum);
        json_object_set_new(json, "step", json_string(step));
        json_object_set_new(json, "name", json_string(record->name));
        json_object_set_new(json, "part", json_string(record->module));
        json_object_set_new(json, "groups", json_integer((json_int_t)record->groups));
        json_object_set_new(json, "group_size", json_integer((json_int_t)record->local));
        json_object_set_new(json, "on_unit", json_boolean(record->on_matrix_cores));
        json_array_append_new(list, json);
    }
    return list;
}
