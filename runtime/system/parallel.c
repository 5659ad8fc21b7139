#include "runtime/system/parallel.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { MOST_THREADS = 256 };

struct crew {
    parallel_work work;
    void *context;
    size_t count;
    size_t next; /* piece, shared */
    bool failed; /* shared */
    char *error; /* of the first failure, whose thread alone sets it */
};

static void *run_pieces(void *context) {
    struct crew *crew = context;
    size_t index;
    while (!__atomic_load_n(&crew->failed, __ATOMIC_ACQUIRE) &&
           (index = __atomic_fetch_add(&crew->next, 1, __ATOMIC_RELAXED)) < crew->count) {
        if (crew->work(crew->context, index) && !__atomic_exchange_n(&crew->failed, true, __ATOMIC_ACQ_REL)) {
            crew->error = error_keep();
        }
    }
    return NULL;
}

int parallel_run(size_t count, parallel_work work, void *context) {
    struct crew crew = {.work = work, .context = context, .count = count};
    const unsigned cores = host_cores() < MOST_THREADS ? host_cores() : MOST_THREADS;
    const unsigned wanted = cores < count ? cores : (unsigned)count;
    pthread_t threads[MOST_THREADS];
    unsigned started = 0;
    /* this thread is one of them; without the others it does all */
    while (started + 1 < wanted && pthread_create(&threads[started], NULL, run_pieces, &crew) == 0) {
        started++;
    }
    run_pieces(&crew);
    for (unsigned i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    return crew.failed ? error_restore(crew.error) : 0;
}
