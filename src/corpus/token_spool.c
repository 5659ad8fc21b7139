#include "src/corpus/token_spool.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "src/text/text_buffer.h"
#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    STREAM_BYTES = 1 << 16, /* a file's buffer */
    TOKEN_BLOCK = 1 << 14,  /* tokens written at once */
};

/* Before the tokens of a part in a pile, as this host has it: the file does not leave it. */
struct header {
    uint64_t document;
    uint32_t part, count; /* the latter of tokens */
};

/* A file that grows. */
struct output {
    FILE *stream; /* NULL: not opened, or a pile that is merged */
    char name[32];
    uint64_t bytes;
};

struct token_spool {
    const char *shown; /* the folder's name */
    const struct document_order *order;
    unsigned piles;
    int folder;           /* a descriptor */
    struct output *files; /* [file_count]: train.bin, val.bin and the piles */
    size_t file_count;
    unsigned merged; /* of the piles */
    struct token_spool_counts counts;
};

static struct output *pile(const struct token_spool *spool, size_t number) {
    return &spool->files[TOKEN_SPLITS + number];
}

/* ---- files */

static int fail_write(const struct token_spool *spool, const struct output *output) {
    return error_set_errno("cannot write %s/%s", spool->shown, output->name);
}

/* Opens the file with its first output->bytes, or makes it anew. */
static int output_open(const struct token_spool *spool, struct output *output) {
    const int descriptor =
        openat(spool->folder, output->name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    struct stat status;
    if (descriptor < 0) {
        return fail_write(spool, output);
    }
    output->stream = fdopen(descriptor, "r+b");
    if (!output->stream) {
        fail_write(spool, output);
        close(descriptor);
        return -1;
    }
    setvbuf(output->stream, NULL, _IOFBF, STREAM_BYTES);
    if (fstat(descriptor, &status)) {
        return fail_write(spool, output);
    }
    if (!S_ISREG(status.st_mode)) {
        return error_set("cannot write %s/%s: it is not a regular file", spool->shown, output->name);
    }
    if ((uint64_t)status.st_size < output->bytes) {
        return error_set("%s/%s is shorter than it was: begin anew with --no-resume", spool->shown, output->name);
    }
    return ftruncate(descriptor, (off_t)output->bytes) || fseeko(output->stream, 0, SEEK_END)
               ? fail_write(spool, output)
               : 0;
}

static int fail_damaged(const struct token_spool *spool) {
    return error_set("the unfinished work in %s is damaged: give --no-resume to begin anew", spool->shown);
}

static int output_write(const struct token_spool *spool, struct output *output, const void *data, size_t bytes) {
    if (fwrite(data, 1, bytes, output->stream) != bytes) {
        return fail_write(spool, output);
    }
    output->bytes += bytes;
    return 0;
}

static int output_sync(const struct token_spool *spool, const struct output *output) {
    const bool done = !output->stream || (fflush(output->stream) == 0 && fsync(fileno(output->stream)) == 0);
    return done ? 0 : fail_write(spool, output);
}

static void output_close(struct output *output) {
    if (output->stream) {
        fclose(output->stream);
        output->stream = NULL;
    }
}

/* ---- opening */

/* How often each token is in what train.bin already has. */
static int count_train(struct token_spool *spool) {
    const struct output *train = &spool->files[TOKENS_TRAIN];
    uint16_t block[TOKEN_BLOCK];
    size_t got;
    rewind(train->stream);
    while ((got = fread(block, sizeof *block, TOKEN_BLOCK, train->stream)) > 0) {
        for (size_t i = 0; i < got; i++) {
            spool->counts.train_values[le16toh(block[i])]++;
        }
    }
    return ferror(train->stream) || fseeko(train->stream, 0, SEEK_END)
               ? error_set_errno("cannot read %s/%s", spool->shown, train->name)
               : 0;
}

/* Number `i` of a list in what was saved, 0 where there is none. */
static uint64_t saved_number(const json_t *saved, const char *list, size_t i) {
    const json_int_t number = json_integer_value(json_array_get(json_object_get(saved, list), i));
    return number > 0 ? (uint64_t)number : 0;
}

static int open_files(struct token_spool *spool, const char *folder, const json_t *saved) {
    static const char *const split_names[] = {"train.bin", "val.bin"};
    spool->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    spool->files = calloc(spool->file_count, sizeof *spool->files);
    if (spool->folder < 0 || !spool->files) {
        return error_set_errno("cannot write into %s", spool->shown);
    }
    const uint64_t merged = json_file_number(saved, "merged");
    if (merged > spool->piles) {
        return fail_damaged(spool);
    }
    spool->merged = (unsigned)merged;
    for (size_t i = 0; i < spool->file_count; i++) {
        struct output *output = &spool->files[i];
        const bool is_split = i < TOKEN_SPLITS;
        output->bytes = saved_number(saved, "bytes", i);
        if (is_split) {
            snprintf(output->name, sizeof output->name, "%s", split_names[i]);
            spool->counts.tokens[i] = output->bytes / sizeof(uint16_t);
            spool->counts.documents[i] = saved_number(saved, "documents", i);
        } else {
            snprintf(output->name, sizeof output->name, "pile-%04zu", i - TOKEN_SPLITS);
        }
        if ((is_split || i - TOKEN_SPLITS >= spool->merged) && output_open(spool, output)) {
            return -1;
        }
    }
    return count_train(spool);
}

int token_spool_open(const char *folder, const char *shown, const struct document_order *order, unsigned piles,
                     const json_t *saved, struct token_spool **opened) {
    struct token_spool *spool = *opened = calloc(1, sizeof *spool);
    if (!spool) {
        return error_set("out of memory");
    }
    spool->shown = shown;
    spool->order = order;
    spool->piles = piles;
    spool->file_count = TOKEN_SPLITS + piles;
    return open_files(spool, folder, saved);
}

void token_spool_close(struct token_spool *spool) {
    if (!spool) {
        return;
    }
    for (size_t i = 0; spool->files && i < spool->file_count; i++) {
        output_close(&spool->files[i]);
    }
    if (spool->folder >= 0) {
        close(spool->folder);
    }
    free(spool->files);
    free(spool);
}

/* ---- adding */

enum token_split token_spool_split(const struct document_order *order, uint64_t document) {
    return document_order_holds_out(order, document) ? TOKENS_VAL : TOKENS_TRAIN;
}

/* Appends tokens to train.bin or val.bin, little-endian, whatever the host is. */
static int write_part(struct token_spool *spool, uint32_t part, enum token_split split, const uint16_t *tokens,
                      size_t count) {
    struct token_spool_counts *counts = &spool->counts;
    uint16_t block[TOKEN_BLOCK];
    counts->tokens[split] += count;
    counts->documents[split] += part == 0;
    for (size_t i = 0; split == TOKENS_TRAIN && i < count; i++) {
        counts->train_values[tokens[i]]++;
    }
    for (size_t done = 0; done < count;) {
        const size_t some = count - done < TOKEN_BLOCK ? count - done : TOKEN_BLOCK;
        for (size_t i = 0; i < some; i++) {
            block[i] = htole16(tokens[done + i]);
        }
        if (output_write(spool, &spool->files[split], block, some * sizeof *block)) {
            return -1;
        }
        done += some;
    }
    return 0;
}

int token_spool_add(struct token_spool *spool, uint64_t document, uint32_t part, enum token_split split,
                    const uint16_t *tokens, size_t count) {
    if (spool->piles == 0) {
        return write_part(spool, part, split, tokens, count);
    }
    const uint64_t place = document_order_place(spool->order, document);
    struct output *output = pile(spool, (size_t)((unsigned __int128)place * spool->piles >> 64));
    const struct header header = {document, part, (uint32_t)count};
    if (count > UINT32_MAX) {
        return error_set("a part of document %" PRIu64 " has too many tokens", document);
    }
    if (!output->stream) { /* merged, by a note that does not belong to these texts */
        return fail_damaged(spool);
    }
    return output_write(spool, output, &header, sizeof header) ||
                   output_write(spool, output, tokens, count * sizeof *tokens)
               ? -1
               : 0;
}

int token_spool_save(struct token_spool *spool, json_t **saved) {
    const uint64_t *documents = spool->counts.documents;
    json_t *bytes = json_array();
    *saved = NULL;
    for (size_t i = 0; i < spool->file_count; i++) {
        if (output_sync(spool, &spool->files[i])) {
            json_decref(bytes);
            return -1;
        }
        json_array_append_new(bytes, json_integer((json_int_t)spool->files[i].bytes));
    }
    *saved = json_pack("{s:o, s:I, s:[I, I]}", "bytes", bytes, "merged", (json_int_t)spool->merged, "documents",
                       (json_int_t)documents[TOKENS_TRAIN], (json_int_t)documents[TOKENS_VAL]);
    return *saved ? 0 : error_set("out of memory");
}

/* ---- sorting a pile */

struct entry {
    uint64_t place;
    struct header header;
    size_t at; /* of its tokens in the pile */
};

static int by_place(const void *a, const void *b) {
    const struct entry *first = a, *second = b;
    if (first->place != second->place) {
        return first->place < second->place ? -1 : 1;
    }
    if (first->header.document != second->header.document) {
        return first->header.document < second->header.document ? -1 : 1;
    }
    return first->header.part < second->header.part ? -1 : first->header.part > second->header.part;
}

/* Lists the parts in a pile's file; *entries is the caller's to free, also on failure. */
static int list_parts(const struct token_spool *spool, const struct output *output, const unsigned char *data,
                      struct entry **entries, size_t *count) {
    size_t at = 0, capacity = 0;
    while (output->bytes - at >= sizeof(struct header)) {
        struct entry entry = {.at = at + sizeof entry.header};
        memcpy(&entry.header, data + at, sizeof entry.header);
        at = entry.at + entry.header.count * sizeof(uint16_t);
        if (at > output->bytes) {
            break;
        }
        entry.place = document_order_place(spool->order, entry.header.document);
        memory_reserve((void **)entries, &capacity, *count + 1, sizeof **entries);
        (*entries)[(*count)++] = entry;
    }
    return at == output->bytes ? 0
                               : error_set("%s/%s is not as it was written: begin anew with --no-resume",
                                           spool->shown, output->name);
}

static int write_sorted(struct token_spool *spool, const struct output *output, const unsigned char *data) {
    struct entry *entries = NULL;
    size_t count = 0;
    int result = list_parts(spool, output, data, &entries, &count);
    if (result == 0) {
        qsort(entries, count, sizeof *entries, by_place);
    }
    for (size_t i = 0; result == 0 && i < count; i++) {
        /* headers and tokens are even, so tokens are aligned */
        const uint16_t *tokens = (const uint16_t *)(const void *)(data + entries[i].at);
        const struct header *header = &entries[i].header;
        result = write_part(spool, header->part, token_spool_split(spool->order, header->document), tokens,
                            header->count);
    }
    free(entries);
    return result;
}

static int merge_pile(struct token_spool *spool, const struct output *output) {
    if (fflush(output->stream)) {
        return fail_write(spool, output);
    }
    if (output->bytes == 0) {
        return 0;
    }
    /* mapped, since a pile may be larger than memory after all */
    void *data = mmap(NULL, output->bytes, PROT_READ, MAP_PRIVATE, fileno(output->stream), 0);
    if (data == MAP_FAILED) {
        return error_set_errno("cannot read %s/%s", spool->shown, output->name);
    }
    const int result = write_sorted(spool, output, data);
    munmap(data, output->bytes);
    return result;
}

int token_spool_merge(struct token_spool *spool, unsigned *left) {
    if (spool->merged < spool->piles) {
        if (merge_pile(spool, pile(spool, spool->merged))) {
            return -1;
        }
        spool->merged++;
    }
    *left = spool->piles - spool->merged;
    return *left == 0 && (output_sync(spool, &spool->files[TOKENS_TRAIN]) ||
                          output_sync(spool, &spool->files[TOKENS_VAL]))
               ? -1
               : 0;
}

void token_spool_remove_merged(struct token_spool *spool) {
    for (unsigned i = 0; i < spool->merged; i++) {
        struct output *output = pile(spool, i);
        if (output->stream) {
            unlinkat(spool->folder, output->name, 0);
            output_close(output);
        }
    }
}

const struct token_spool_counts *token_spool_counts(const struct token_spool *spool) {
    return &spool->counts;
}
