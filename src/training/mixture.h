/* The data of a run: a folder of token files, or several, of which each row takes one by its share. */
#pragma once

#include "src/training/data_set.h"
#include <stddef.h>

enum { MIXTURE_MOST = 256 }; /* folders */

struct mixture_part {
    char *folder;
    double share; /* of the rows; all add up to 1 */
    struct data_set data;
};

struct mixture {
    struct mixture_part *parts; /* [count], at least 1 */
    size_t count;
};

/* Takes apart "FOLDER", or "FOLDER:WEIGHT,FOLDER:WEIGHT,..." if nothing has that name, and makes shares of the
 * weights. Nothing is opened. On success the caller closes *mixture. */
int mixture_parse(const char *text, struct mixture *mixture);

/* mixture_parse, and data_set_open for each folder; all must have one vocabulary. val stays NULL unless it is
 * needed. On failure nothing is left open. */
int mixture_open(const char *text, bool needs_val, struct mixture *mixture);

/* data_set_read_meta for the first folder. */
int mixture_read_meta(const char *text, struct data_set *data);

/* data_set_check for each folder. */
int mixture_check(const struct mixture *mixture);

/* Frees everything; also of a mixture of zeros. */
void mixture_close(struct mixture *mixture);
