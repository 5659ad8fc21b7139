#include "runtime/interrupt.h"
#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t requested;

static void handle(int signal_number) {
    (void)signal_number;
    requested = 1;
}

void interrupt_install(void) {
    /* SA_RESETHAND: the second signal has its default action */
    if (requested) {
        return; /* the second signal must find the default action */
    }
    struct sigaction action = {.sa_handler = handle, .sa_flags = (int)SA_RESETHAND | SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL); /* what mpirun passes on without killing the job soon after */
    signal(SIGXFSZ, SIG_IGN);          /* a file-size limit then is a failed write, which can be reported */
}

bool interrupt_requested(void) {
    return requested != 0;
}
