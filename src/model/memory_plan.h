/* Memory is planned before it is allocated: first every buffer is put on the plan, then the plan is checked against
 * the device, then all buffers are made. */
#pragma once

#include "runtime/device/compute.h"
#include <stdint.h>

struct memory_plan {
    struct memory_item *first, *last; /* a list */
    uint64_t total_bytes, largest_bytes;
    const char *largest_group;
};

/* Puts a buffer of `elements` of this type on the plan. `group` is the name that users see ("streams"); a literal.
 * The plan owns the buffer, which has no memory until memory_plan_allocate; set `shareable` before that. */
struct buffer *memory_plan_add(struct memory_plan *plan, const char *group, uint64_t elements,
                               enum element_type type);

/* Counts bytes that other code allocates on the device (on the host, for devices that compute in host memory). */
void memory_plan_count(struct memory_plan *plan, const char *group, uint64_t bytes);

/* The same for one buffer of floats on the device, whose size has a limit of its own. */
void memory_plan_count_floats(struct memory_plan *plan, const char *group, uint64_t elements);

/* Returns -1 if the device has too little memory, with an error that says how much is needed and what to change. */
int memory_plan_check(const struct memory_plan *plan, const struct device *device);

/* Prints a line for each group, and the total. */
void memory_plan_print(const struct memory_plan *plan, FILE *file);

int memory_plan_allocate(struct memory_plan *plan, struct compute *compute);
void memory_plan_release(struct memory_plan *plan, struct compute *compute);

/* Writes "1.25 GiB" to text, which has at least 16 bytes, and returns it. */
const char *memory_text(uint64_t bytes, char text[16]);
