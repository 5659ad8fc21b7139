#include "runtime/checksum.h"
#include "runtime/error.h"
#include <openssl/evp.h>
#include <stdio.h>

static void digest_to_text(const unsigned char *bytes, char digest[CHECKSUM_SIZE]) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < (CHECKSUM_SIZE - 1) / 2; i++) {
        digest[2 * i] = digits[bytes[i] >> 4];
        digest[2 * i + 1] = digits[bytes[i] & 15];
    }
    digest[CHECKSUM_SIZE - 1] = '\0';
}

int checksum_memory(const void *data, size_t bytes, char digest[CHECKSUM_SIZE]) {
    unsigned char raw[EVP_MAX_MD_SIZE];
    if (!EVP_Digest(data, bytes, raw, NULL, EVP_sha256(), NULL)) {
        return error_set("cannot compute a SHA-256 checksum");
    }
    digest_to_text(raw, digest);
    return 0;
}

static int digest_stream(FILE *file, EVP_MD_CTX *context, unsigned char *raw) {
    unsigned char block[65536];
    size_t count;
    if (!EVP_DigestInit_ex(context, EVP_sha256(), NULL)) {
        return error_set("cannot start SHA-256");
    }
    while ((count = fread(block, 1, sizeof(block), file)) > 0) {
        if (!EVP_DigestUpdate(context, block, count)) {
            return error_set("cannot continue SHA-256");
        }
    }
    if (ferror(file)) {
        return error_set_errno("cannot read");
    }
    if (!EVP_DigestFinal_ex(context, raw, NULL)) {
        return error_set("cannot finish SHA-256");
    }
    return 0;
}

int checksum_file(const char *path, char digest[CHECKSUM_SIZE]) {
    unsigned char raw[EVP_MAX_MD_SIZE];
    FILE *file = fopen(path, "rbe");
    if (!file) {
        return error_set_errno("cannot open %s", path);
    }
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    int result = context ? digest_stream(file, context, raw) : error_set("out of memory");
    EVP_MD_CTX_free(context);
    fclose(file);
    if (result) {
        return error_prefix("checksum of %s", path);
    }
    digest_to_text(raw, digest);
    return 0;
}
