/* Programs run by tests: started, limited, interrupted, and what they said. */
#ifndef HC_TESTS_CHILD_H
#define HC_TESTS_CHILD_H

#include <stdint.h>
#include <sys/types.h>

/* Starts the program arguments[0] (a path); the list ends with NULL. Its files may grow to file_bytes
 * (CHILD_UNLIMITED: as they like). */
#define CHILD_UNLIMITED UINT64_MAX
pid_t child_start(uint64_t file_bytes, const char *const *arguments);

/* As child_start, with stdout to this file instead of /dev/null. */
pid_t child_start_writing(const char *output, uint64_t file_bytes, const char *const *arguments);

/* Waits: the exit status, or minus the signal that ended it. */
int child_finish(pid_t child);

/* The same, but kills the child after so many seconds, which makes it minus SIGKILL. */
int child_finish_within(pid_t child, double seconds);

/* What the last finished one wrote to stderr. */
const char *child_message(void);

/* The most memory that it had, in bytes. */
uint64_t child_peak_bytes(void);

#define CHILD_RUN(...) child_finish(child_start(CHILD_UNLIMITED, (const char *const[]){__VA_ARGS__, NULL}))
#define CHILD_RUN_WRITING(output, ...)                                                                             \
    child_finish(child_start_writing(output, CHILD_UNLIMITED, (const char *const[]){__VA_ARGS__, NULL}))

#endif
