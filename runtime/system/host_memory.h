/* Large blocks of memory: zeroed whole pages, huge pages where the system has them. A block may be shareable: then
 * other processes of the same user on this host can map it while its owner lives. It has no name in any file
 * system, so nothing is left behind. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct host_memory {
    void *data; /* NULL: none */
    size_t bytes;
    int file; /* descriptor of a shareable block; -1: not shareable. Undefined without data */
};

/* Identifies a block, so that another process can map it. */
struct host_memory_name {
    int64_t process, file;
    uint64_t device, inode; /* of the file, to detect a wrong one */
    uint64_t bytes;
};

/* Allocates at least `bytes`, or a page. If the system has no shareable memory, the block is not shareable. Returns
 * false, with all members zero, if there is no memory. */
bool host_memory_create(struct host_memory *memory, size_t bytes, bool shareable);

/* A block of another process is only unmapped. Does nothing if there is no data. */
void host_memory_release(struct host_memory *memory);

/* Returns false if the block is not shareable. */
bool host_memory_name(const struct host_memory *memory, struct host_memory_name *name);

/* Maps a block of another process. Returns false if that process has ended, or is another user's or in another
 * container. */
bool host_memory_open(struct host_memory *memory, const struct host_memory_name *name);
