/* Programs of hctrain, run by tests on a small corpus, and what runs of hc_train leave in their folders.
 * Includes what such tests need. All paths are names in the scratch folder. The learning rate falls over 20
 * iterations however many a run has, so that a run in parts is like one in one piece. */
#pragma once

#include "runtime/files/files.h"
#include "tests/support/child.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Set-up of a group of tests: the scratch folder, and in it "text.txt", "data", which hc_prepare makes of it, and
 * the config file "tiny.conf" of a small model. */
int corpus_begin(void **state);

/* Writes the tokens of one file over another one in place, which keeps its size: as they are, or turned round. */
void corpus_write_over(const char *path, const char *from, bool turned);

#define TRAIN_PROGRAM HC_PROGRAMS "/hc_train"

#define TRAIN_ARGUMENTS(run, ...)                                                                                  \
    ((const char *const[]){TRAIN_PROGRAM, "--config", scratch_path("tiny.conf"), "--data-dir",                     \
                           scratch_path("data"), "--out-dir", scratch_path(run), "--lr-decay-iters", "20",         \
                           ##__VA_ARGS__, NULL})

/* The exit status, or minus the signal that ended it. */
#define TRAIN(run, ...) child_finish(child_start(CHILD_UNLIMITED, TRAIN_ARGUMENTS(run, ##__VA_ARGS__)))

enum { FAILED = 1 };

/* How the last child ended: well, or with this status and this text among what it said. */
void assert_done(int status);
void assert_failed(int status, int expected, const char *text);

/* What begins the arguments of two ranks with commands of their own, with "," between them. */
#define BY_RANK HC_MPIRUN, "-np", "2", HC_TEST_DATA "/support/by_rank.sh"

/* "<run>/<name>", valid until scratch_end. */
char *run_path(const char *run, const char *name);

bool has(const char *run, const char *name);

void assert_same_file(const char *first, const char *second);

/* Same weights and moments, bit for bit, in the checkpoints of this name. */
void assert_same_checkpoint(const char *first, const char *second, const char *name);

/* Whether all alpha_res of the checkpoint "<run>/ckpt-<n>" `after` are those of `before`, bit for bit, and have no
 * first moments; or, without `frozen`, none of them. */
void assert_frozen(const char *before, const char *after, bool frozen);

/* metrics.jsonl as an array, without what the clock decides. */
json_t *metrics(const char *run);
void assert_same_metrics(const char *first, const char *second);

/* Losses, validation losses and gradient norms of two runs, relative to the first one's, of `least` lines or more;
 * norms may differ ten times as much. */
void assert_near_metrics(const char *first, const char *second, size_t least, double tolerance);

/* A number of an object, which has to be there. */
double number_in(const json_t *object, const char *name);

double loss_at(const json_t *lines, size_t index);

/* The newest checkpoint's iteration, `from` or later; -1: none. */
long newest(const char *run, long from);

void wait_ms(long milliseconds);

/* Waits for a checkpoint newer than that of iteration `than`; its iteration. */
long wait_for_checkpoint(const char *run, long than);

/* ---- files and what they have */

long count_lines(const char *path);
const char *checkpoint(long iteration); /* "ckpt-<iteration>" */
void copy(const char *from, const char *to);
void copy_data(const char *to); /* the corpus, for tests that change it */
json_t *read_json(const char *path);

void assert_says(const char *text);
void assert_same_run(const char *first, const char *second,
                     const char *name); /* metrics, and the checkpoint `name` */
