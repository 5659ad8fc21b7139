/* Token files: nanoGPT's format, little-endian uint16, no header. Read through a memory map, so size does not
 * matter. */
#ifndef HC_RUNTIME_TOKEN_FILE_H
#define HC_RUNTIME_TOKEN_FILE_H

#include <stddef.h>
#include <stdint.h>

struct token_file;

/* Fails on missing, empty, unreadable and odd-sized files (says which and what to do). Owned by the caller. */
int token_file_open(const char *path, struct token_file **opened);
void token_file_close(struct token_file *file);

uint64_t token_file_count(const struct token_file *file);

/* Copies tokens [first, first + count) to int32. Outside of the file, or a token >= vocab_size: error that names
 * the file, the position and the value. */
int token_file_read(const struct token_file *file, uint64_t first, uint64_t count, uint32_t vocab_size,
                    int32_t *tokens);

#endif
