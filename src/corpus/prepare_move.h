/* Complete results on their way from the work folder to where they belong, in steps of which none is lost. */
#ifndef HC_SRC_PREPARE_MOVE_H
#define HC_SRC_PREPARE_MOVE_H

#include <jansson.h>
#include <stdbool.h>

/* Moves train.bin, val.bin (or with has_val false removes an older one) and meta.json, the last one, from `work`
 * into `folder`, and removes `work`. What was cut off, or failed, is finished by prepare_finish_move. task: what
 * the results are of. */
int prepare_move(const char *folder, const char *work, bool has_val, const json_t *task);

/* Goes on with a move that an earlier process began. 1: it is finished, *task, the caller's, is its task; 0: there
 * was none; -1 with an error. */
int prepare_finish_move(const char *folder, const char *work, json_t **task);

#endif
