/* Vocabulary files: tiktoken's format and GPT-2's vocab.bpe. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/text/bpe.h"
#include "src/text/byte_alphabet.h"
#include <limits.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define FILE_LIMIT ((size_t)64 << 20)

struct reader {
    struct bpe *bpe;
    const char *path;
    size_t line;
};

static int fail_line(const struct reader *reader, const char *what) {
    return error_set("%s:%zu: %s", reader->path, reader->line, what);
}

static int add_token(const struct reader *reader, uint64_t rank, const char *string, size_t bytes) {
    return bpe_add_token(reader->bpe, rank, string, bytes, true)
               ? error_prefix("%s:%zu", reader->path, reader->line)
               : 0;
}

/* "<base64> <rank>". The text is changed. */
static int read_tiktoken_line(const struct reader *reader, char *line, size_t bytes) {
    char *space = memchr(line, ' ', bytes);
    if (!space || space == line || (space - line) % 4 != 0 || space - line > INT_MAX) {
        return fail_line(reader, "a line must be a token in base64, a space and its rank");
    }
    char *end;
    const size_t digits = (size_t)(space - line);
    const unsigned long long rank = strtoull(space + 1, &end, 10);
    if (space[1] < '0' || space[1] > '9' || end != line + bytes) {
        return fail_line(reader, "the rank is not a number");
    }
    const size_t padding = line[digits - 1] != '=' ? 0 : line[digits - 2] != '=' ? 1 : 2;
    const int decoded = EVP_DecodeBlock((unsigned char *)line, (const unsigned char *)line, (int)digits);
    if (decoded < 0) {
        return fail_line(reader, "the token is not base64");
    }
    return add_token(reader, rank, line, (size_t)decoded - padding);
}

/* The first tokens of vocab.bpe. */
static int add_bytes(const struct reader *reader) {
    for (unsigned i = 0; i < 256; i++) {
        const char string = (char)byte_alphabet_at(i);
        if (add_token(reader, i, &string, 1)) {
            return -1;
        }
    }
    return 0;
}

/* "<string> <string>" in GPT-2's alphabet for bytes: together they are the next token. The text is changed. */
static int read_merge_line(const struct reader *reader, char *line, size_t bytes) {
    char *space = memchr(line, ' ', bytes);
    if (!space || space == line || space == line + bytes - 1 ||
        memchr(space + 1, ' ', bytes - (size_t)(space + 1 - line))) {
        return fail_line(reader, "a line must be two strings with a space between");
    }
    size_t joined = bytes - 1;
    memmove(space, space + 1, bytes - (size_t)(space + 1 - line));
    if (!byte_alphabet_decode(line, &joined)) {
        return fail_line(reader, "a character that stands for no byte");
    }
    return add_token(reader, bpe_count(reader->bpe), line, joined);
}

static int read_lines(struct reader *reader, char *text, size_t bytes) {
    const bool merges = bytes > 9 && memcmp(text, "#version:", 9) == 0;
    if (merges && add_bytes(reader)) {
        return -1;
    }
    for (char *line = text, *end; line < text + bytes; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + bytes - line));
        end = end ? end : text + bytes;
        size_t length = (size_t)(end - line);
        length -= length > 0 && line[length - 1] == '\r';
        reader->line++;
        const bool skip = length == 0 || (merges && reader->line == 1);
        line[length] = '\0'; /* the text has a final NUL */
        if (!skip && (merges ? read_merge_line(reader, line, length) : read_tiktoken_line(reader, line, length))) {
            return -1;
        }
    }
    return 0;
}

int bpe_open(const char *path, struct bpe **opened) {
    struct bpe *bpe = *opened = bpe_create();
    struct reader reader = {.bpe = bpe, .path = path};
    char *text;
    size_t bytes;
    if (files_read(path, FILE_LIMIT, &text, &bytes)) {
        return -1;
    }
    const int status = read_lines(&reader, text, bytes);
    free(text);
    if (status) {
        return -1;
    }
    if (bpe_index(bpe)) {
        return error_prefix("%s", path);
    }
    for (uint32_t token = 0; token < bpe_count(bpe); token++) {
        if (bpe_bytes(bpe, token, &bytes), bytes == 0) {
            return error_set("%s: there is no token %u, but a token %u", path, token, bpe_count(bpe) - 1);
        }
    }
    bpe_add_all_merges(bpe);
    return bpe_complete(bpe, true, false) ? error_prefix("%s", path) : 0;
}
