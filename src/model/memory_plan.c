#include "src/model/memory_plan.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include <stdlib.h>
#include <string.h>

struct memory_item {
    struct memory_item *next;
    struct buffer buffer;
    const char *group;
    uint64_t bytes;
    bool is_elsewhere; /* allocated by others */
    enum element_type type;
};

static struct memory_item *add(struct memory_plan *plan, const char *group, uint64_t bytes, bool is_elsewhere) {
    struct memory_item *item = memory_zeroed(1, sizeof *item);
    *item = (struct memory_item){.group = group, .bytes = bytes, .is_elsewhere = is_elsewhere};
    *(plan->last ? &plan->last->next : &plan->first) = item;
    plan->last = item;
    if (__builtin_add_overflow(plan->total_bytes, bytes, &plan->total_bytes)) {
        plan->total_bytes = UINT64_MAX; /* which memory_plan_check refuses */
    }
    return item;
}

static struct memory_item *add_buffer(struct memory_plan *plan, const char *group, uint64_t elements,
                                      enum element_type type, bool is_elsewhere) {
    uint64_t bytes;
    if (__builtin_mul_overflow(elements, (uint64_t)element_size(type), &bytes)) {
        bytes = UINT64_MAX;
    }
    if (bytes > plan->largest_bytes) {
        plan->largest_bytes = bytes;
        plan->largest_group = group;
    }
    struct memory_item *item = add(plan, group, bytes, is_elsewhere);
    item->type = type;
    return item;
}

struct buffer *memory_plan_add(struct memory_plan *plan, const char *group, uint64_t elements,
                               enum element_type type) {
    return &add_buffer(plan, group, elements, type, false)->buffer;
}

void memory_plan_count_floats(struct memory_plan *plan, const char *group, uint64_t elements) {
    add_buffer(plan, group, elements, ELEMENT_FP32, true);
}

void memory_plan_count(struct memory_plan *plan, const char *group, uint64_t bytes) {
    if (bytes) {
        add(plan, group, bytes, true);
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
    for (const struct memory_item *item = plan->first; item; item = item->next) {
        const struct memory_item *other = plan->first; /* the first of the same group */
        while (strcmp(other->group, item->group) != 0) {
            other = other->next;
        }
        if (other != item) {
            continue;
        }
        uint64_t bytes = 0;
        for (; other; other = other->next) {
            bytes += strcmp(other->group, item->group) == 0 ? other->bytes : 0;
        }
        message_print(file, "  %-28s %12s\n", item->group, memory_text(bytes, text));
    }
    message_print(file, "  %-28s %12s\n", "in all", memory_text(plan->total_bytes, text));
}

int memory_plan_allocate(struct memory_plan *plan, struct compute *compute) {
    for (struct memory_item *item = plan->first; item; item = item->next) {
        char text[16];
        if (!item->is_elsewhere &&
            buffer_create_shareable(compute, &item->buffer, item->bytes, item->buffer.shareable)) {
            return error_prefix("cannot allocate %s for the %s", memory_text(item->bytes, text), item->group);
        }
        item->buffer.type = item->type;
    }
    return 0;
}

void memory_plan_release(struct memory_plan *plan, struct compute *compute) {
    while (plan->first) {
        struct memory_item *item = plan->first;
        plan->first = item->next;
        if (item->buffer.memory) {
            buffer_release(compute, &item->buffer);
        }
        free(item);
    }
    memset(plan, 0, sizeof *plan);
}
