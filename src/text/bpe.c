#include "src/text/bpe.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/utf8.h"
#include "src/text/text_buffer.h"
#include <limits.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define FILE_LIMIT   ((size_t)64 << 20)
#define ARENA_LIMIT  ((size_t)1 << 24)
#define TOKENS_LIMIT 65535
#define NO_TOKEN     UINT32_MAX
#define BYTES        256
#define ALPHABET     0x144 /* characters of vocab.bpe, of which 256 stand for a byte */
#define NO_BYTE      BYTES

struct bpe {
    char *arena; /* [arena_bytes] the strings, one after the other */
    size_t arena_bytes;
    struct span {
        uint32_t start, bytes; /* in the arena; 0 bytes: the rank is free */
    } *spans;                  /* [TOKENS_LIMIT] by token, which is the merge rank */
    uint32_t count;            /* highest rank + 1 */
    uint32_t *strings;         /* token + 1 by the string's hash, 0: free; linear probing, at most half full */
    size_t strings_mask;
    uint32_t of_byte[BYTES];
    uint32_t of_two[BYTES][BYTES]; /* what two bytes merge to: the pairs that every piece begins with */
};

/* ---- strings */

static uint64_t mix(uint64_t value) {
    value ^= value >> 32;
    value *= 0xd6e8feb86659fd93U;
    return value ^ value >> 32;
}

static uint64_t hash_string(const char *string, size_t bytes) {
    uint64_t hash = bytes;
    while (bytes >= 8) {
        uint64_t word;
        memcpy(&word, string, 8);
        hash = mix(hash ^ word);
        string += 8;
        bytes -= 8;
    }
    uint64_t word = 0;
    memcpy(&word, string, bytes);
    return mix(hash ^ word);
}

/* The string's entry of the table, or the free one where it would be. */
static inline uint32_t *string_entry(const struct bpe *bpe, const char *string, size_t bytes) {
    size_t at = hash_string(string, bytes) & bpe->strings_mask;
    for (uint32_t entry; (entry = bpe->strings[at]) != 0; at = (at + 1) & bpe->strings_mask) {
        const struct span span = bpe->spans[entry - 1];
        if (span.bytes == bytes && memcmp(bpe->arena + span.start, string, bytes) == 0) {
            break;
        }
    }
    return &bpe->strings[at];
}

static inline uint32_t find_string(const struct bpe *bpe, const char *string, size_t bytes) {
    return *string_entry(bpe, string, bytes) - 1; /* NO_TOKEN where the entry is free */
}

/* ---- opening */

/* Reads a vocabulary file. */
struct reader {
    struct bpe *bpe;
    const char *path;
    size_t line;
    uint16_t byte_of[ALPHABET]; /* of vocab.bpe's characters; NO_BYTE for others */
};

static int fail_line(const struct reader *reader, const char *what) {
    return error_set("%s:%zu: %s", reader->path, reader->line, what);
}

static int add_token(struct reader *reader, uint64_t rank, const char *string, size_t bytes) {
    struct bpe *bpe = reader->bpe;
    if (rank >= TOKENS_LIMIT) {
        return fail_line(reader, "more than 65535 tokens");
    }
    if (bytes == 0 || bpe->spans[rank].bytes != 0) {
        return fail_line(reader, bytes == 0 ? "an empty token" : "the rank comes twice");
    }
    if (bytes > ARENA_LIMIT - bpe->arena_bytes) {
        return fail_line(reader, "more than 16 MiB of tokens");
    }
    memcpy(bpe->arena + bpe->arena_bytes, string, bytes);
    bpe->spans[rank] = (struct span){(uint32_t)bpe->arena_bytes, (uint32_t)bytes};
    bpe->arena_bytes += bytes;
    bpe->count = rank >= bpe->count ? (uint32_t)rank + 1 : bpe->count;
    return 0;
}

