/* The tokens of a split: a token file in nanoGPT's format, little-endian uint16, no header; or uint32, which
 * meta.json beside it says with "token_bytes": 4; or llm.c's shards, one behind the other (token_shards.h). Read
 * where they are needed, so size does not matter, and not through a memory map: a file that became shorter would
 * end the process there by a signal. */
#pragma once

#include "runtime/files/checksum.h"
#include "runtime/files/token_shards.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* The documents of a split: where each begins, and how many of its first tokens are a prompt, that is, no targets
 * of the loss. hc_prepare writes train.documents and val.documents: for each document in order two little-endian
 * uint32, its tokens and how many of them, at its beginning, are a prompt. */
enum { TOKEN_DOCUMENT_BYTES = 8 };
struct token_documents {
    size_t count;
    uint64_t *begins;  /* [count + 1] places of their first tokens in the split; the last: the split's tokens */
    uint64_t *targets; /* [count + 1] how many tokens before each that are no prompt; the last: of all */
};

/* A file of a split: train.bin or val.bin, or a token shard. */
struct token_shard {
    char *path;
    int descriptor;
    uint64_t header_bytes;
    uint64_t first, count; /* tokens of the split */
    struct stat before;    /* size and times as they were when the content was last known */
};

/* Only the functions below change it. */
struct token_file {
    char *name;                 /* the path of the file, or the pattern of the shards' paths; for messages */
    struct token_shard *shards; /* [shard_count] the files of the split in order: 1, or the number of shards */
    size_t shard_count, capacity;
    unsigned token_bytes;              /* 2 or 4 */
    uint64_t count;                    /* tokens of all shards */
    struct token_documents *documents; /* as they were when it was opened; NULL: they are not known */
    char digest[CHECKSUM_SIZE];        /* of token_file_examine, for this vocabulary; "" before */
    uint32_t vocab_size;
};

/* Stores a document as the file has it. */
void token_documents_store(unsigned char bytes[TOKEN_DOCUMENT_BYTES], uint32_t tokens, uint32_t prompt);

/* The document that a place of the split is in. */
size_t token_documents_find(const struct token_documents *documents, uint64_t place);

#define TOKEN_META_MOST_BYTES ((size_t)16 << 20) /* of meta.json that is read */

/* The files of a folder of token files: train.bin and meta.json, and val.bin, tokenizer.json, val.documents and
 * train.documents, which some lack; ends with NULL. */
extern const char *const token_folder_files[];

/* The tokenizer.json in a folder of token files or of a checkpoint. */
#define TOKENIZER_FILE_NAME "tokenizer.json"
enum { TOKENIZER_FILE_MOST_BYTES = 1 << 27 };

/* Opens <folder>/train.bin or val.bin, or if there is no such file all shards of the split, in the order of their
 * names, once hc_prepare has finished moving them there; and the file of documents if <folder>/meta.json says that
 * there is one. split: an enum token_split. Fails on missing, empty and unreadable files, and on those that are not
 * a whole number of tokens; the error says which, and what to do. Owned by the caller. */
int token_file_open_split(const char *folder, int split, struct token_file **opened);
void token_file_close(struct token_file *file);

/* The name without its folder. */
const char *token_file_short_name(const struct token_file *file);

/* Copies tokens [first, first + count) to int32. Outside of the file, or a token >= vocab_size: error that names
 * the file, the position and the value. */
int token_file_read(const struct token_file *file, uint64_t first, uint64_t count, uint32_t vocab_size,
                    int32_t *tokens);

/* Whether some of the tokens are prompts, and so no targets. */
bool token_file_has_prompts(const struct token_file *file);

/* As token_file_read, with -1 in place of tokens that are no targets. */
int token_file_read_targets(const struct token_file *file, uint64_t first, uint64_t count, uint32_t vocab_size,
                            int32_t *targets);

/* How many of the tokens [first, first + count), which are in the file, are targets. */
uint64_t token_file_count_targets(const struct token_file *file, uint64_t first, uint64_t count);

/* An error if the content has changed since the file was opened: if the file has become shorter, or its size or
 * times have changed and, if it was examined, its digest too. Cheap enough for every step of a run. A file that is
 * replaced under its name stays in use and has not changed. */
int token_file_check(struct token_file *file);

/* A digest of the file's size and content, and a check that the tokens looked at are below vocab_size: all tokens
 * of a file of up to 2^25 tokens, of larger ones 256 blocks of 2^17 spread evenly, with the first and last. For
 * more than 128 shards there are twice as many blocks as shards. The digest also depends on the length of each
 * shard, and on the documents if they are known. */
int token_file_examine(struct token_file *file, uint32_t vocab_size, char digest[CHECKSUM_SIZE]);
