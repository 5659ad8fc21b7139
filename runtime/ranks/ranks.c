#include "runtime/ranks/ranks.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "runtime/system/progress.h"
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PIECE ((size_t)1 << 26) /* most bytes or values in one call: MPI counts in int */

int ranks_check(int code, const char *doing) {
    char name[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (code == MPI_SUCCESS) {
        return 0;
    }
    MPI_Error_string(code, name, &length);
    return error_set("%s: %s", doing, name);
}

static const int alone[] = {0};
const struct ranks ranks_alone = {.count = 1,
                                  .local_count = 1,
                                  .hosts = 1,
                                  .host = "localhost",
                                  .node = {0, 1, alone},
                                  .cross_node = {0, 1, alone}};

bool ranks_are_joined(void) {
    int started = 0, finished = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&finished);
    return started && !finished;
}

void ranks_abort(void) {
    if (ranks_are_joined()) {
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

void ranks_end_others(const struct ranks *ranks, const char *program) {
    if (ranks->count == 1 || ranks->agreed) {
        return;
    }
    const bool was_interrupted = interrupt_requested();
    const int turn = ranks->index < 8 ? ranks->index : 8;
    nanosleep(&(struct timespec){turn / 2, turn % 2 * 500000000L}, NULL);
    if (was_interrupted ||
        !interrupt_requested()) { /* else another one has spoken, and the launcher is ending this one */
        message_print(stderr, "%s: rank %d on %s: %s\n", program, ranks->index, ranks->host, error_text());
        /* mpirun of Open MPI 5 drops what it has not read when it aborts a job; the next rank's turn comes later */
        nanosleep(&(struct timespec){0, 200000000L}, NULL);
    }
    ranks_abort();
}

/* ---- collectives are started and polled, so that a waiting rank leaves its core to the device */

void ranks_pause(unsigned *turns, bool long_naps) {
    const unsigned turn = (*turns)++;
    if (turn < 200) {
        sched_yield();
        return;
    }
    const long nanoseconds = long_naps && turn > 2200 ? 1000000 : 50000;
    nanosleep(&(struct timespec){0, nanoseconds}, NULL);
}

bool ranks_late(const struct ranks *ranks, struct ranks_watch *watch, bool moved) {
    const double now = progress_clock();
    if (moved || now - watch->looked > 0.5 * ranks->timeout_seconds + 0.5) {
        watch->moved = now;
    }
    watch->looked = now;
    return ranks->timeout_seconds > 0.0 && now - watch->moved > ranks->timeout_seconds;
}

/* Waits for a request. `code` is that of the call which started it. */
static int complete(int code, MPI_Request *request, const struct ranks *ranks, const char *doing) {
    struct ranks_watch watch = {0};
    unsigned turns = 0;
    int done = 0;
    while (code == MPI_SUCCESS && !done) {
        code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code == MPI_SUCCESS && !done) {
            if (ranks_late(ranks, &watch, false)) {
                return error_set("%s: no answer from another rank for %g seconds; is it stopped, or its host away?",
                                 doing, ranks->timeout_seconds);
            }
            ranks_pause(&turns, true);
        }
    }
    return ranks_check(code, doing);
}

int ranks_broadcast(const struct ranks *ranks, void *data, size_t bytes) {
    for (size_t done = 0; ranks->count > 1 && done < bytes; done += PIECE) {
        const size_t piece = bytes - done < PIECE ? bytes - done : PIECE;
        MPI_Request request;
        const int code = MPI_Ibcast((char *)data + done, (int)piece, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
        if (complete(code, &request, ranks, "cannot send rank 0's data to all ranks")) {
            return -1;
        }
    }
    return 0;
}

int ranks_gather(const struct ranks *ranks, const void *data, size_t bytes, void *all) {
    MPI_Request request;
    if (ranks->count == 1) {
        memcpy(all, data, bytes);
        return 0;
    }
    if (bytes > PIECE) {
        return error_set("%zu bytes of each rank are too many to gather", bytes);
    }
    const int code =
        MPI_Iallgather(data, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD, &request);
    return complete(code, &request, ranks, "cannot gather data of all ranks");
}

int ranks_sum(const struct ranks *ranks, double *values, size_t count) {
    if (ranks->count == 1) {
        return 0;
    }
    double *all = memory_allocate((size_t)ranks->count * count, sizeof *all);
    const int status = ranks_gather(ranks, values, count * sizeof *values, all);
    for (size_t i = 0; status == 0 && i < count; i++) {
        values[i] = 0.0;
        for (size_t rank = 0; rank < (size_t)ranks->count; rank++) {
            values[i] += all[rank * count + i];
        }
    }
    free(all);
    return status;
}

int ranks_merge(const struct ranks *ranks, void *words, size_t count, bool everywhere) {
    for (size_t done = 0; ranks->count > 1 && done < count; done += PIECE) {
        const int piece = (int)(count - done < PIECE ? count - done : PIECE);
        uint32_t *at = (uint32_t *)words + done;
        const void *own = everywhere || ranks->index == 0 ? MPI_IN_PLACE : at;
        MPI_Request request;
        const int code = everywhere
                             ? MPI_Iallreduce(own, at, piece, MPI_UINT32_T, MPI_BOR, MPI_COMM_WORLD, &request)
                             : MPI_Ireduce(own, at, piece, MPI_UINT32_T, MPI_BOR, 0, MPI_COMM_WORLD, &request);
        if (complete(code, &request, ranks, "cannot bring together what the ranks have")) {
            return -1;
        }
    }
    return 0;
}

void ranks_add_name(char names[128], int rank) {
    const size_t length = strlen(names);
    if (length < 100) {
        snprintf(names + length, 128 - length, "%s %d", length ? " or" : "rank", rank);
    }
}

int ranks_agree(struct ranks *ranks, int status) {
    struct ranks untimed = *ranks;
    int failed = status != 0, failures = 0, failed_rank = -1;
    int *all = memory_allocate((size_t)ranks->count, sizeof *all);
    untimed.timeout_seconds = 0.0;
    ranks->agreed = false;
    if (ranks_gather(&untimed, &failed, sizeof failed, all)) {
        free(all);
        return -1;
    }
    for (int rank = ranks->count - 1; rank >= 0; rank--) {
        failures += all[rank];
        failed_rank = all[rank] ? rank : failed_rank;
    }
    free(all);
    if (failures == 0) {
        return 0;
    }
    if (ranks->count > 1) { /* all take over the error text of one rank that failed */
        struct {
            char host[256];
            char text[2048];
        } report = {.host = ""};
        MPI_Request request;
        strcpy(report.host, ranks->host);
        strncpy(report.text, error_text(), sizeof report.text - 1);
        const int code = MPI_Ibcast(&report, sizeof report, MPI_BYTE, failed_rank, MPI_COMM_WORLD, &request);
        if (complete(code, &request, &untimed, "cannot hear of a failure")) {
            return -1;
        }
        error_set("%s", report.text);
        if (failures < ranks->count) {
            error_prefix("rank %d on %s", failed_rank, report.host);
        }
    }
    ranks->agreed = true;
    return -1;
}
