#include "src/model/memory_plan.h"
#include "runtime/system/error.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct memory_item {
    struct buffer buffer;
    const char *group;
    uint64_t bytes;
    bool elsewhere; /* allocated by others */
    enum element_type type;
};

/* Stands in when the plan itself fails, so that callers need no check each. */
static struct buffer no_buffer;

/* NULL when out of memory for the plan itself or beyond 64 bits. */
static struct memory_item *add_item(struct memory_plan *plan, const char *group, uint64_t bytes) {
    uint64_t total;
    if (plan->count == plan->capacity) {
        const size_t capacity = plan->capacity ? 2 * plan->capacity : 64;
        struct memory_item **items = realloc(plan->items, capacity * sizeof *items);
        if (!items) {
            return NULL;
        }
        plan->items = items;
        plan->capacity = capacity;
    }
    struct memory_item *item = calloc(1, sizeof *item);
    if (!item || __builtin_add_overflow(plan->total_bytes, bytes, &total)) {
        free(item);
        return NULL;
    }
    *item = (struct memory_item){.group = group, .bytes = bytes};
    plan->items[plan->count++] = item;
    plan->total_bytes = total;
    return item;
}

static void note_largest(struct memory_plan *plan, const char *group, uint64_t bytes) {
    if (bytes > plan->largest_bytes) {
        plan->largest_bytes = bytes;
        plan->largest_group = group;
    }
}

static struct buffer *add(struct memory_plan *plan, const char *group, uint64_t elements, size_t element_bytes,
                          enum element_type type) {
    uint64_t bytes;
    struct memory_item *item =
        __builtin_mul_overflow(elements, (uint64_t)element_bytes, &bytes) ? NULL : add_item(plan, group, bytes);
    if (!item) {
        plan->failed = true;
        return &no_buffer;
    }
    item->type = type;
    note_largest(plan, group, bytes);
    return &item->buffer;
}

struct buffer *memory_plan_add(struct memory_plan *plan, const char *group, uint64_t elements,
                               size_t element_bytes) {
    return add(plan, group, elements, element_bytes, ELEMENT_FP32);
}

struct buffer *memory_plan_add_typed(struct memory_plan *plan, const char *group, uint64_t elements,
                                     enum element_type type) {
    return add(plan, group, elements, element_size(type), type);
}

void memory_plan_count_buffer(struct memory_plan *plan, const char *group, uint64_t elements,
                              size_t element_bytes) {
    uint64_t bytes;
    if (__builtin_mul_overflow(elements, (uint64_t)element_bytes, &bytes)) {
        plan->failed = true;
        return;
    }
    memory_plan_count(plan, group, bytes);
    note_largest(plan, group, bytes);
}

void memory_plan_count(struct memory_plan *plan, const char *group, uint64_t bytes) {
    struct memory_item *item = bytes ? add_item(plan, group, bytes) : NULL;
    plan->failed |= bytes && !item;
    if (item) {
        item->elsewhere = true;
    }
}

const char *memory_text(uint64_t bytes, char text[16]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024.0 && unit < 5) {
        value /= 1024.0;
        unit++;
    }
    snprintf(text, 16, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return text;
}

int memory_plan_check(const struct memory_plan *plan, const struct device *device) {
    char needed[16], available[16];
    if (plan->failed) {
        return error_set("the model's size is beyond what can be counted: choose smaller dimensions");
    }
    if (plan->total_bytes > device->memory_bytes) {
        return error_set("not enough memory: this run needs %s and %s has %s; choose a smaller batch_size, "
                         "block_size, n_streams or model",
                         memory_text(plan->total_bytes, needed), device->name,
                         memory_text(device->memory_bytes, available));
    }
    if (plan->largest_bytes > device->max_buffer_bytes) {
        return error_set("a buffer is too large: the %s need one of %s and %s allows %s at most; choose a smaller "
                         "batch_size, n_streams or model",
                         plan->largest_group, memory_text(plan->largest_bytes, needed), device->name,
                         memory_text(device->max_buffer_bytes, available));
    }
    return 0;
}

void memory_plan_print(const struct memory_plan *plan, FILE *file) {
    char text[16];
    for (size_t i = 0; i < plan->count; i++) {
        const char *group = plan->items[i]->group;
        uint64_t bytes = 0;
        bool seen = false;
        for (size_t j = 0; j < plan->count; j++) {
            if (strcmp(plan->items[j]->group, group) == 0) {
                seen |= j < i;
                bytes += plan->items[j]->bytes;
            }
        }
        if (!seen) {
            fprintf(file, "  %-28s %12s\n", group, memory_text(bytes, text));
        }
    }
    fprintf(file, "  %-28s %12s\n", "in all", memory_text(plan->total_bytes, text));
}

int memory_plan_allocate(struct memory_plan *plan, struct compute *compute) {
    for (size_t i = 0; i < plan->count; i++) {
        char text[16];
        if (!plan->items[i]->elsewhere && buffer_create(compute, &plan->items[i]->buffer, plan->items[i]->bytes)) {
            return error_prefix("cannot allocate %s for the %s", memory_text(plan->items[i]->bytes, text),
                                plan->items[i]->group);
        }
        plan->items[i]->buffer.type = plan->items[i]->type;
    }
    return 0;
}

void memory_plan_release(struct memory_plan *plan, struct compute *compute) {
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->items[i]->buffer.memory) {
            buffer_release(compute, &plan->items[i]->buffer);
        }
        free(plan->items[i]);
    }
    free(plan->items);
    memset(plan, 0, sizeof *plan);
}
