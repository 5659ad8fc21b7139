#include "runtime/files/checksum.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct checksum {
    EVP_MD_CTX *context;
    bool failed;
};

struct checksum *checksum_create(void) {
    struct checksum *checksum = memory_zeroed(1, sizeof *checksum);
    checksum->context = EVP_MD_CTX_new();
    if (checksum->context == NULL) {
        memory_refused(0);
    }
    checksum->failed = EVP_DigestInit_ex(checksum->context, EVP_sha256(), NULL) == 0;
    return checksum;
}

void checksum_update(struct checksum *checksum, const void *data, size_t bytes) {
    checksum->failed = checksum->failed || EVP_DigestUpdate(checksum->context, data, bytes) == 0;
}

void checksum_free(struct checksum *checksum) {
    if (checksum != NULL) {
        EVP_MD_CTX_free(checksum->context);
        free(checksum);
    }
}

int checksum_finish(struct checksum *checksum, char digest[CHECKSUM_SIZE]) {
    unsigned char raw[EVP_MAX_MD_SIZE];
    const bool failed = checksum->failed || EVP_DigestFinal_ex(checksum->context, raw, NULL) == 0;
    checksum_free(checksum);
    for (size_t i = 0; !failed && i < (CHECKSUM_SIZE - 1) / 2; i++) {
        snprintf(digest + 2 * i, 3, "%02x", raw[i]);
    }
    return failed ? error_set("cannot compute a SHA-256 checksum: OpenSSL refuses") : 0;
}

int checksum_memory(const void *data, size_t bytes, char digest[CHECKSUM_SIZE]) {
    struct checksum *checksum = checksum_create();
    checksum_update(checksum, data, bytes);
    return checksum_finish(checksum, digest);
}

int checksum_strings(const char *const *strings, size_t count, char digest[CHECKSUM_SIZE]) {
    struct checksum *checksum = checksum_create();
    for (size_t i = 0; i < count; i++) {
        checksum_update(checksum, strings[i], strlen(strings[i]) + 1);
    }
    return checksum_finish(checksum, digest);
}

int checksum_file(const char *path, char digest[CHECKSUM_SIZE]) {
    unsigned char block[65536];
    uint64_t bytes;
    ssize_t count;
    const int file = files_open(path, path, &bytes);
    if (file < 0) {
        return -1;
    }
    struct checksum *checksum = checksum_create();
    while ((count = files_read_all(file, block, sizeof block, -1)) > 0) {
        checksum_update(checksum, block, (size_t)count);
    }
    const int status = count < 0 ? error_set_errno("cannot read") : 0;
    close(file);
    return checksum_finish(checksum, digest) == 0 && status == 0 ? 0 : error_prefix("checksum of %s", path);
}
