#include "runtime/ranks/ranks.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "runtime/system/progress.h"
#include "runtime/system/spawn.h"
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

/* Whether this process is in an MPI job now. */
static bool is_joined(void) {
    int started = 0, finished = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&finished);
    return started && !finished;
}

void ranks_abort(void) {
    if (is_joined()) {
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

/* A rank's counters, in shared memory. */
struct tally {
    _Alignas(64) uint64_t counts[NEIGHBOUR_COUNTS];
};

struct neighbours {
    struct host_memory tally;
    struct host_memory *others; /* [node.count] the other ranks' tallies */
    uint64_t ranges;
    int *members; /* [node.count + cross_node.count] members of both groups */
};

/* ---- ranks and hosts */

int neighbours_sort(const int *hosts, int count, int *table) {
    int placed = 0, per_host = 0;
    bool alike = true;
    for (int host = 0; host < count; host++) {
        const int before = placed;
        for (int rank = 0; rank < count; rank++) {
            if (hosts[rank] == host) {
                table[placed++] = rank;
            }
        }
        const int here = placed - before;
        alike = alike && (!here || !per_host || here == per_host);
        per_host = here ? here : per_host;
    }
    for (int rank = 0; !alike && rank < count; rank++) {
        table[rank] = rank;
    }
    return alike ? per_host : 1;
}

/* Sets the two groups from a table with `node_count` ranks in a row. */
static void take_groups(struct ranks *ranks, const int *table, int node_count) {
    int *members = ranks->neighbours->members;
    const int nodes = ranks->count / node_count;
    int place = 0;
    while (table[place] != ranks->index) {
        place++;
    }
    memcpy(members, table + place / node_count * node_count, (size_t)node_count * sizeof *members);
    for (int i = 0; i < nodes; i++) {
        members[node_count + i] = table[i * node_count + place % node_count];
    }
    ranks->node = (struct rank_group){place % node_count, node_count, members};
    ranks->cross_node = (struct rank_group){place / node_count, nodes, members + node_count};
}

/* ---- shared memory */

/* Does the work of neighbours_map. It is no failure if a rank cannot map another's memory: *could then is false on
 * all ranks. */
static int map_others(const struct ranks *ranks, const struct host_memory *own, struct host_memory *others,
                      bool *could) {
    struct host_memory_name name = {0}, *all = memory_allocate((size_t)ranks->count, sizeof *all);
    double failures = 0.0;
    host_memory_name(own, &name); /* if it cannot be shared, no rank can open what has no name */
    int status = ranks_gather(ranks, &name, sizeof name, all);
    for (int i = 0; i < ranks->node.count && status == 0; i++) {
        if (i != ranks->node.index && !host_memory_open(&others[i], &all[ranks->node.members[i]])) {
            failures = 1.0;
        }
    }
    free(all);
    status = status ? status : ranks_sum(ranks, &failures, 1);
    *could = failures == 0.0;
    return status;
}

int neighbours_map(const struct ranks *ranks, const struct host_memory *own, struct host_memory *others) {
    bool could;
    if (map_others(ranks, own, others, &could)) {
        return -1;
    }
    return could ? 0
                 : error_set("cannot share %zu bytes of memory between the ranks of a host, though small pieces "
                             "can be: is there a limit (ulimit -n, -f, -v) on one of them? "
                             "HCTRAIN_RANKS_PER_HOST=1 does without",
                             own->bytes);
}

void neighbours_unmap(const struct ranks *ranks, struct host_memory *others) {
    for (int i = 0; others && i < ranks->node.count; i++) {
        host_memory_release(&others[i]);
    }
    free(others);
}

/* Finds the ranks of this host by a communicator of those that may share memory, tells all ranks, and maps the
 * counters of those that are in one node. If some cannot share memory, each rank becomes a node of its own. */
static int find_neighbours(struct ranks *ranks) {
    MPI_Comm local;
    int host = ranks->index; /* the lowest rank there */
    int code = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, ranks->index, MPI_INFO_NULL, &local);
    if (code == MPI_SUCCESS) {
        code = MPI_Bcast(&host, 1, MPI_INT, 0, local);
        MPI_Comm_free(&local);
    }
    const size_t count = (size_t)ranks->count;
    struct neighbours *neighbours = ranks->neighbours = memory_zeroed(1, sizeof *neighbours);
    neighbours->members = memory_allocate(2 * count, sizeof *neighbours->members);
    if (!host_memory_create(&neighbours->tally, sizeof(struct tally), true)) {
        memory_refused(sizeof(struct tally));
    }
    int *table = memory_allocate(2 * count, sizeof *table), *hosts = table + count;
    if (ranks_check(code, "cannot find the ranks of this host") || ranks_gather(ranks, &host, sizeof host, hosts)) {
        free(table);
        return -1;
    }
    ranks->local_index = ranks->local_count = ranks->hosts = 0;
    for (int rank = 0; rank < ranks->count; rank++) {
        ranks->local_index += hosts[rank] == host && rank < ranks->index;
        ranks->local_count += hosts[rank] == host;
        ranks->hosts += hosts[rank] == rank;
    }
    const char *wanted = getenv("HCTRAIN_RANKS_PER_HOST");
    long per_host = wanted ? strtol(wanted, NULL, 10) : 0;
    if (ranks_broadcast(ranks, &per_host, sizeof per_host)) { /* rank 0's: all make one table */
        free(table);
        return -1;
    }
    const bool divides = per_host > 0 && per_host <= ranks->count && ranks->count % per_host == 0;
    for (int rank = 0; divides && ranks->hosts == 1 && rank < ranks->count; rank++) {
        hosts[rank] = rank / (int)per_host * (int)per_host;
    }
    bool could;
    take_groups(ranks, table, neighbours_sort(hosts, ranks->count, table));
    neighbours->others = memory_zeroed((size_t)ranks->node.count, sizeof *neighbours->others);
    const int status = map_others(ranks, &neighbours->tally, neighbours->others, &could);
    if (!could && status == 0) {
        neighbours_unmap(ranks, neighbours->others);
        neighbours->others = NULL;
        for (int rank = 0; rank < ranks->count; rank++) {
            table[rank] = rank;
        }
        take_groups(ranks, table, 1);
    }
    free(table);
    return status;
}

/* ---- counters */

void neighbours_publish(const struct ranks *ranks, enum neighbour_count kind, uint64_t count) {
    struct tally *own = ranks->neighbours->tally.data;
    __atomic_store_n(&own->counts[kind], count, __ATOMIC_RELEASE);
}

static bool has_reached(const struct ranks *ranks, int index, enum neighbour_count kind, uint64_t count) {
    const struct neighbours *neighbours = ranks->neighbours;
    const struct tally *tally =
        index == ranks->node.index ? neighbours->tally.data : neighbours->others[index].data;
    return __atomic_load_n(&tally->counts[kind], __ATOMIC_ACQUIRE) >= count;
}

bool neighbours_reached(const struct ranks *ranks, enum neighbour_count kind, uint64_t count) {
    bool reached = true;
    for (int i = 0; i < ranks->node.count && reached; i++) {
        reached = has_reached(ranks, i, kind, count);
    }
    return reached;
}

void neighbours_name_late(const struct ranks *ranks, enum neighbour_count kind, uint64_t count, char names[128]) {
    names[0] = '\0';
    for (int i = 0; i < ranks->node.count; i++) {
        if (!has_reached(ranks, i, kind, count)) {
            ranks_add_name(names, ranks->node.members[i]);
        }
    }
}

uint64_t *neighbours_ranges(const struct ranks *ranks) {
    return &ranks->neighbours->ranges;
}

/* ---- joining and leaving the job */

/* Without a launcher MPI would start a daemon of its own for this single process. */
bool job_is_launched(void) {
    for (const char *const *name = spawn_rank_variables; *name; name++) {
        if (getenv(*name)) {
            return true;
        }
    }
    return false;
}

/* Processes that should be ranks of one job must not train alone, each with all data and one folder. Slurm's tasks
 * may be meant to. */
static int check_count(const struct ranks *ranks) {
    const char *const *name = spawn_size_variables;
    while (*name && !getenv(*name)) {
        name++;
    }
    const char *step = getenv("SLURM_STEP_NUM_TASKS"), *tasks = step ? step : getenv("SLURM_NTASKS");
    const long started = *name ? strtol(getenv(*name), NULL, 10) : 1, wanted = tasks ? strtol(tasks, NULL, 10) : 1;
    const bool by_slurm = *name && strncmp(*name, "SLURM_", 6) == 0;
    if (started > 1 && ranks->count == 1 && !by_slurm) {
        return error_set(
            "%ld processes were started together (%s), and MPI knows only this one: hctrain was built with "
            "another MPI than the one whose launcher started it. Use the mpirun of hctrain's MPI "
            "(docs/parallel.md); `env -u %s` lets each process work by itself",
            started, *name, *name);
    }
    if (by_slurm && wanted > 1 && wanted != ranks->count && ranks->index == 0) {
        message_print(
            stderr,
            "warning  Slurm has started %ld tasks, and MPI knows %d of them: `mpirun`, or one of the plugins "
            "that `srun --mpi=list` names, makes ranks of them (docs/parallel.md)\n",
            wanted, ranks->count);
    }
    return 0;
}

int job_start(struct ranks *ranks) {
    int provided;
    *ranks = ranks_alone;
    if (gethostname(ranks->host, sizeof ranks->host - 1) != 0) {
        memcpy(ranks->host, ranks_alone.host, sizeof ranks->host);
    }
    if (!job_is_launched()) {
        return check_count(ranks);
    }
    /* Over one TCP connection Open MPI 4 lets large messages wait for each other: 61 % of a gigabit wire, 95 % over
     * four. What the user or mpirun has set stays. */
    setenv("OMPI_MCA_btl_tcp_links", "4", 0);
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        return error_set("cannot start MPI, though this process was started by its launcher");
    }
    memory_before_exit(ranks_abort); /* or ranks that wait for this one would wait forever */
    if (ranks_check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "cannot have MPI report errors") ||
        ranks_check(MPI_Comm_rank(MPI_COMM_WORLD, &ranks->index), "cannot find the ranks of this job") ||
        ranks_check(MPI_Comm_size(MPI_COMM_WORLD, &ranks->count), "cannot find the ranks of this job")) {
        return -1;
    }
    return check_count(ranks) ? -1 : find_neighbours(ranks);
}

void job_stop(struct ranks *ranks) {
    struct neighbours *neighbours = ranks->neighbours;
    if (neighbours) {
        neighbours_unmap(ranks, neighbours->others);
        host_memory_release(&neighbours->tally);
        free(neighbours->members);
        free(neighbours);
    }
    if (is_joined()) {
        MPI_Finalize();
    }
    *ranks = ranks_alone;
}
