/* `ld` of the tests, if COMPILER_PATH names its folder. PoCL has kernels linked with libm, libc and libgcc_s, and
 * to read their symbols takes a fifth of the time in which kernels are compiled without optimization. What loads a
 * kernel has these libraries, so this program leaves them out, and runs the linker that PATH has. libgcc stays: its
 * conversions of 16-bit numbers are in no shared library. What is not a kernel is linked as it would be. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_left_out(const char *argument) {
    return strncmp(argument, "-l", 2) == 0 && strcmp(argument, "-lgcc") != 0;
}

int main(int count, char **arguments) {
    bool is_kernel = false;
    int kept = 1;
    for (int i = 1; i < count; i++) {
        is_kernel = is_kernel || strstr(arguments[i], "/kcache/tempfile_");
    }
    for (int i = 1; i < count; i++) {
        if (!is_kernel || !is_left_out(arguments[i])) {
            arguments[kept++] = arguments[i];
        }
    }
    arguments[kept] = NULL;
    execvp("ld", arguments);
    perror("ld");
    return 1;
}
