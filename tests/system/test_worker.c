/* A thread that works for others. */
#include "runtime/system/parallel.h"
#include "tests/support/test.h"
#include <pthread.h>
#include <stdbool.h>

enum { ASKERS = 4, TURNS = 500 };

/* What the work sees: without a lock, since one thread alone does it. */
static struct {
    pthread_t thread;
    unsigned long count;
    bool changed;
} seen;

static void count_work(void *argument) {
    unsigned long *answer = argument;
    seen.changed |= seen.count && !pthread_equal(seen.thread, pthread_self());
    seen.thread = pthread_self();
    *answer = ++seen.count;
}

static void *ask(void *context) {
    unsigned long before = 0;
    for (int i = 0; i < TURNS; i++) {
        unsigned long answer = 0;
        worker_do(context, count_work, &answer);
        if (answer <= before) {
            return context;
        }
        before = answer;
    }
    return NULL;
}

/* Each asker has its answer when worker_do returns, and one thread has given all of them. */
UNIT_TEST(one_thread_works_for_many) {
    struct worker *worker;
    pthread_t askers[ASKERS];
    void *failed;
    assert_int_equal(worker_start(&worker), 0);
    for (int i = 0; i < ASKERS; i++) {
        assert_int_equal(pthread_create(&askers[i], NULL, ask, worker), 0);
    }
    for (int i = 0; i < ASKERS; i++) {
        assert_int_equal(pthread_join(askers[i], &failed), 0);
        assert_null(failed);
    }
    worker_stop(worker);
    assert_int_equal(seen.count, ASKERS * TURNS);
    assert_false(seen.changed);
    assert_false(pthread_equal(seen.thread, pthread_self()));
}

UNIT_TEST(it_ends_without_work) {
    struct worker *worker;
    assert_int_equal(worker_start(&worker), 0);
    worker_stop(worker);
    worker_stop(NULL);
}

UNIT_TEST_MAIN(NULL, NULL)