/* "<base64> <rank>". The text is changed. */
static int read_tiktoken_line(struct reader *reader, char *line, size_t bytes) {
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

static bool is_printable(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* The alphabet of vocab.bpe, whose characters are also the first tokens: bytes that print stand for themselves (as
 * Latin-1), then come the other bytes, for which the characters from U+0100 on stand. */
static int add_alphabet(struct reader *reader) {
    unsigned next = 0x100;
    for (unsigned character = 0; character < ALPHABET; character++) {
        reader->byte_of[character] = NO_BYTE;
    }
    for (unsigned i = 0; i < 2 * BYTES; i++) {
        const unsigned byte = i % BYTES;
        const char string = (char)byte;
        if (is_printable(byte) != (i < BYTES)) {
            continue;
        }
        reader->byte_of[i < BYTES ? byte : next++] = (uint16_t)byte;
        if (add_token(reader, reader->bpe->count, &string, 1)) {
            return -1;
        }
    }
    return 0;
}

/* "<string> <string>" in that alphabet: together they are the next token. The text is changed. */
static int read_merge_line(struct reader *reader, char *line, size_t bytes) {
    size_t written = 0, spaces = 0, length;
    for (size_t at = 0; at < bytes; at += length) {
        uint32_t character;
        length = utf8_decode(line + at, bytes - at, &character);
        if (length == 1 && character == ' ') {
            spaces += written > 0 && at + 1 < bytes ? 1 : 2;
            continue;
        }
        if (length == 0 || character >= ALPHABET || reader->byte_of[character] == NO_BYTE) {
            return fail_line(reader, "a character that stands for no byte");
        }
        line[written++] = (char)reader->byte_of[character];
    }
    if (spaces != 1) {
        return fail_line(reader, "a line must be two strings with a space between");
    }
    return add_token(reader, reader->bpe->count, line, written);
}

static int read_lines(struct reader *reader, char *text, size_t bytes) {
    const bool merges = bytes > 9 && memcmp(text, "#version:", 9) == 0;
    if (merges && add_alphabet(reader)) {
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

static int make_strings(struct bpe *bpe, const char *path) {
    size_t size = 16;
    while (size < 2 * (size_t)bpe->count) {
        size *= 2;
    }
    bpe->strings_mask = size - 1;
    bpe->strings = memory_zeroed(size, sizeof *bpe->strings);
    for (uint32_t token = 0; token < bpe->count; token++) {
        size_t bytes;
        const char *string = bpe_bytes(bpe, token, &bytes);
        if (bytes == 0) {
            return error_set("%s: there is no token of rank %u, but of rank %u", path, token, bpe->count - 1);
        }
        uint32_t *entry = string_entry(bpe, string, bytes);
        if (*entry != 0) {
            return error_set("%s: the token of rank %u comes twice", path, token);
        }
        *entry = token + 1;
    }
    return 0;
}

static int look_up_bytes(struct bpe *bpe, const char *path) {
    for (unsigned byte = 0; byte < BYTES; byte++) {
        const char string = (char)byte;
        bpe->of_byte[byte] = find_string(bpe, &string, 1);
        if (bpe->of_byte[byte] == NO_TOKEN) {
            return error_set("%s: there is no token for the byte 0x%02x", path, byte);
        }
    }
    for (unsigned left = 0; left < BYTES; left++) {
        for (unsigned right = 0; right < BYTES; right++) {
            bpe->of_two[left][right] = find_string(bpe, (char[]){(char)left, (char)right}, 2);
        }
    }
    return 0;
}

int bpe_open(const char *path, struct bpe **opened) {
    struct bpe *bpe = *opened = memory_zeroed(1, sizeof *bpe);
    struct reader reader = {.bpe = bpe, .path = path};
    char *text;
    size_t bytes;
    bpe->arena = memory_allocate(ARENA_LIMIT, 1); /* the system provides only the pages that are used */
    bpe->spans = memory_zeroed(TOKENS_LIMIT, sizeof *bpe->spans);
    if (files_read(path, FILE_LIMIT, &text, &bytes)) {
        return -1;
    }
    const int status = read_lines(&reader, text, bytes);
    free(text);
    return status || make_strings(bpe, path) || look_up_bytes(bpe, path) ? -1 : 0;
}

void bpe_close(struct bpe *bpe) {
    if (bpe) {
        free(bpe->arena);
        free(bpe->spans);
        free(bpe->strings);
        free(bpe);
    }
}

uint32_t bpe_count(const struct bpe *bpe) {
    return bpe->count;
}

const char *bpe_bytes(const struct bpe *bpe, uint32_t token, size_t *bytes) {
    *bytes = bpe->spans[token].bytes;
    return bpe->arena + bpe->spans[token].start;
}

/* ---- encoding */

void token_list_append(struct token_list *list, uint32_t token) {
    if (list->count == list->capacity) {
        memory_reserve((void **)&list->tokens, &list->capacity, list->count + 1, sizeof *list->tokens);
    }
    list->tokens[list->count++] = token;
}

void token_list_free(struct token_list *list) {
    free(list->tokens);
    free(list->parts);
    free(list->heap);
    *list = (struct token_list){0};
}

/* A string of the piece, at the place where it begins. */
struct bpe_part {
    uint32_t token;
    uint32_t merged;         /* with the next part; NO_TOKEN: they stay apart */
    uint32_t next, previous; /* their places */
};

/* The heap holds rank << 32 | place, the smallest on top. An entry that is out of date is dropped when it is on
 * top. */
static void heap_push(struct token_list *list, size_t *count, uint32_t rank, uint32_t place) {
    const uint64_t entry = (uint64_t)rank << 32 | place;
    size_t at = (*count)++;
    for (; at > 0 && list->heap[(at - 1) / 2] > entry; at = (at - 1) / 2) {
        list->heap[at] = list->heap[(at - 1) / 2];
    }
    list->heap[at] = entry;
}

static uint64_t heap_pop(struct token_list *list, size_t *count) {
    uint64_t *heap = list->heap;
    const uint64_t top = heap[0], last = heap[--*count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < *count; at = child) {
        child += child + 1 < *count && heap[child + 1] < heap[child];
        if (heap[child] >= last) {
            break;
        }
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}

/* Divides the piece into bytes, and puts the pairs that merge into the heap. Their number. */
static size_t split_bytes(const struct bpe *bpe, struct token_list *list, const char *piece, size_t bytes) {
    const unsigned char *text = (const unsigned char *)piece;
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++) {
        const uint32_t merged = i + 1 < bytes ? bpe->of_two[text[i]][text[i + 1]] : NO_TOKEN;
        list->parts[i] = (struct bpe_part){bpe->of_byte[text[i]], merged, (uint32_t)(i + 1), (uint32_t)i - 1};
        if (merged != NO_TOKEN) {
            heap_push(list, &count, merged, (uint32_t)i);
        }
    }
    return count;
}

/* Looks up what the part at `place` becomes with the next one. */
static void update_merge(const struct bpe *bpe, struct token_list *list, size_t *count, const char *piece,
                         size_t bytes, uint32_t place) {
    struct bpe_part *part = &list->parts[place];
    part->merged =
        part->next < bytes ? find_string(bpe, piece + place, list->parts[part->next].next - place) : NO_TOKEN;
    if (part->merged != NO_TOKEN) {
        heap_push(list, count, part->merged, place);
    }
}

/* Merges neighbours until none is in the vocabulary; the first part stays at place 0. */
static void merge_parts(const struct bpe *bpe, struct token_list *list, const char *piece, size_t bytes) {
    struct bpe_part *parts = list->parts;
    size_t count = split_bytes(bpe, list, piece, bytes);
    while (count > 0) {
        const uint64_t entry = heap_pop(list, &count);
        const uint32_t rank = (uint32_t)(entry >> 32), place = (uint32_t)entry;
        struct bpe_part *part = &parts[place];
        if (part->merged != rank) {
            continue;
        }
        struct bpe_part *gone = &parts[part->next];
        part->token = rank;
        part->next = gone->next;
        gone->merged = NO_TOKEN;
        if (part->next < bytes) {
            parts[part->next].previous = place;
        }
        update_merge(bpe, list, &count, piece, bytes, place);
        if (place > 0) {
            update_merge(bpe, list, &count, piece, bytes, part->previous);
        }
    }
}

void bpe_encode(const struct bpe *bpe, const char *piece, size_t bytes, struct token_list *list) {
    const uint32_t whole = find_string(bpe, piece, bytes);
    if (whole != NO_TOKEN) {
        token_list_append(list, whole);
        return;
    }
    /* the heap begins with at most one pair for each byte, and a merge takes one out and puts two in */
    memory_reserve((void **)&list->parts, &list->part_capacity, bytes, sizeof *list->parts);
    memory_reserve((void **)&list->heap, &list->heap_capacity, 2 * bytes, sizeof *list->heap);
    merge_parts(bpe, list, piece, bytes);
    for (size_t i = 0; i < bytes; i = list->parts[i].next) {
        token_list_append(list, list->parts[i].token);
    }
}
