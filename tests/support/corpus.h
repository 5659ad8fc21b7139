/* A small corpus and a config file for tests that run whole programs, in the scratch folder. */
#pragma once

#include <stdbool.h>

/* Writes "data" (with hc_prepare) and "tiny.conf"; programs is the folder that the programs are in. 0 or -1. */
int corpus_make(const char *programs);

/* Set-up of a group of tests: the scratch folder and the corpus in it. */
int corpus_begin(void **state);

/* Writes the tokens of one file of the scratch folder over another one in place, which keeps its size: as they are,
 * or turned round. */
void corpus_write_over(const char *path, const char *from, bool turned);
