#include "tests/fuzz/fuzz_file.h"
#include "runtime/system/array.h"
#include <errno.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { FULL_BYTES = 16 }; /* that a file still gets on a full disk */

void fuzz_require(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
        abort();
    }
}

const char *fuzz_file(const uint8_t *data, size_t bytes) {
    static int descriptor = -1;
    static char path[64];
    if (descriptor >= 0) {
        close(descriptor);
    }
    descriptor = memfd_create("fuzz", MFD_CLOEXEC);
    if (descriptor < 0 || (bytes > 0 && write(descriptor, data, bytes) != (ssize_t)bytes)) {
        perror("memfd_create");
        abort();
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    return path;
}

/* All bytes, and what English merges first. */
const char *fuzz_vocabulary(void) {
    static const char *const merges[] = {" t", "he", " a", "in", "re", " the", "on", "\n\n", "  ", "    "};
    unsigned char text[8192];
    size_t bytes = 0;
    for (unsigned rank = 0; rank < 256 + COUNT(merges); rank++) {
        const char byte = (char)rank;
        const char *string = rank < 256 ? &byte : merges[rank - 256];
        bytes += (size_t)EVP_EncodeBlock(text + bytes, (const unsigned char *)string,
                                         rank < 256 ? 1 : (int)strlen(string));
        bytes += (size_t)sprintf((char *)text + bytes, " %u\n", rank);
    }
    return fuzz_file(text, bytes);
}

void fuzz_fill_disk(bool full) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN); /* so that writing fails instead */
    if (getrlimit(RLIMIT_FSIZE, &limit)) {
        perror("getrlimit");
        abort();
    }
    limit.rlim_cur = full ? FULL_BYTES : limit.rlim_max;
    if (setrlimit(RLIMIT_FSIZE, &limit)) {
        perror("setrlimit");
        abort();
    }
}

/* ---- a folder */

static char folder[64];
static const char *const *all_names;

static void remove_files(void) {
    char path[160];
    for (const char *const *name = all_names; name && *name; name++) {
        snprintf(path, sizeof path, "%s/%s", folder, *name);
        remove(path);
    }
}

static void remove_folder(void) {
    remove_files();
    rmdir(folder);
}

static void begin_folder(const char *const *names) {
    const char *temporary = getenv("TMPDIR");
    all_names = names;
    if (*folder) {
        remove_files();
        return;
    }
    snprintf(folder, sizeof folder, "%.40s/hc-fuzz-XXXXXX", temporary ? temporary : "/tmp");
    if (!mkdtemp(folder)) {
        perror("mkdtemp");
        abort();
    }
    atexit(remove_folder);
}

static void write_file(const char *name, const uint8_t *data, size_t bytes) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file)) {
        perror(path);
        abort();
    }
}

/* The name of the list that the text after a mark begins with and that ends its line; NULL: none does. */
static const char *name_at(const uint8_t *text, size_t bytes, const char *const *names) {
    for (; *names; names++) {
        const size_t length = strlen(*names);
        if (length < bytes && memcmp(text, *names, length) == 0 && text[length] == '\n') {
            return *names;
        }
    }
    return NULL;
}

const char *fuzz_folder(const uint8_t *data, size_t bytes, const char *const *names) {
    static const char mark[] = "==> ";
    const size_t length = sizeof mark - 1;
    const char *name = names[0];
    const uint8_t *const end = data + bytes, *content = data;
    begin_folder(names);
    for (const uint8_t *at = data; at < end; at++) {
        const bool marks =
            (size_t)(end - at) > length && memcmp(at, mark, length) == 0 && (at == data || at[-1] == '\n');
        const char *next = marks ? name_at(at + length, (size_t)(end - at) - length, names) : NULL;
        if (next) {
            if (at > content) {
                write_file(name, content, (size_t)(at - content));
            }
            name = next;
            content = at + length + strlen(next) + 1;
        }
    }
    if (content <= end && (content < end || content > data)) {
        write_file(name, content, (size_t)(end - content));
    }
    return folder;
}
