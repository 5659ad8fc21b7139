/* Programs that the driver runs: the compiler, and Python, which may have it. */
#pragma once

/* What vulkan_run returns beside exit statuses. */
enum {
    RUN_FAILED = -1,   /* it could not be run, for the reason in errno */
    RUN_LATE = -2,     /* it took too long, and was killed */
    RUN_KILLED = 1000, /* and the number of the signal that ended it */
};

/* Runs a program, looked for on PATH; `arguments` ends with NULL. It reads nothing, and what it says replaces the file
 * `output`, which may be no link. After so many seconds it is killed. Its exit status, or one of the above. */
int vulkan_run(const char *const *arguments, const char *output, int seconds);
