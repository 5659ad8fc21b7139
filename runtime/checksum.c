#include "runtime/checksum.h"
#include "runtime/error.h"
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>

static int finish(EVP_MD_CTX *context, char digest[CHECKSUM_SIZE]) {
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    if (EVP_DigestFinal_ex(context, bytes, &length) != 1 || length * 2 + 1 != CHECKSUM_SIZE) {
        return error_set("cannot compute a SHA-256 checksum");
    }
    for (unsigned i = 0; i < length; i++) {
        snprintf(digest + 2 * i, 3, "%02x", bytes[i]);
    }
    return 0;
}

int checksum_memory(const void *data, size_t bytes, char digest[CHECKSUM_SIZE]) {
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    int result = -1;
    if (context == NULL || EVP_DigestInit_ex(context, EVP_sha256(), NULL) != 1 ||
        EVP_DigestUpdate(context, data, bytes) != 1) {
        error_set("cannot compute a SHA-256 checksum");
    } else {
        result = finish(context, digest);
    }
    EVP_MD_CTX_free(context);
    return result;
}

int checksum_file(const char *path, char digest[CHECKSUM_SIZE]) {
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        return error_set_errno("cannot open %s", path);
    }
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    int result = -1;
    if (context == NULL || EVP_DigestInit_ex(context, EVP_sha256(), NULL) != 1) {
        error_set("cannot compute a SHA-256 checksum");
    } else {
        static _Thread_local char block[1 << 16];
        size_t got;
        while ((got = fread(block, 1, sizeof block, file)) > 0) {
            EVP_DigestUpdate(context, block, got);
        }
        result = ferror(file) ? error_set_errno("cannot read %s", path) : finish(context, digest);
    }
    EVP_MD_CTX_free(context);
    fclose(file);
    return result;
}
