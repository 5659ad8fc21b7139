/* A library to preload: makes one call of a program fail, or counts what it calls. Only calls from the program
 * itself (a name that begins with hc_) and from its driver for Vulkan count, not those that other libraries make.
 *
 *   HC_FAULT=FUNCTION:N            the N-th call of the function fails, from 1
 *   HC_FAULT=FUNCTION@PLACE:N      the N-th from that place: the return address in the program, in hexadecimal
 *     ...:N+                       so do all after it
 *     ...:N=CODE                   with this errno, or error code, instead of the one of functions.h
 *     ...:N/                       it does half of the bytes (read, pread, write), which is no failure
 *     ...:N!                       it goes on as it is, but somebody presses Ctrl-C
 *   HC_FAULT_LOG=FILE              at the end, a line for each place: function, place, calls
 *   HC_FAULT_FIRED=FILE            is made when the fault happens */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum way { MINUS, ZERO, CODE, PUT, STREAM, STREAM_0, DONE, NO_LIBRARY, END };

struct function {
    const char *name;
    enum way way;
    long error;
    unsigned argument;
};

static const struct function functions[] = {
#define FAULT(function, group, way, error, argument) {#function, way, error, argument},
#include "tests/faults/functions.h"
#undef FAULT
};

enum { COUNT = sizeof functions / sizeof *functions, MOST_PLACES = 1 << 13, REGISTERS = 6, ERROR_OF_STREAM = 0x20 };

/* Where a call comes from: an offset in the program, or in the driver for Vulkan with a bit set. */
enum { ELSEWHERE = 0 };
static const uint64_t IN_DRIVER = (uint64_t)1 << 40;

struct place {
    _Atomic uint64_t key; /* function and place; 0: free */
    atomic_ulong calls;
};

static struct place places[MOST_PLACES];
static atomic_ulong calls[COUNT]; /* of each function, from anywhere in the program */
static void *_Atomic next[COUNT];

static struct range {
    uintptr_t base, begin, end;
} program, driver;

static struct {
    bool on, for_good, partly, interrupts, has_code;
    int function;
    uint64_t place;
    unsigned long at;
    long code;
} fault = {.function = -1};

static bool counts;
static _Thread_local bool inside;

/* What fault_decide tells the stub, in two registers. */
struct decision {
    void *next; /* the function to go on with, or NULL: */
    long value; /* what to return */
};

struct decision fault_decide(unsigned number, uint64_t *registers, const uint64_t *stack);

/* ---- where calls come from */

static int note_range(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    struct range *range = *info->dlpi_name == '\0'                           ? &program
                          : strstr(info->dlpi_name, "/libhctrain_vulkan.so") ? &driver
                                                                             : NULL;
    for (int i = 0; range && i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD && segment->p_flags & PF_X) {
            range->base = info->dlpi_addr;
            range->begin = info->dlpi_addr + segment->p_vaddr;
            range->end = range->begin + segment->p_memsz;
        }
    }
    return 0;
}

static uint64_t place_of(uintptr_t address) {
    return address >= program.begin && address < program.end ? address - program.base
           : address >= driver.begin && address < driver.end ? (address - driver.base) | IN_DRIVER
                                                             : ELSEWHERE;
}

/* ---- what is asked for */

static void read_fault(const char *text) {
    char name[64];
    int used = 0;
    if (sscanf(text, "%63[^@:]%n", name, &used) != 1) {
        return;
    }
    text += used;
    if (*text == '@') {
        char *end;
        fault.place = strtoull(text + 1, &end, 16);
        text = end;
    }
    char *end;
    fault.at = *text == ':' ? strtoul(text + 1, &end, 10) : 0;
    for (; fault.at > 0 && *end; end++) {
        fault.for_good |= *end == '+';
        fault.partly |= *end == '/';
        fault.interrupts |= *end == '!';
        if (*end == '=') {
            fault.has_code = true;
            fault.code = strtol(end + 1, &end, 10);
            end--;
        }
    }
    for (int i = 0; i < COUNT; i++) {
        if (strcmp(functions[i].name, name) == 0) {
            fault.function = i;
        }
    }
    fault.on = fault.function >= 0 && fault.at > 0;
    if (!fault.on) {
        dprintf(STDERR_FILENO, "HC_FAULT is not understood\n");
        _exit(99);
    }
}

static void __attribute__((constructor)) begin(void) {
    if (strncmp(program_invocation_short_name, "hc_", 3) != 0) {
        return; /* mpirun, a compiler: their ranges stay empty */
    }
    dl_iterate_phdr(note_range, NULL);
    counts = getenv("HC_FAULT_LOG") != NULL;
    if (getenv("HC_FAULT")) {
        read_fault(getenv("HC_FAULT"));
    }
}

