#include "runtime/system/parallel.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include "runtime/system/memory.h"
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- a thread for others */

struct worker {
    pthread_t thread;
    pthread_mutex_t caller;       /* held by the thread that is in worker_do */
    sem_t asked, done;            /* pieces of work */
    void (*work)(void *argument); /* NULL: the thread ends */
    void *argument;
};

static void wait_for(sem_t *event) {
    while (sem_wait(event) != 0) { /* a signal came */
    }
}

static void *attend(void *context) {
    struct worker *worker = context;
    for (wait_for(&worker->asked); worker->work; wait_for(&worker->asked)) {
        worker->work(worker->argument);
        sem_post(&worker->done);
    }
    return NULL;
}

int worker_start(struct worker **started) {
    struct worker *worker = *started = memory_zeroed(1, sizeof *worker);
    pthread_mutex_init(&worker->caller, NULL);
    sem_init(&worker->asked, 0, 0);
    sem_init(&worker->done, 0, 0);
    const int code = pthread_create(&worker->thread, NULL, attend, worker);
    if (code) {
        free(worker);
        *started = NULL;
        return error_set("cannot start a thread: %s", strerror(code));
    }
    return 0;
}

void worker_do(struct worker *worker, void (*work)(void *argument), void *argument) {
    pthread_mutex_lock(&worker->caller);
    worker->work = work;
    worker->argument = argument;
    sem_post(&worker->asked);
    wait_for(&worker->done);
    pthread_mutex_unlock(&worker->caller);
}

void worker_stop(struct worker *worker) {
    if (worker) {
        worker->work = NULL;
        sem_post(&worker->asked);
        pthread_join(worker->thread, NULL);
        sem_destroy(&worker->asked);
        sem_destroy(&worker->done);
        pthread_mutex_destroy(&worker->caller);
        free(worker);
    }
}
