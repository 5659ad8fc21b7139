#include "runtime/vulkan/child.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* Its status, as of vulkan_run. It is in our group of processes, so that Ctrl-C ends it, too. */
static int wait_for(pid_t child, int seconds) {
    const struct timespec pause = {0, 2000000};
    struct timespec begin, now;
    int status = 0;
    pid_t ended;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while ((ended = waitpid(child, &status, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - begin.tv_sec > seconds) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return RUN_LATE;
        }
        nanosleep(&pause, NULL);
    }
    if (ended < 0) { /* nobody can tell where SIGCHLD is ignored: what it wrote has to */
        return errno == ECHILD ? 0 : RUN_FAILED;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : RUN_KILLED + WTERMSIG(status);
}

int vulkan_run(const char *const *arguments, const char *output, int seconds) {
    posix_spawn_file_actions_t actions;
    pid_t child;
    if ((errno = posix_spawn_file_actions_init(&actions))) {
        return RUN_FAILED;
    }
    errno = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!errno) {
        errno = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output,
                                                 O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
    }
    if (!errno) {
        errno = posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    }
    if (!errno) {
        errno = posix_spawnp(&child, arguments[0], &actions, NULL, (char *const *)arguments, environ);
    }
    const int problem = errno;
    posix_spawn_file_actions_destroy(&actions);
    if (problem) {
        errno = problem;
        return RUN_FAILED;
    }
    return wait_for(child, seconds);
}
