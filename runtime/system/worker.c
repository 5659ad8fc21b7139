#include "runtime/system/worker.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

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

static void release(struct worker *worker) {
    sem_destroy(&worker->asked);
    sem_destroy(&worker->done);
    pthread_mutex_destroy(&worker->caller);
    free(worker);
}

int worker_start(struct worker **started) {
    struct worker *worker = *started = memory_zeroed(1, sizeof *worker);
    pthread_mutex_init(&worker->caller, NULL);
    sem_init(&worker->asked, 0, 0);
    sem_init(&worker->done, 0, 0);
    const int code = pthread_create(&worker->thread, NULL, attend, worker);
    if (code) {
        release(worker);
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
        release(worker);
    }
}
