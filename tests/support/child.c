#include "tests/support/child.h"
#include "tests/support/scratch.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 64, MOST_MESSAGE = 1 << 16 };

static char message[MOST_MESSAGE];

static int open_to_write(const char *path) {
    return open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
}

static void change_environment(const char *const *environment) {
    for (; environment != NULL && *environment != NULL; environment++) {
        if (putenv((char *)(uintptr_t)*environment) != 0) { /* without '=' it takes the name away */
            _exit(99);
        }
    }
}

/* Signals are as a shell leaves them: what started the tests may ignore some. */
static void become(const struct child_setup *setup, char *const *arguments, const char *errors) {
    dup2(setup->input != 0 ? setup->input : open("/dev/null", O_RDWR), STDIN_FILENO);
    dup2(open_to_write(setup->output != NULL ? setup->output : "/dev/null"), STDOUT_FILENO);
    dup2(open_to_write(errors), STDERR_FILENO);
    if (setup->file_bytes != 0 && setup->file_bytes != CHILD_UNLIMITED) {
        scratch_limit_file_size(setup->file_bytes);
    }
    signal(SIGXFSZ, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    change_environment(setup->environment);
    execv(arguments[0], arguments);
    _exit(99);
}

pid_t child_start_with(const struct child_setup *setup, const char *const *arguments) {
    char *all[MOST_ARGUMENTS] = {NULL};
    for (int i = 0; arguments[i] != NULL && i + 1 < MOST_ARGUMENTS; i++) {
        all[i] = (char *)(uintptr_t)arguments[i];
    }
    const char *errors = scratch_path("child-stderr");
    unlink(errors); /* what an earlier child said */
    const pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(1);
    }
    if (child == 0) {
        become(setup, all, setup->errors != NULL ? setup->errors : errors);
    }
    return child;
}

pid_t child_start_writing(const char *output, uint64_t file_bytes, const char *const *arguments) {
    return child_start_with(&(struct child_setup){.output = output, .file_bytes = file_bytes}, arguments);
}

pid_t child_start(uint64_t file_bytes, const char *const *arguments) {
    return child_start_with(&(struct child_setup){.file_bytes = file_bytes}, arguments);
}

int child_finish_within(pid_t child, double seconds) {
    siginfo_t info = {.si_pid = 0};
    for (double waited = 0.0; info.si_pid == 0 && waited < seconds; waited += 0.01) {
        if (waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
            break;
        }
        if (info.si_pid == 0) {
            nanosleep(&(struct timespec){0, 10000000}, NULL);
        }
    }
    if (info.si_pid == 0) {
        kill(child, SIGKILL);
    }
    return child_finish(child);
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
