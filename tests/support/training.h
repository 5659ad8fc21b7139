/* hc_train with the small model and corpus of tests/support/corpus.h; runs are folders in the scratch folder.
 * Their learning rate falls over 20 iterations however many they are of, so that a run in parts is like one in
 * one piece. */
#pragma once

#include "tests/support/child.h"
#include "tests/support/scratch.h"

#define TRAIN_PROGRAM HC_PROGRAMS "/hc_train"

#define TRAIN_ARGUMENTS(run, ...)                                                                                  \
    ((const char *const[]){TRAIN_PROGRAM, "--config", scratch_path("tiny.conf"), "--data-dir",                     \
                           scratch_path("data"), "--out-dir", scratch_path(run), "--lr-decay-iters", "20",         \
                           ##__VA_ARGS__, NULL})

/* These give the exit status, or minus the signal that ended it. */
#define TRAIN_LIMITED(file_bytes, run, ...)                                                                        \
    child_finish(child_start(file_bytes, TRAIN_ARGUMENTS(run, ##__VA_ARGS__)))
#define TRAIN(run, ...) TRAIN_LIMITED(CHILD_UNLIMITED, run, ##__VA_ARGS__)
