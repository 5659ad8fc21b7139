#include "runtime/ranks/job.h"
#include "runtime/ranks/neighbours.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Set by the launchers of Open MPI, MPICH and Intel MPI, MVAPICH2 and those that speak PMIx for every rank. Without
 * one of them MPI would start a daemon of its own for this single process. */
static bool is_launched(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                                        "PMIX_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (getenv(names[i])) {
            return true;
        }
    }
    return false;
}

/* This process's rank in a communicator, and its size. Returns MPI's code. */
static int place_in(MPI_Comm communicator, int *index, int *count) {
    const int code = MPI_Comm_rank(communicator, index);
    return code ? code : MPI_Comm_size(communicator, count);
}

/* Ranks on this host, by a communicator of those that may share memory; hosts, as those that are first on theirs.
 */
static int find_hosts(struct ranks *ranks) {
    MPI_Comm local;
    int first_here = ranks->index;
    if (ranks_check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, ranks->index, MPI_INFO_NULL, &local),
                    "cannot tell the ranks of this host")) {
        return -1;
    }
    int code = place_in(local, &ranks->local_index, &ranks->local_count);
    code = code ? code : MPI_Bcast(&first_here, 1, MPI_INT, 0, local);
    MPI_Comm_free(&local);
    double first = ranks->local_index == 0;
    if (ranks_check(code, "cannot tell the ranks of this host") || ranks_sum(ranks, &first, 1)) {
        return -1;
    }
    ranks->hosts = (int)first;
    return neighbours_find(ranks, first_here);
}

/* Another rank that waits for this one would wait for ever. */
static void abort_job(void) {
    if (ranks_are_joined()) {
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

int job_start(struct ranks *ranks) {
    int provided;
    *ranks = ranks_alone;
    if (gethostname(ranks->host, sizeof ranks->host - 1) != 0) {
        memcpy(ranks->host, ranks_alone.host, sizeof ranks->host);
    }
    if (!is_launched()) {
        return 0;
    }
    /* Over one TCP connection Open MPI 4 lets large messages wait for each other: 61 % of a gigabit wire, 95 % over
     * four. What the user or mpirun has set stays. */
    setenv("OMPI_MCA_btl_tcp_links", "4", 0);
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        return error_set("cannot start MPI, though this process was started by its launcher");
    }
    memory_before_exit(abort_job);
    if (ranks_check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "cannot have MPI report errors") ||
        ranks_check(place_in(MPI_COMM_WORLD, &ranks->index, &ranks->count), "cannot tell the ranks of this job")) {
        return -1;
    }
    return find_hosts(ranks);
}

void job_stop(struct ranks *ranks) {
    neighbours_release(ranks);
    if (ranks_are_joined()) {
        MPI_Finalize();
    }
    *ranks = ranks_alone;
}
