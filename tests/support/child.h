/* Programs run by tests: started, limited, interrupted, and what they said. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

/* Starts the program arguments[0] (a path); the list ends with NULL. Its files may grow to file_bytes
 * (CHILD_UNLIMITED: as they like). */
#define CHILD_UNLIMITED UINT64_MAX
pid_t child_start(uint64_t file_bytes, const char *const *arguments);

/* As child_start, with stdout to this file instead of /dev/null. */
pid_t child_start_writing(const char *output, uint64_t file_bytes, const char *const *arguments);

/* How a child is started that differs in more; what is 0 or NULL is as child_start has it. */
struct child_setup {
    int input;                      /* the descriptor that stdin comes from; 0: /dev/null */
    const char *output;             /* the file that stdout goes to */
    const char *errors;             /* the file that stderr goes to; child_message then has nothing */
    const char *const *environment; /* "NAME=value" to set, "NAME" to take away; ends with NULL */
    uint64_t file_bytes;            /* CHILD_UNLIMITED too: no limit */
};
pid_t child_start_with(const struct child_setup *setup, const char *const *arguments);

/* Waits: the exit status, or minus the signal that ended it. */
int child_finish(pid_t child);

/* The same, but kills the child after so many seconds, which makes it minus SIGKILL. */
int child_finish_within(pid_t child, double seconds);

/* What the last finished one wrote to stderr. */
const char *child_message(void);

#define CHILD_RUN(...) child_finish(child_start(CHILD_UNLIMITED, (const char *const[]){__VA_ARGS__, NULL}))
#define CHILD_RUN_WRITING(output, ...)                                                                             \
    child_finish(child_start_writing(output, CHILD_UNLIMITED, (const char *const[]){__VA_ARGS__, NULL}))
