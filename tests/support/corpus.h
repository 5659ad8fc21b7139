/* A small corpus and a config file for tests that run whole programs, in the scratch folder. */
#ifndef HC_TESTS_CORPUS_H
#define HC_TESTS_CORPUS_H

/* Writes "data" (with hc_prepare) and "tiny.conf"; programs is the folder that the programs are in. 0 or -1. */
int corpus_make(const char *programs);

#endif
