#include "tests/program.h"
#include "tests/scratch.h"
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

#define MOST_ARGUMENTS 64

static char *errors, *output; /* of the last program */

static void redirect(const char *name, int descriptor) {
    const int file = open(scratch_path(name), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file < 0 || dup2(file, descriptor) < 0) {
        _exit(98);
    }
}

pid_t program_start(uint64_t file_bytes, const char *name, const char *const *arguments) {
    char path[1024], *all[MOST_ARGUMENTS + 2] = {path};
    snprintf(path, sizeof path, "%s/%s", HC_PROGRAMS, name);
    size_t count = 1;
    for (; arguments[count - 1]; count++) {
        assert_true(count <= MOST_ARGUMENTS);
        all[count] = (char *)(uintptr_t)arguments[count - 1];
    }
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        redirect("program-output", STDOUT_FILENO);
        redirect("program-errors", STDERR_FILENO);
        if (file_bytes != UINT64_MAX) {
            scratch_limit_file_size(file_bytes);
        }
        signal(SIGINT, SIG_DFL); /* background jobs of shells have it ignored */
        execv(path, all);
        _exit(99);
    }
    return child;
}

int program_finish(pid_t child) {
    int status = 0;
    size_t bytes;
    assert_int_equal(waitpid(child, &status, 0), child);
    free(errors);
    free(output);
    errors = scratch_read(scratch_path("program-errors"), &bytes);
    output = scratch_read(scratch_path("program-output"), &bytes);
    assert_non_null(errors);
    assert_non_null(output);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int program_run(uint64_t file_bytes, const char *name, const char *const *arguments) {
    return program_finish(program_start(file_bytes, name, arguments));
}

const char *program_errors(void) {
    return errors ? errors : "";
}

const char *program_output(void) {
    return output ? output : "";
}

void program_expect(const char *text) {
    if (!strstr(program_errors(), text)) {
        fail_msg("expected \"%s\" in:\n%s", text, program_errors());
    }
}
