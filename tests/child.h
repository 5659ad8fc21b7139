/* Programs run by tests: started, limited, interrupted, and what they said. */
#ifndef HC_TESTS_CHILD_H
#define HC_TESTS_CHILD_H

#include <stdint.h>
#include <sys/types.h>

/* Starts the program arguments[0] (a path); the list ends with NULL. Its files may grow to file_limit bytes
 * (UINT64_MAX: as they like), and it may use memory_limit bytes of addresses (the same). */
struct child_limits {
    uint64_t file_bytes, address_bytes;
};
pid_t child_start(struct child_limits limits, const char *const *arguments);

/* Waits: the exit status, or minus the signal that ended it. */
int child_finish(pid_t child);

/* What the last finished one wrote to stderr. */
const char *child_message(void);

#define CHILD_UNLIMITED ((struct child_limits){UINT64_MAX, UINT64_MAX})
#define CHILD_RUN(...)  child_finish(child_start(CHILD_UNLIMITED, (const char *const[]){__VA_ARGS__, NULL}))

#endif
