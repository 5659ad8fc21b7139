#include "runtime/system/worker.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*work)(void *argument); /* NULL: there is none */
    void *argument;
    unsigned long asked, done; /* pieces of work so far */
    bool ends;
};

static void *attend(void *context) {
    struct worker *worker = context;
    pthread_mutex_lock(&worker->lock);
    while (!worker->ends) {
        if (!worker->work) {
            pthread_cond_wait(&worker->changed, &worker->lock);
            continue;
        }
        pthread_mutex_unlock(&worker->lock);
        worker->work(worker->argument); /* which nobody changes as long as it is there */
        pthread_mutex_lock(&worker->lock);
        worker->work = NULL;
        worker->done++;
        pthread_cond_broadcast(&worker->changed);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

int worker_start(struct worker **started) {
    struct worker *worker = *started = memory_zeroed(1, sizeof *worker);
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->changed, NULL);
    const int code = pthread_create(&worker->thread, NULL, attend, worker);
    if (code) {
        pthread_cond_destroy(&worker->changed);
        pthread_mutex_destroy(&worker->lock);
        free(worker);
        *started = NULL;
        return error_set("cannot start a thread: %s", strerror(code));
    }
    return 0;
}

void worker_do(struct worker *worker, void (*work)(void *argument), void *argument) {
    pthread_mutex_lock(&worker->lock);
    while (worker->work) { /* somebody else's */
        pthread_cond_wait(&worker->changed, &worker->lock);
    }
    worker->work = work;
    worker->argument = argument;
    const unsigned long number = ++worker->asked;
    pthread_cond_broadcast(&worker->changed);
    while (worker->done < number) {
        pthread_cond_wait(&worker->changed, &worker->lock);
    }
    pthread_mutex_unlock(&worker->lock);
}

void worker_stop(struct worker *worker) {
    if (!worker) {
        return;
    }
    pthread_mutex_lock(&worker->lock);
    worker->ends = true;
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->thread, NULL);
    pthread_cond_destroy(&worker->changed);
    pthread_mutex_destroy(&worker->lock);
    free(worker);
}
