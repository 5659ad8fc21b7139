/* Large pieces of memory of this process: zeroed whole pages, for which huge ones are asked. A piece may be shareable: other
 * processes of the same user on this host can map it, too, as long as its owner lives; when the last of them ends it is gone,
 * since it has no name that could be left behind. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct host_memory {
    void *data; /* NULL: none */
    size_t bytes;
    int file; /* of a shareable piece; -1 of others. Nothing where there is no data */
};

/* What another process needs to know to map a piece. */
struct host_memory_name {
    int64_t process, file;
    uint64_t device, inode; /* of the file, by which a wrong one is known */
    uint64_t bytes;
};

/* At least `bytes`, or a page. Where the system has no shareable memory the piece is a plain one, which has no name.
 * false, and all members zero, where there is no memory at all. */
bool host_memory_create(struct host_memory *memory, size_t bytes, bool shareable);

/* What was mapped from another process is unmapped here only. Nothing where there is no data. */
void host_memory_release(struct host_memory *memory);

/* false where the piece is not shareable. */
bool host_memory_name(const struct host_memory *memory, struct host_memory_name *name);

/* Maps a piece of another process. false where that cannot be: it ended, is another user's or in another container. */
bool host_memory_open(struct host_memory *memory, const struct host_memory_name *name);
