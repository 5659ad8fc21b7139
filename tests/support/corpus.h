/* A small corpus and a config file for tests that run whole programs, in the scratch folder. */
#pragma once

/* Writes "data" (with hc_prepare) and "tiny.conf"; programs is the folder that the programs are in. 0 or -1. */
int corpus_make(const char *programs);
