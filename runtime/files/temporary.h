/* Files and folders under temporary names, to be moved into place when they are whole. The name is
 * ".tmp-<name>-<identity>-<process>-<number>", so that it tells who made a leftover. The identity is that of a space
 * of process numbers: a boot of a host, or a container. Only there can it be asked whether the process is still
 * alive, and only what such a dead process left is ever removed, by files_stage_clean. */
#pragma once

#include "runtime/files/destination.h"

/* Creates a temporary file (*descriptor is set) or folder (descriptor is NULL) beside its destination, with
 * permissions as the user's umask wants them. Its path in heap memory; NULL with an error. */
char *temporary_make(const struct destination *destination, int *descriptor);
