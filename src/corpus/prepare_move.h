/* Complete results on their way from the work folder to where they belong, in steps of which none is lost. */
#pragma once

#include <stdbool.h>

/* Moves train.bin, val.bin (or with has_val false removes an older one) and meta.json, the last one, from `work`
 * into `folder`, and removes `work`. Called again, it goes on where it was cut off, or failed. */
int prepare_move(const char *folder, const char *work, bool has_val);