static void __attribute__((destructor)) write_counts(void) {
    const char *path = getenv("HC_FAULT_LOG");
    const int file = counts && program.base ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    counts = false;
    for (size_t i = 0; file >= 0 && i < MOST_PLACES; i++) {
        const uint64_t key = places[i].key;
        if (key) {
            dprintf(file, "%s %jx %lu\n", functions[key >> 48].name, (uintmax_t)(key & (((uint64_t)1 << 48) - 1)),
                    (unsigned long)places[i].calls);
        }
    }
    if (file >= 0) {
        close(file);
    }
}

/* ---- a call */

/* dlsym is one of those that fail; the C library has it under its version since 2.34, or the oldest one. */
static void *find_next(unsigned number) {
    static void *(*_Atomic find)(void *, const char *);
    void *found = next[number];
    if (!found) {
        if (!find) {
            void *const newer = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
            find = (void *(*)(void *, const char *))(uintptr_t)(newer ? newer
                                                                      : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
        }
        found = find(RTLD_NEXT, functions[number].name);
        next[number] = found;
    }
    return found;
}

/* Counts the call; its number from this place, from 1. */
static unsigned long count_call(unsigned number, uint64_t place) {
    const uint64_t key = (uint64_t)number << 48 | place;
    for (size_t at = (key ^ key >> 29) * 0x9e3779b97f4a7c15u % MOST_PLACES;; at = (at + 1) % MOST_PLACES) {
        uint64_t found = places[at].key;
        if (found == key ||
            (!found && (atomic_compare_exchange_strong(&places[at].key, &found, key) || found == key))) {
            return ++places[at].calls;
        }
    }
}

static bool is_due(unsigned number, uint64_t place) {
    const unsigned long of_place = count_call(number, place), of_all = ++calls[number];
    if (!fault.on || (int)number != fault.function || (fault.place && fault.place != place)) {
        return false;
    }
    const unsigned long call = fault.place ? of_place : of_all;
    return call == fault.at || (fault.for_good && call > fault.at);
}

static void tell_fired(void) {
    const char *path = getenv("HC_FAULT_FIRED");
    const int file = path ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file >= 0) {
        close(file);
    }
}

/* What the function's way to fail comes to. */
static struct decision fail(unsigned number, uint64_t *registers, const uint64_t *stack, void *go_on) {
    const struct function *function = &functions[number];
    const long error = fault.has_code ? fault.code : function->error;
    const unsigned argument = function->argument;
    const uint64_t given = argument < REGISTERS ? registers[argument] : stack[1 + argument - REGISTERS];
    switch (function->way) {
    case DONE:
        ((long (*)(uint64_t))(uintptr_t)go_on)(registers[0]);
        errno = (int)error;
        return (struct decision){NULL, -1};
    case CODE:
        return (struct decision){NULL, error};
    case PUT:
        if (given) {
            *(int *)(uintptr_t)given = (int)error;
        }
        return (struct decision){NULL, 0};
    case STREAM:
    case STREAM_0:
        if (given) {
            ((FILE *)(uintptr_t)given)->_flags |= ERROR_OF_STREAM;
        }
        errno = (int)error;
        return (struct decision){NULL, function->way == STREAM ? -1 : 0};
    case NO_LIBRARY:
        registers[0] = (uint64_t)(uintptr_t)"libhc-is-not-there.so";
        return (struct decision){go_on, 0};
    case END:
        return (struct decision){go_on, 0};
    case MINUS:
    case ZERO:
        break;
    }
    errno = (int)error;
    return (struct decision){NULL, function->way == MINUS ? -1 : 0};
}

struct decision fault_decide(unsigned number, uint64_t *registers, const uint64_t *stack) {
    const struct function *function = &functions[number];
    const struct decision go_on = {find_next(number), 0};
    if (inside || !program.base) {
        return go_on;
    }
    const uint64_t place = place_of(*stack);
    if (place == ELSEWHERE) {
        return go_on;
    }
    const int saved = errno;
    struct decision decision = go_on;
    inside = true;
    if (function->way == END) {
        write_counts();
    }
    const bool due = is_due(number, place);
    if (due) {
        tell_fired();
    }
    errno = saved;
    if (due && fault.interrupts) {
        raise(SIGINT);
    } else if (due && fault.partly) {
        registers[2] = registers[2] > 1 ? registers[2] / 2 : registers[2]; /* the bytes of read, pread and write */
    } else if (due) {
        decision = fail(number, registers, stack, go_on.next);
    }
    if (function->way == NO_LIBRARY) { /* does it here: it may have been the driver */
        decision.value = ((long (*)(uint64_t, uint64_t))(uintptr_t)decision.next)(registers[0], registers[1]);
        decision.next = NULL;
        dl_iterate_phdr(note_range, NULL);
    }
    inside = false;
    return decision;
}
