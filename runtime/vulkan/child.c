#include "runtime/vulkan/child.h"
#include "runtime/system/spawn.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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
    const int log = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    pid_t child;
    if (log < 0) {
        return RUN_FAILED;
    }
    const int problem = spawn_program(&child, arguments[0], (char *const *)arguments,
                                      &(struct spawn_place){.in = -1, .out = log, .err = log});
    close(log);
    errno = problem;
    return problem ? RUN_FAILED : wait_for(child, seconds);
}
