#include "src/text/bpe.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/utf8.h"
#include <inttypes.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_LIMIT ((size_t)1 << 24)
#define NONE        UINT32_MAX /* no token, no rank */
#define BYTES       256
#define FILE_LIMIT  ((size_t)64 << 20)

struct span {
    uint32_t start; /* in the arena */
    uint16_t bytes; /* 0: the number is free */
    bool in_text;
    bool whole; /* a piece of these bytes is this token */
};

struct merge {
    uint32_t left, right, rank; /* rank NONE: a free entry */
};

struct bpe {
    char *arena; /* [arena_bytes] the strings, one after the other */
    size_t arena_bytes;
    struct span *spans; /* [BPE_MOST_TOKENS] by token */
    uint32_t count;     /* highest token + 1 */
    uint32_t *strings;  /* token + 1 by the string's hash, 0: free; linear probing, at most half full */
    size_t strings_mask;
    struct merge *merges; /* by the pair's hash; linear probing, at most half full */
    size_t merges_mask, merge_count;
    uint32_t *merged; /* [ranks] the token that merges of this rank give; NONE: there is none */
    size_t ranks, ranks_capacity;
    uint32_t of_byte[BYTES];
    uint32_t of_two[BYTES][BYTES]; /* the rank of two bytes: the pairs that every piece begins with */
};

struct bpe *bpe_create(void) {
    struct bpe *bpe = memory_zeroed(1, sizeof *bpe);
    bpe->arena = memory_allocate(ARENA_LIMIT, 1); /* the system provides only the pages that are used */
    bpe->spans = memory_zeroed(BPE_MOST_TOKENS, sizeof *bpe->spans);
    return bpe;
}

