#include "runtime/system/host_memory.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

/* Large mappings start at a huge page, so that the kernel can back them with huge pages: address space for one more
 * is reserved first, and then the mapping is put there. NULL on failure. */
static void *map_pages(size_t length, int file) {
    const size_t slack = length >= 2 * HUGE_PAGE ? HUGE_PAGE : 0;
    size_t total;
    if (!length || __builtin_add_overflow(length, slack, &total)) {
        return NULL;
    }
    char *start = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        return NULL;
    }
    const size_t head = slack ? (HUGE_PAGE - (size_t)((uintptr_t)start % HUGE_PAGE)) % HUGE_PAGE : 0;
    const int kind = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *data = mmap(start + head, length, PROT_READ | PROT_WRITE, kind | MAP_FIXED, file, 0);
    if (data == MAP_FAILED) {
        munmap(start, total);
        return NULL;
    }
    if (head) {
        munmap(start, head);
    }
    if (slack - head) {
        munmap(start + head + length, slack - head);
    }
    if (slack) {
        madvise(data, length, MADV_HUGEPAGE); /* advice: failure changes nothing */
    }
    return data;
}

bool host_memory_create(struct host_memory *memory, size_t bytes, bool shareable) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t length; /* whole pages, at least one */
    *memory = (struct host_memory){0};
    if (__builtin_mul_overflow(bytes ? (bytes - 1) / page + 1 : 1, page, &length)) {
        return false;
    }
    int file = shareable ? memfd_create("hctrain", MFD_CLOEXEC) : -1;
    if (file >= 0 && ftruncate(file, (off_t)length) != 0) {
        close(file);
        file = -1;
    }
    void *data = map_pages(length, file);
    if (data) {
        *memory = (struct host_memory){data, length, file};
    } else if (file >= 0) {
        close(file);
    }
    return data != NULL;
}

void host_memory_release(struct host_memory *memory) {
    if (memory->data) {
        munmap(memory->data, memory->bytes);
        if (memory->file >= 0) {
            close(memory->file);
        }
    }
    *memory = (struct host_memory){0};
}

bool host_memory_name(const struct host_memory *memory, struct host_memory_name *name) {
    struct stat facts;
    if (!memory->data || memory->file < 0 || fstat(memory->file, &facts) != 0) {
        return false;
    }
    *name = (struct host_memory_name){.process = getpid(),
                                      .file = memory->file,
                                      .device = (uint64_t)facts.st_dev,
                                      .inode = (uint64_t)facts.st_ino,
                                      .bytes = memory->bytes};
    return true;
}

bool host_memory_open(struct host_memory *memory, const struct host_memory_name *name) {
    char path[64];
    struct stat facts;
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)name->process, (long long)name->file);
    *memory = (struct host_memory){0};
    const int file = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file < 0) {
        return false;
    }
    /* the path leads to whatever that process, or one of the same number in this container, has open there */
    if (fstat(file, &facts) == 0 && (uint64_t)facts.st_dev == name->device &&
        (uint64_t)facts.st_ino == name->inode && (uint64_t)facts.st_size == name->bytes) {
        void *data = map_pages((size_t)name->bytes, file);
        *memory = data ? (struct host_memory){data, (size_t)name->bytes, -1} : (struct host_memory){0};
    }
    close(file); /* the mapping stays */
    return memory->data != NULL;
}
