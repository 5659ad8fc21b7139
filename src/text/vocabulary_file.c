/* Vocabulary files: tiktoken's format and GPT-2's vocab.bpe, with GPT-2's alphabet for bytes. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/utf8.h"
#include "src/text/bpe.h"
#include <limits.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define FILE_LIMIT ((size_t)64 << 20)

/* ---- the alphabet */

/* The two ranges of bytes that do not print, and the characters that stand for them. 0xad is the last one. */
enum { CONTROLS = 0x21, FIRST_HIGH = 0x7f, LAST_HIGH = 0xa0, SOFT_HYPHEN = 0xad, BYTES = 256 };
enum { CHARACTERS = 0x100, HIGH = CHARACTERS + CONTROLS, LAST = HIGH + LAST_HIGH + 1 - FIRST_HIGH };

/* The byte that a character stands for; -1: none. */
static int byte_of(uint32_t character) {
    if (character < BYTES) {
        const bool prints = character >= CONTROLS && (character < FIRST_HIGH || character > LAST_HIGH);
        return prints && character != SOFT_HYPHEN ? (int)character : -1;
    }
    if (character < HIGH) {
        return (int)character - CHARACTERS;
    }
    if (character < LAST) {
        return (int)character - HIGH + FIRST_HIGH;
    }
    return character == LAST ? SOFT_HYPHEN : -1;
}

bool bpe_decode_alphabet(char *text, size_t *bytes) {
    uint32_t character;
    for (size_t at = 0, length; at < *bytes; at += length) {
        length = utf8_decode(text + at, *bytes - at, &character);
        if (length == 0 || byte_of(character) < 0) {
            return false;
        }
    }
    size_t written = 0;
    for (size_t at = 0; at < *bytes; written++) {
        at += utf8_decode(text + at, *bytes - at, &character);
        text[written] = (char)byte_of(character);
    }
    *bytes = written;
    return true;
}

/* ---- files; error texts do not name file and line */

/* "<base64> <rank>". The text is changed. */
static int read_tiktoken_line(struct bpe *bpe, char *line, size_t bytes) {
    char *space = memchr(line, ' ', bytes);
    if (!space || space == line || (space - line) % 4 != 0 || space - line > INT_MAX) {
        return error_set("a line must be a token in base64, a space and its rank");
    }
    char *end;
    const size_t digits = (size_t)(space - line);
    const unsigned long long rank = strtoull(space + 1, &end, 10);
    if (space[1] < '0' || space[1] > '9' || end != line + bytes) {
        return error_set("the rank is not a number");
    }
    const size_t padding = line[digits - 1] != '=' ? 0 : line[digits - 2] != '=' ? 1 : 2;
    const int decoded = EVP_DecodeBlock((unsigned char *)line, (const unsigned char *)line, (int)digits);
    if (decoded < 0) {
        return error_set("the token is not base64");
    }
    return bpe_add_token(bpe, rank, line, (size_t)decoded - padding, true);
}

/* "<string> <string>" in GPT-2's alphabet for bytes: together they are the next token. The text is changed. */
static int read_merge_line(struct bpe *bpe, char *line, size_t bytes) {
    char *space = memchr(line, ' ', bytes);
    if (!space || space == line || space == line + bytes - 1 ||
        memchr(space + 1, ' ', bytes - (size_t)(space + 1 - line))) {
        return error_set("a line must be two strings with a space between");
    }
    size_t joined = bytes - 1;
    memmove(space, space + 1, bytes - (size_t)(space + 1 - line));
    if (!bpe_decode_alphabet(line, &joined)) {
        return error_set("a character that stands for no byte");
    }
    return bpe_add_token(bpe, bpe_count(bpe), line, joined, true);
}

static int read_lines(struct bpe *bpe, const char *path, char *text, size_t bytes) {
    const bool merges = bytes > 9 && memcmp(text, "#version:", 9) == 0;
    size_t number = 1;
    for (uint32_t character = 0; merges && character <= LAST; character++) { /* its first tokens are the bytes */
        const char byte = (char)byte_of(character);
        if (byte_of(character) >= 0) {
            bpe_add_token(bpe, bpe_count(bpe), &byte, 1, true);
        }
    }
    for (char *line = text, *end; line < text + bytes; line = end + 1, number++) {
        end = memchr(line, '\n', (size_t)(text + bytes - line));
        end = end ? end : text + bytes;
        size_t length = (size_t)(end - line);
        length -= length > 0 && line[length - 1] == '\r';
        const bool skip = length == 0 || (merges && number == 1);
        line[length] = '\0'; /* the text has a final NUL */
        if (!skip && (merges ? read_merge_line(bpe, line, length) : read_tiktoken_line(bpe, line, length))) {
            return error_prefix("%s:%zu", path, number);
        }
    }
    return 0;
}

int bpe_open(const char *path, struct bpe **opened) {
    struct bpe *bpe = *opened = bpe_create();
    char *text;
    size_t bytes;
    if (files_read(path, FILE_LIMIT, &text, &bytes)) {
        return -1;
    }
    const int status = read_lines(bpe, path, text, bytes);
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
