/* SHA-256 of files and memory, as 64 lower-case hexadecimal digits. */
#pragma once

#include <openssl/evp.h>
#include <stddef.h>

#define CHECKSUM_SIZE 65 /* with the final NUL */

void checksum_memory(const void *data, size_t bytes, char digest[CHECKSUM_SIZE]);

/* 0, or -1 with an error text. */
int checksum_file(const char *path, char digest[CHECKSUM_SIZE]);

/* The checksum of strings, each with its final NUL, so that the digest depends on where one ends. */
void checksum_strings(const char *const *strings, size_t count, char digest[CHECKSUM_SIZE]);

/* ---- data that comes in pieces */

EVP_MD_CTX *checksum_create(void);
void checksum_update(EVP_MD_CTX *checksum, const void *data, size_t bytes);

/* Sets the digest of all data, and frees. */
void checksum_finish(EVP_MD_CTX *checksum, char digest[CHECKSUM_SIZE]);
