#include "runtime/files/checksum.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct checksum {
    EVP_MD_CTX *context;
};

static int fail(void) {
    return error_set("cannot compute a SHA-256 checksum");
}

struct checksum *checksum_create(void) {
    struct checksum *checksum = calloc(1, sizeof *checksum);
    if (checksum == NULL || (checksum->context = EVP_MD_CTX_new()) == NULL ||
        !EVP_DigestInit_ex(checksum->context, EVP_sha256(), NULL)) {
        fail();
        checksum_free(checksum);
        return NULL;
    }
    return checksum;
}

int checksum_update(struct checksum *checksum, const void *data, size_t bytes) {
    return EVP_DigestUpdate(checksum->context, data, bytes) ? 0 : fail();
}

int checksum_finish(struct checksum *checksum, char digest[CHECKSUM_SIZE]) {
    unsigned char raw[EVP_MAX_MD_SIZE];
    if (!EVP_DigestFinal_ex(checksum->context, raw, NULL)) {
        return fail();
    }
    for (size_t i = 0; i < (CHECKSUM_SIZE - 1) / 2; i++) {
        snprintf(digest + 2 * i, 3, "%02x", raw[i]);
    }
    return 0;
}

void checksum_free(struct checksum *checksum) {
    if (checksum != NULL) {
        EVP_MD_CTX_free(checksum->context);
        free(checksum);
    }
}

/* The digest, unless something failed before. Frees the checksum, which may be NULL then. */
static int end(struct checksum *checksum, int status, char digest[CHECKSUM_SIZE]) {
    status = status == 0 ? checksum_finish(checksum, digest) : -1;
    checksum_free(checksum);
    return status;
}

int checksum_memory(const void *data, size_t bytes, char digest[CHECKSUM_SIZE]) {
    struct checksum *checksum = checksum_create();
    return end(checksum, checksum != NULL ? checksum_update(checksum, data, bytes) : -1, digest);
}

int checksum_strings(const char *const *strings, size_t count, char digest[CHECKSUM_SIZE]) {
    struct checksum *checksum = checksum_create();
    int status = checksum != NULL ? 0 : -1;
    for (size_t i = 0; i < count && status == 0; i++) {
        status = checksum_update(checksum, strings[i], strlen(strings[i]) + 1);
    }
    return end(checksum, status, digest);
}

int checksum_file(const char *path, char digest[CHECKSUM_SIZE]) {
    unsigned char block[65536];
    size_t count;
    FILE *file = files_open_stream(path);
    if (file == NULL) {
        return -1;
    }
    struct checksum *checksum = checksum_create();
    int status = checksum != NULL ? 0 : -1;
    while (status == 0 && (count = fread(block, 1, sizeof block, file)) > 0) {
        status = checksum_update(checksum, block, count);
    }
    if (status == 0 && ferror(file)) {
        status = error_set_errno("cannot read");
    }
    fclose(file);
    return end(checksum, status, digest) == 0 ? 0 : error_prefix("checksum of %s", path);
}
