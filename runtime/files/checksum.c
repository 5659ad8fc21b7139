#include "runtime/files/checksum.h"
#include "runtime/system/error.h"
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void digest_to_text(const unsigned char *bytes, char digest[CHECKSUM_SIZE]) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < (CHECKSUM_SIZE - 1) / 2; i++) {
        digest[2 * i] = digits[bytes[i] >> 4];
        digest[2 * i + 1] = digits[bytes[i] & 15];
    }
    digest[CHECKSUM_SIZE - 1] = '\0';
}

struct checksum {
    EVP_MD_CTX *context;
};

static int fail(void) {
    return error_set("cannot compute a SHA-256 checksum");
}

struct checksum *checksum_create(void) {
    struct checksum *checksum = malloc(sizeof *checksum);
    if (checksum == NULL) {
        error_set("out of memory");
        return NULL;
    }
    checksum->context = EVP_MD_CTX_new();
    if (checksum->context == NULL || !EVP_DigestInit_ex(checksum->context, EVP_sha256(), NULL)) {
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
    digest_to_text(raw, digest);
    return 0;
}

void checksum_free(struct checksum *checksum) {
    if (checksum != NULL) {
        EVP_MD_CTX_free(checksum->context);
        free(checksum);
    }
}

int checksum_memory(const void *data, size_t bytes, char digest[CHECKSUM_SIZE]) {
    struct checksum *checksum = checksum_create();
    const int result =
        checksum != NULL && checksum_update(checksum, data, bytes) == 0 ? checksum_finish(checksum, digest) : -1;
    checksum_free(checksum);
    return result;
}

static int add_stream(FILE *file, struct checksum *checksum) {
    unsigned char block[65536];
    size_t count;
    while ((count = fread(block, 1, sizeof(block), file)) > 0) {
        if (checksum_update(checksum, block, count)) {
            return -1;
        }
    }
    return ferror(file) ? error_set_errno("cannot read") : 0;
}

int checksum_file(const char *path, char digest[CHECKSUM_SIZE]) {
    FILE *file = fopen(path, "rbe");
    if (!file) {
        return error_set_errno("cannot open %s", path);
    }
    struct checksum *checksum = checksum_create();
    const int result = checksum != NULL && add_stream(file, checksum) == 0 ? checksum_finish(checksum, digest) : -1;
    checksum_free(checksum);
    fclose(file);
    return result ? error_prefix("checksum of %s", path) : 0;
}

int checksum_strings(const char *const *strings, size_t count, char digest[CHECKSUM_SIZE]) {
    struct checksum *checksum = checksum_create();
    int status = checksum ? 0 : -1;
    for (size_t i = 0; i < count && status == 0; i++) {
        status = checksum_update(checksum, strings[i], strlen(strings[i]) + 1);
    }
    status = status || checksum_finish(checksum, digest) ? -1 : 0;
    checksum_free(checksum);
    return status;
}
