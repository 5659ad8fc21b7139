#include "tests/support/planted_fault.h"
#include "tests/support/freed.h"
#include <CL/cl.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *fault_right, *fault_wrong;
static unsigned changed;

void planted_fault_set(const char *right, const char *wrong) {
    fault_right = right;
    fault_wrong = wrong;
    changed = 0;
}

unsigned planted_fault_programs(void) {
    return changed;
}

/* Takes one text that ends with NUL, as program_build gives it. */
cl_program clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts, const size_t *lengths,
                                     cl_int *code) {
    __typeof__(&clCreateProgramWithSource) next;
    void *symbol = dlsym(RTLD_NEXT, "clCreateProgramWithSource");
    memcpy(&next, &symbol, sizeof next);
    const char *at = fault_right ? strstr(texts[0], fault_right) : NULL;
    FREED char *text = NULL;
    if (!at ||
        asprintf(&text, "%.*s%s%s", (int)(at - texts[0]), texts[0], fault_wrong, at + strlen(fault_right)) < 0) {
        return next(context, count, texts, lengths, code);
    }
    changed++;
    const char *given = text;
    const cl_program program = next(context, 1, &given, NULL, code);
    return program;
}
