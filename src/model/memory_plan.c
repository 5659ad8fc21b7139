#include "src/model/memory_plan.h"
#include "runtime/system/error.h"
#include "runtime/system/message.h"
#include <stdlib.h>
#include <string.h>

struct memory_item {
    struct buffer buffer;
    const char *group;
    uint64_t bytes;
    bool elsewhere; /* allocated by others */
    enum element_type type;
};

/* Notes the failure and stands in for the item when the plan itself fails, so that callers need no check each. */
static struct memory_item *fail(struct memory_plan *plan) {
    static struct memory_item none;
    plan->failed = true;
    return &none;
}

static struct memory_item *add(struct memory_plan *plan, const char *group, uint64_t elements, size_t size) {
    uint64_t bytes, total;
    if (__builtin_mul_overflow(elements, (uint64_t)size, &bytes) ||
        __builtin_add_overflow(plan->total_bytes, bytes, &total)) {
        return fail(plan);
    }
    if (plan->count == plan->capacity) {
        const size_t capacity = plan->capacity ? 2 * plan->capacity : 64;
        struct memory_item **items = realloc(plan->items, capacity * sizeof *items);
        if (!items) {
            return fail(plan);
        }
        plan->items = items;
        plan->capacity = capacity;
    }
    struct memory_item *item = calloc(1, sizeof *item);
    if (!item) {
        return fail(plan);
    }
    *item = (struct memory_item){.group = group, .bytes = bytes};
    plan->items[plan->count++] = item;
    plan->total_bytes = total;
    return item;
}

static struct memory_item *add_buffer(struct memory_plan *plan, const char *group, uint64_t elements,
                                      enum element_type type) {
    struct memory_item *item = add(plan, group, elements, element_size(type));
    if (item->bytes > plan->largest_bytes) {
        plan->largest_bytes = item->bytes;
        plan->largest_group = group;
    }
    item->type = type;
    return item;
}

struct buffer *memory_plan_add(struct memory_plan *plan, const char *group, uint64_t elements,
                               enum element_type type) {
    return &add_buffer(plan, group, elements, type)->buffer;
}

void memory_plan_count_buffer(struct memory_plan *plan, const char *group, uint64_t elements,
                              enum element_type type) {
    add_buffer(plan, group, elements, type)->elsewhere = true;
}

void memory_plan_count(struct memory_plan *plan, const char *group, uint64_t bytes) {
    if (bytes) {
        add(plan, group, bytes, 1)->elsewhere = true;
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
            message_print(file, "  %-28s %12s\n", group, memory_text(bytes, text));
        }
    }
    message_print(file, "  %-28s %12s\n", "in all", memory_text(plan->total_bytes, text));
}

static int create(struct compute *compute, struct memory_item *item) {
    return item->buffer.shareable ? buffer_create_shareable(compute, &item->buffer, item->bytes)
                                  : buffer_create(compute, &item->buffer, item->bytes);
}

int memory_plan_allocate(struct memory_plan *plan, struct compute *compute) {
    for (size_t i = 0; i < plan->count; i++) {
        char text[16];
        struct memory_item *item = plan->items[i];
        if (!item->elsewhere && create(compute, item)) {
            return error_prefix("cannot allocate %s for the %s", memory_text(item->bytes, text), item->group);
        }
        item->buffer.type = item->type;
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
