/* What runs of hc_train leave in their folders, which are in the scratch folder and known by their names. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

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
