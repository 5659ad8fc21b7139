/* Numbers that a search found to be fastest on a device, and the file in the cache folder that keeps them. */
#pragma once

#include "runtime/gemm/mma_tiles.h"

enum { TUNED_MOST = 17, TUNED_MOST_CHOICES = 12 };

/* By index, or those of matrix units by name. */
union tuned_values {
    size_t at[TUNED_MOST];
    struct mma_tiles tiles;
};

struct tuned_number {
    const char *name;                   /* in the file */
    size_t count;                       /* of what a search chooses from; 0: not by trying */
    size_t choices[TUNED_MOST_CHOICES]; /* [count] */
};

struct tuned_target;

/* What can be tuned: CLBlast's parameters (gemm_parameters.h), or tiles of matrix units (mma_tiles.h). */
struct tuned_kind {
    const char *backend; /* that uses them; also how the file's name begins */
    const char *what;    /* the numbers are, in messages */
    const char *command; /* that finds them */
    const struct tuned_number *numbers;
    size_t count;
    const char *group; /* object of the file that holds the first `grouped` numbers and nothing else */
    size_t grouped;
    /* Whether they are defined and fit. Values of any size may come. */
    bool (*allowed)(const struct tuned_target *target, const union tuned_values *values);
};

/* Whose they are. */
struct tuned_target {
    const struct tuned_kind *kind;
    const struct device *device;
    const struct mma_unit *unit; /* of the device; NULL for CLBlast */
};

/* The file in the cache folder (see program_cache_locate), named by device, driver and unit. Heap memory, NULL with
 * an error. */
char *tuned_path(const struct tuned_target *target, const char *folder);

/* Reads and checks the file. *found is false where there is none; one that cannot be used is an error that says
 * what to do. */
int tuned_read(const struct tuned_target *target, const char *path, union tuned_values *values, bool *found);

/* The same at the device's path in this folder; NULL has none. */
int tuned_load(const struct tuned_target *target, const char *folder, union tuned_values *values, bool *found);

/* Writes the file, whole or not at all, and the folder where it is missing. */
int tuned_write(const struct tuned_target *target, const char *path, const union tuned_values *values);
