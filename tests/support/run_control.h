/* For tests of what runs keep, refuse and go on from: hc_train and the other programs, run on a small corpus; a run
 * that is under way; files that change under it. Includes what such tests need. All paths are names in the scratch
 * folder. */
#pragma once

#include "runtime/files/files.h"
#include "tests/support/corpus.h"
#include "tests/support/runs.h"
#include "tests/support/test.h"
#include "tests/support/training.h"
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FAILED = 1, WRONG_USAGE = 2, INTERRUPTED = 130 };
#define TIMEOUT_SECONDS 60.0

#define EVALUATE(...)                                                                                              \
    CHILD_RUN(HC_PROGRAMS "/hc_eval", "--checkpoint", scratch_path("base/ckpt-2"), "--device", "pocl", __VA_ARGS__)
#define PREPARE(...) CHILD_RUN(HC_PROGRAMS "/hc_prepare", __VA_ARGS__)
#define EXPORT(from, to)                                                                                           \
    CHILD_RUN(HC_PROGRAMS "/hc_export", "--format", "torch", "--checkpoint", scratch_path(from), "--out",          \
              scratch_path(to))
#define ANALYZE(...) CHILD_RUN(HC_PROGRAMS "/hc_analyze", __VA_ARGS__)

/* The folder alone says how the run goes on. */
#define RESUME(run, ...)                                                                                           \
    CHILD_RUN(TRAIN_PROGRAM, "--init-from", "resume", "--out-dir", scratch_path(run), ##__VA_ARGS__)

/* ---- a run under way, of which there is one at a time */

void start(const char *const *arguments);
void start_with(const struct child_setup *setup, const char *const *arguments);

/* Wait for its end: the exit status. interrupt sends SIGINT first. */
int finish(void);
int interrupt(void);
void send_signal(int number); /* to the run */

/* Waits until `find` returns 0 or more for `than`, and returns that; fails if the run ends before. */
typedef long (*progress)(const char *run, long than);
long wait_for(progress find, const char *run, long than);
long newer_checkpoint(const char *run, long than);
long more_lines(const char *run, long than);

/* ---- files and what they have */

long count_lines(const char *path);
long count_evaluations(const char *run, long iteration); /* in metrics.jsonl */
const char *decimal(long number);
const char *checkpoint(long iteration); /* "ckpt-<iteration>" */
void copy(const char *from, const char *to);
void copy_data(const char *to); /* the corpus, for tests that change it */
json_t *read_json(const char *path);
json_int_t saved_integer(const char *path, const char *name);
void link_to(const char *target, const char *name); /* `target` is relative to the link, as ln has it */
void remove_checkpoint(const char *run, long iteration);
void turn_round(const char *path); /* the same tokens in reverse order */

void assert_says(const char *text);
void assert_refused(int status, const char *text); /* as a failure or as wrong usage */
void assert_has_text(const char *path, const char *expected);
void assert_same_run(const char *first, const char *second,
                     const char *name); /* metrics, and the checkpoint `name` */

/* ---- the tests of a program
 *
 * RUN_TEST(name) {...}, and UNIT_TEST_MAIN(run_control_begin, scratch_end) at the end. Beside the corpus the tests
 * find "base", a run with two checkpoints, and "short.txt". */

int run_control_begin(void **state);
int run_control_stop(void **state); /* ends what a failed test has left running */

#define RUN_TEST(name) UNIT_TEST_BETWEEN(NULL, name, run_control_stop)
