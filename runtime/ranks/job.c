#include "runtime/ranks/job.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "runtime/system/spawn.h"
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    if (ranks_are_joined()) {
        MPI_Finalize();
    }
    *ranks = ranks_alone;
}
