#include "tests/child.h"
#include "tests/scratch.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 64, MOST_MESSAGE = 1 << 16 };

static char message[MOST_MESSAGE];

static void become(struct child_limits limits, char *const *arguments, const char *errors) {
    dup2(open("/dev/null", O_RDWR), STDIN_FILENO);
    dup2(open("/dev/null", O_RDWR), STDOUT_FILENO);
    dup2(open(errors, O_WRONLY | O_CREAT | O_TRUNC, 0666), STDERR_FILENO);
    if (limits.file_bytes != UINT64_MAX) {
        scratch_limit_file_size(limits.file_bytes);
    }
    if (limits.address_bytes != UINT64_MAX) {
        setrlimit(RLIMIT_AS, &(struct rlimit){limits.address_bytes, limits.address_bytes});
    }
    signal(SIGXFSZ, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    execv(arguments[0], arguments);
    _exit(99);
}

pid_t child_start(struct child_limits limits, const char *const *arguments) {
    char *all[MOST_ARGUMENTS] = {NULL};
    for (int i = 0; arguments[i] != NULL && i + 1 < MOST_ARGUMENTS; i++) {
        all[i] = (char *)(uintptr_t)arguments[i];
    }
    const char *errors = scratch_path("child-stderr");
    const pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(1);
    }
    if (child == 0) {
        become(limits, all, errors);
    }
    return child;
}

int child_finish(pid_t child) {
    int status = 0;
    size_t bytes;
    if (waitpid(child, &status, 0) != child) {
        perror("waitpid");
        exit(1);
    }
    char *text = scratch_read(scratch_path("child-stderr"), &bytes);
    snprintf(message, sizeof message, "%s", text != NULL ? text : "");
    free(text);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

const char *child_message(void) {
    return message;
}