void bpe_close(struct bpe *bpe) {
    if (bpe) {
        free(bpe->arena);
        free(bpe->spans);
        free(bpe->strings);
        free(bpe->merges);
        free(bpe->merged);
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

/* ---- strings */

static inline uint64_t mix(uint64_t value) {
    value ^= value >> 32;
    value *= 0xd6e8feb86659fd93U;
    return value ^ value >> 32;
}

/* The string's entry of the table, or the free one where it would be. */
static uint32_t *string_entry(const struct bpe *bpe, const char *string, size_t bytes) {
    uint64_t hash = bytes, word = 0;
    size_t done = 0;
    for (; bytes - done >= 8; done += 8) {
        memcpy(&word, string + done, 8);
        hash = mix(hash ^ word);
    }
    word = 0;
    memcpy(&word, string + done, bytes - done);
    size_t at = mix(hash ^ word) & bpe->strings_mask;
    for (uint32_t entry; (entry = bpe->strings[at]) != 0; at = (at + 1) & bpe->strings_mask) {
        const struct span span = bpe->spans[entry - 1];
        if (span.bytes == bytes && memcmp(bpe->arena + span.start, string, bytes) == 0) {
            break;
        }
    }
    return &bpe->strings[at];
}

uint32_t bpe_find(const struct bpe *bpe, const char *string, size_t bytes) {
    return *string_entry(bpe, string, bytes) - 1; /* NONE if the entry is free */
}

int bpe_add_token(struct bpe *bpe, uint64_t token, const char *string, size_t bytes, bool in_text) {
    if (token >= BPE_MOST_TOKENS) {
        return error_set("token %" PRIu64 ": the numbers of tokens must be below %d", token, BPE_MOST_TOKENS);
    }
    if (bytes == 0 || bytes > BPE_MOST_TOKEN_BYTES) {
        return error_set(bytes == 0 ? "token %" PRIu64 " is empty" : "token %" PRIu64 " has more than %d bytes",
                         token, BPE_MOST_TOKEN_BYTES);
    }
    if (bpe->spans[token].bytes != 0) {
        return error_set("two tokens have the number %" PRIu64, token);
    }
    if (bytes > ARENA_LIMIT - bpe->arena_bytes) {
        return error_set("the tokens have more than 16 MiB");
    }
    memcpy(bpe->arena + bpe->arena_bytes, string, bytes);
    bpe->spans[token] = (struct span){(uint32_t)bpe->arena_bytes, (uint16_t)bytes, in_text, false};
    bpe->arena_bytes += bytes;
    bpe->count = token >= bpe->count ? (uint32_t)token + 1 : bpe->count;
    return 0;
}

/* The least power of two of which `count` is at most half. */
static size_t table_size(size_t count) {
    size_t size = 16;
    while (size < 2 * count) {
        size *= 2;
    }
    return size;
}

int bpe_index(struct bpe *bpe) {
    const size_t size = table_size(bpe->count);
    bpe->strings_mask = size - 1;
    bpe->strings = memory_zeroed(size, sizeof *bpe->strings);
    for (uint32_t token = 0; token < bpe->count; token++) {
        const struct span span = bpe->spans[token];
        if (span.bytes == 0 || !span.in_text) {
            continue;
        }
        uint32_t *entry = string_entry(bpe, bpe->arena + span.start, span.bytes);
        if (*entry != 0) {
            return error_set("the tokens %u and %u are the same string", *entry - 1, token);
        }
        *entry = token + 1;
    }
    return 0;
}

/* ---- merges */

/* The pair's entry of the table, or the free one where it would be. */
static inline struct merge *merge_entry(const struct bpe *bpe, uint32_t left, uint32_t right) {
    size_t at = mix((uint64_t)left << 32 | right) & bpe->merges_mask;
    for (const struct merge *merge; (merge = &bpe->merges[at])->rank != NONE; at = (at + 1) & bpe->merges_mask) {
        if (merge->left == left && merge->right == right) {
            break;
        }
    }
    return &bpe->merges[at];
}

static void grow_merges(struct bpe *bpe) {
    struct merge *old = bpe->merges;
    const size_t old_size = old ? bpe->merges_mask + 1 : 0, size = table_size(bpe->merge_count + 1);
    if (size <= old_size) {
        return;
    }
    bpe->merges_mask = size - 1;
    bpe->merges = memory_allocate(size, sizeof *bpe->merges);
    for (size_t i = 0; i < size; i++) {
        bpe->merges[i].rank = NONE;
    }
    for (size_t i = 0; i < old_size; i++) {
        if (old[i].rank != NONE) {
            *merge_entry(bpe, old[i].left, old[i].right) = old[i];
        }
    }
    free(old);
}

static void add_merge(struct bpe *bpe, struct merge merge, uint32_t token) {
    grow_merges(bpe);
    struct merge *entry = merge_entry(bpe, merge.left, merge.right);
    bpe->merge_count += entry->rank == NONE;
    *entry = merge;
    memory_reserve((void **)&bpe->merged, &bpe->ranks_capacity, merge.rank + (size_t)1, sizeof *bpe->merged);
    while (bpe->ranks <= merge.rank) {
        bpe->merged[bpe->ranks++] = NONE;
    }
    bpe->merged[merge.rank] = token;
}

int bpe_add_merge(struct bpe *bpe, uint32_t left, uint32_t right) {
    char both[2 * BPE_MOST_TOKEN_BYTES];
    const struct span first = bpe->spans[left], second = bpe->spans[right];
    memcpy(both, bpe->arena + first.start, first.bytes);
    memcpy(both + first.bytes, bpe->arena + second.start, second.bytes);
    const uint32_t token = bpe_find(bpe, both, (size_t)first.bytes + second.bytes);
    if (token == NONE) {
        return error_set("the two strings together are not in the vocabulary");
    }
    add_merge(bpe, (struct merge){left, right, (uint32_t)bpe->ranks}, token);
    return 0;
}

/* Any two tokens merge whose bytes together are this one, and its number is the rank. */
static void add_merges_to(struct bpe *bpe, uint32_t token) {
    const struct span span = bpe->spans[token];
    const char *string = bpe->arena + span.start;
    for (size_t at = 1; at < span.bytes; at++) {
        const uint32_t left = bpe_find(bpe, string, at);
        const uint32_t right = left == NONE ? NONE : bpe_find(bpe, string + at, span.bytes - at);
        if (right != NONE) {
            add_merge(bpe, (struct merge){left, right, token}, token);
        }
    }
}

int bpe_complete(struct bpe *bpe, bool whole_pieces, bool lacks_bytes) {
    struct token_list list = {0};
    grow_merges(bpe);
    for (unsigned byte = 0; byte < BYTES; byte++) {
        const char string = (char)byte;
        bpe->of_byte[byte] = bpe_find(bpe, &string, 1);
        if (bpe->of_byte[byte] == NONE && !lacks_bytes) {
            return error_set("there is no token for the byte 0x%02x", byte);
        }
    }
    for (unsigned left = 0; left < BYTES; left++) {
        for (unsigned right = 0; right < BYTES; right++) {
            bpe->of_two[left][right] = merge_entry(bpe, bpe->of_byte[left], bpe->of_byte[right])->rank;
        }
    }
    /* the tokens that their own bytes merge to: pieces of these bytes need no merging */
    for (uint32_t token = 0; token < bpe->count; token++) {
        struct span *span = &bpe->spans[token];
        list.count = 0;
        if (span->in_text && !whole_pieces) {
            bpe_encode(bpe, bpe->arena + span->start, span->bytes, &list);
        }
        span->whole = span->in_text && (whole_pieces || (list.count == 1 && list.tokens[0] == token));
    }
    token_list_free(&list);
    return 0;
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

/* A part of the piece. Its place is the number of the byte where it begins, not counting bytes without a token. */
struct bpe_part {
    uint32_t token;
    uint32_t rank;           /* of its merge with the next part; NONE: they do not merge */
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

/* Looks up what the part at `place` becomes with the next one. */
static void update_merge(const struct bpe *bpe, struct token_list *list, size_t *heap_count, size_t parts,
                         uint32_t place) {
    struct bpe_part *part = &list->parts[place];
    part->rank = part->next < parts ? merge_entry(bpe, part->token, list->parts[part->next].token)->rank : NONE;
    if (part->rank != NONE) {
        heap_push(list, heap_count, part->rank, place);
    }
}

/* Merges neighbours as long as any merge; the first part stays at place 0. A pair whose entry is out of date merges
 * nevertheless if its new merge gives the same token: so do the tokenizers that read tokenizer.json. */
static void merge_parts(const struct bpe *bpe, struct token_list *list, size_t count) {
    struct bpe_part *parts = list->parts;
    size_t heap_count = 0;
    for (uint32_t place = 0; place < count; place++) {
        if (parts[place].rank != NONE) {
            heap_push(list, &heap_count, parts[place].rank, place);
        }
    }
    while (heap_count > 0) {
        const uint64_t entry = heap_pop(list, &heap_count);
        const uint32_t rank = (uint32_t)(entry >> 32), place = (uint32_t)entry;
        struct bpe_part *part = &parts[place];
        if (part->rank == NONE || bpe->merged[part->rank] != bpe->merged[rank]) {
            continue;
        }
        struct bpe_part *gone = &parts[part->next];
        part->token = bpe->merged[rank];
        part->next = gone->next;
        gone->rank = NONE;
        if (part->next < count) {
            parts[part->next].previous = place;
        }
        update_merge(bpe, list, &heap_count, count, place);
        if (place > 0) {
            update_merge(bpe, list, &heap_count, count, part->previous);
        }
    }
}

void bpe_encode(const struct bpe *bpe, const char *piece, size_t bytes, struct token_list *list) {
    const uint32_t token = bpe_find(bpe, piece, bytes);
    if (token != NONE && bpe->spans[token].whole) {
        token_list_append(list, token);
        return;
    }
    /* the heap begins with at most one pair for each byte, and a merge takes one out and puts two in */
    memory_reserve((void **)&list->parts, &list->part_capacity, bytes, sizeof *list->parts);
    memory_reserve((void **)&list->heap, &list->heap_capacity, 2 * bytes, sizeof *list->heap);
    size_t count = 0; /* of parts: bytes at first */
    unsigned before = 0;
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char byte = (unsigned char)piece[i];
        if (bpe->of_byte[byte] != NONE) {
            if (count > 0) {
                list->parts[count - 1].rank = bpe->of_two[before][byte];
            }
            list->parts[count] =
                (struct bpe_part){bpe->of_byte[byte], NONE, (uint32_t)count + 1, (uint32_t)count - 1};
            before = byte;
            count++;
        }
    }
    merge_parts(bpe, list, count);
    for (size_t i = 0; i < count; i = list->parts[i].next) {
        token_list_append(list, list->parts[i].token);
    }
}

/* ---- GPT-2's alphabet for bytes */

/* The two ranges of bytes that do not print, and the characters that stand for them. 0xad is the last one. */
enum { CONTROLS = 0x21, FIRST_HIGH = 0x7f, LAST_HIGH = 0xa0, SOFT_HYPHEN = 0xad };
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

/* ---- vocabulary files: tiktoken's format and GPT-2's vocab.bpe. Errors of a line do not name file and line */

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
    return bpe_add_token(bpe, bpe->count, line, joined, true);
}

static int read_lines(struct bpe *bpe, const char *path, char *text, size_t bytes) {
    const bool merges = bytes > 9 && memcmp(text, "#version:", 9) == 0;
    size_t number = 1;
    for (uint32_t character = 0; merges && character <= LAST; character++) { /* its first tokens are the bytes */
        const char byte = (char)byte_of(character);
        if (byte_of(character) >= 0) {
            bpe_add_token(bpe, bpe->count, &byte, 1, true);
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
    for (uint32_t token = 0; token < bpe->count; token++) {
        if (bpe->spans[token].bytes == 0) {
            return error_set("%s: there is no token %u, but a token %u", path, token, bpe->count - 1);
        }
        add_merges_to(bpe, token);
    }
    return bpe_complete(bpe, true, false) ? error_prefix("%s", path) : 0;
}
