#include "runtime/files/checksum.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

EVP_MD_CTX *checksum_create(void) {
    EVP_MD_CTX *checksum = EVP_MD_CTX_new();
    if (checksum == NULL || EVP_DigestInit_ex(checksum, EVP_sha256(), NULL) == 0) {
        memory_refused(0);
    }
    return checksum;
}

void checksum_update(EVP_MD_CTX *checksum, const void *data, size_t bytes) {
    if (EVP_DigestUpdate(checksum, data, bytes) == 0) {
        memory_refused(0);
    }
}

void checksum_finish(EVP_MD_CTX *checksum, char digest[CHECKSUM_SIZE]) {
    unsigned char raw[EVP_MAX_MD_SIZE];
    if (EVP_DigestFinal_ex(checksum, raw, NULL) == 0) {
        memory_refused(0);
    }
    EVP_MD_CTX_free(checksum);
    for (size_t i = 0; i < (CHECKSUM_SIZE - 1) / 2; i++) {
        snprintf(digest + 2 * i, 3, "%02x", raw[i]);
    }
}

void checksum_memory(const void *data, size_t bytes, char digest[CHECKSUM_SIZE]) {
    EVP_MD_CTX *checksum = checksum_create();
    checksum_update(checksum, data, bytes);
    checksum_finish(checksum, digest);
}

void checksum_strings(const char *const *strings, size_t count, char digest[CHECKSUM_SIZE]) {
    EVP_MD_CTX *checksum = checksum_create();
    for (size_t i = 0; i < count; i++) {
        checksum_update(checksum, strings[i], strlen(strings[i]) + 1);
    }
    checksum_finish(checksum, digest);
}

int checksum_file(const char *path, char digest[CHECKSUM_SIZE]) {
    unsigned char block[65536];
    uint64_t bytes;
    ssize_t count;
    const int file = files_open(path, path, &bytes);
    if (file < 0) {
        return -1;
    }
    EVP_MD_CTX *checksum = checksum_create();
    while ((count = files_read_all(file, block, sizeof block, -1)) > 0) {
        checksum_update(checksum, block, (size_t)count);
    }
    const int status = count < 0 ? error_set_errno("checksum of %s: cannot read", path) : 0;
    close(file);
    checksum_finish(checksum, digest);
    return status;
}
