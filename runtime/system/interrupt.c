#include "runtime/system/interrupt.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static volatile sig_atomic_t requested;
static int ends[2] = {-1, -1}; /* of a pipe that has something to read once a signal has come */

static void handle(int signal_number) {
    (void)signal_number;
    const int kept = errno;
    requested = 1;
    if (ends[1] >= 0 && write(ends[1], "", 1) < 0) { /* a full pipe says the same */
        errno = kept;
    }
}

void interrupt_install(void) {
    if (requested) {
        return; /* the second signal must find the default action, by SA_RESETHAND */
    }
    if (ends[0] < 0 && pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        ends[0] = ends[1] = -1; /* signals are still seen by those who ask */
    }
    struct sigaction action = {.sa_handler = handle, .sa_flags = (int)SA_RESETHAND | SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL); /* what mpirun passes on without killing the job soon after */
    sigaction(SIGHUP, NULL, &before);
    if (before.sa_handler != SIG_IGN) { /* nohup stays in force */
        sigaction(SIGHUP, &action, NULL);
    }
    action.sa_flags =
        SA_RESTART; /* it comes every second from a limit of CPU time (ulimit -S -t) to the hard one */
    sigaction(SIGXCPU, &action, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file-size limit then is a failed write, which can be reported */
    signal(SIGPIPE, SIG_IGN); /* and so is a reader of the output that has gone, which ends no run */
}

bool interrupt_requested(void) {
    return requested != 0;
}

int interrupt_descriptor(void) {
    return ends[0];
}
