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
