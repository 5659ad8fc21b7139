#include "src/corpus/token_spool.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TRAIN,
    VAL,
    OUTPUTS,
    STREAM_BYTES = 1 << 16, /* a bucket's buffer */
    TOKEN_BLOCK = 1 << 14,  /* tokens written at once */
    HEADER_BYTES = 16,      /* of a part in a bucket: document, part, count */
};

/* A file that grows. */
struct output {
    FILE *stream;
    char *path, *shown; /* owned */
    uint64_t bytes;
};

struct token_spool {
    struct token_spool_settings settings;
    struct output files[OUTPUTS];
    struct output *buckets; /* [settings.buckets] */
    unsigned merged;        /* of the buckets */
    struct token_spool_counts counts;
};

/* ---- files */

/* Opens the file with its first `bytes`, or makes it anew. */
static int output_open(struct output *output, const struct token_spool *spool, const char *name, uint64_t bytes) {
    output->path = files_path("%s/%s", spool->settings.folder, name);
    output->shown = files_path("%s/%s", spool->settings.shown, name);
    if (!output->path || !output->shown) {
        return -1;
    }
    const int descriptor = open(output->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    struct stat status;
    if (descriptor < 0 || fstat(descriptor, &status)) {
        error_set_errno("cannot write %s", output->shown);
    } else if ((uint64_t)status.st_size < bytes) {
        error_set("%s is shorter than it was: begin anew with --no-resume", output->shown);
    } else if (ftruncate(descriptor, (off_t)bytes) || lseek(descriptor, 0, SEEK_END) < 0 ||
               !(output->stream = fdopen(descriptor, "r+b"))) {
        error_set_errno("cannot write %s", output->shown);
    }
    if (!output->stream) {
        if (descriptor >= 0) {
            close(descriptor);
        }
        return -1;
    }
    output->bytes = bytes;
    setvbuf(output->stream, NULL, _IOFBF, STREAM_BYTES);
    return fseeko(output->stream, 0, SEEK_END) == 0 ? 0 : error_set_errno("cannot write %s", output->shown);
}

static int output_write(struct output *output, const void *data, size_t bytes) {
    if (fwrite(data, 1, bytes, output->stream) != bytes) {
        return error_set_errno("cannot write %s", output->shown);
    }
    output->bytes += bytes;
    return 0;
}

/* Little-endian, whatever the host is. */
static int output_tokens(struct output *output, const uint16_t *tokens, size_t count) {
    unsigned char encoded[2 * TOKEN_BLOCK];
    for (size_t done = 0; done < count;) {
        const size_t some = count - done < TOKEN_BLOCK ? count - done : TOKEN_BLOCK;
        for (size_t i = 0; i < some; i++) {
            encoded[2 * i] = (unsigned char)tokens[done + i];
            encoded[2 * i + 1] = (unsigned char)(tokens[done + i] >> 8);
        }
        if (output_write(output, encoded, 2 * some)) {
            return -1;
        }
        done += some;
    }
    return 0;
}

static int output_sync(struct output *output) {
    if (!output->stream) {
        return 0;
    }
    return fflush(output->stream) == 0 && fsync(fileno(output->stream)) == 0
               ? 0
               : error_set_errno("cannot write %s", output->shown);
}

static int output_close(struct output *output) {
    const int result =
        output->stream && fclose(output->stream) ? error_set_errno("cannot write %s", output->shown) : 0;
    free(output->path);
    free(output->shown);
    *output = (struct output){0};
    return result;
}

/* ---- opening */

/* How often each token is in what train.bin already has. */
static int count_train(struct token_spool *spool) {
    FILE *stream = spool->files[TRAIN].stream;
    unsigned char block[2 * TOKEN_BLOCK];
    size_t got;
    rewind(stream);
    while ((got = fread(block, 2, TOKEN_BLOCK, stream)) > 0) {
        for (size_t i = 0; i < got; i++) {
            spool->counts.train_values[block[2 * i] | block[2 * i + 1] << 8]++;
        }
    }
    return ferror(stream) || fseeko(stream, 0, SEEK_END)
               ? error_set_errno("cannot read %s", spool->files[TRAIN].shown)
               : 0;
}

static int open_outputs(struct token_spool *spool, const json_t *saved) {
    struct token_spool_counts *counts = &spool->counts;
    counts->train_tokens = json_file_number(saved, "train_tokens");
    counts->val_tokens = json_file_number(saved, "val_tokens");
    counts->train_documents = json_file_number(saved, "train_documents");
    counts->val_documents = json_file_number(saved, "val_documents");
    return output_open(&spool->files[TRAIN], spool, "train.bin", 2 * counts->train_tokens) ||
                   output_open(&spool->files[VAL], spool, "val.bin", 2 * counts->val_tokens)
               ? -1
               : count_train(spool);
}

static int open_buckets(struct token_spool *spool, const json_t *saved) {
    const json_t *sizes = json_object_get(saved, "buckets");
    spool->buckets = calloc(spool->settings.buckets, sizeof *spool->buckets);
    if (!spool->buckets) {
        return error_set("out of memory");
    }
    spool->merged = (unsigned)json_file_number(saved, "merged");
    for (unsigned i = spool->merged; i < spool->settings.buckets; i++) {
        char name[32];
        const json_int_t bytes = json_integer_value(json_array_get(sizes, i));
        snprintf(name, sizeof name, "bucket-%04u", i);
        if (output_open(&spool->buckets[i], spool, name, bytes > 0 ? (uint64_t)bytes : 0)) {
            return -1;
        }
    }
    return 0;
}

int token_spool_open(const struct token_spool_settings *settings, const json_t *saved,
                     struct token_spool **opened) {
    struct token_spool *spool = calloc(1, sizeof *spool);
    *opened = NULL;
    if (!spool) {
        return error_set("out of memory");
    }
    spool->settings = *settings;
    if (open_outputs(spool, saved) || (settings->buckets > 0 && open_buckets(spool, saved))) {
        token_spool_close(spool);
        return -1;
    }
    *opened = spool;
    return 0;
}

void token_spool_close(struct token_spool *spool) {
    if (!spool) {
        return;
    }
    for (int i = 0; i < OUTPUTS; i++) {
        output_close(&spool->files[i]);
    }
    for (unsigned i = 0; spool->buckets && i < spool->settings.buckets; i++) {
        output_close(&spool->buckets[i]);
    }
    free(spool->buckets);
    free(spool);
}

/* ---- adding */

static int write_part(struct token_spool *spool, uint64_t document, uint32_t part, const uint16_t *tokens,
                      size_t count) {
    struct token_spool_counts *counts = &spool->counts;
    if (document_order_holds_out(spool->settings.order, document)) {
        counts->val_tokens += count;
        counts->val_documents += part == 0;
        return output_tokens(&spool->files[VAL], tokens, count);
    }
    for (size_t i = 0; i < count; i++) {
        counts->train_values[tokens[i]]++;
    }
    counts->train_tokens += count;
    counts->train_documents += part == 0;
    return output_tokens(&spool->files[TRAIN], tokens, count);
}

int token_spool_add(struct token_spool *spool, uint64_t document, uint32_t part, const uint16_t *tokens,
                    size_t count) {
    if (spool->settings.buckets == 0) {
        return write_part(spool, document, part, tokens, count);
    }
    const uint64_t place = document_order_place(spool->settings.order, document);
    const size_t bucket = (size_t)((unsigned __int128)place * spool->settings.buckets >> 64);
    const uint32_t tokens_here = (uint32_t)count;
    unsigned char header[HEADER_BYTES]; /* of this host: the file does not leave it */
    memcpy(header, &document, sizeof document);
    memcpy(header + 8, &part, sizeof part);
    memcpy(header + 12, &tokens_here, sizeof tokens_here);
    if (count > UINT32_MAX) {
        return error_set("a part of document %" PRIu64 " has too many tokens", document);
    }
    return output_write(&spool->buckets[bucket], header, sizeof header) ||
                   output_write(&spool->buckets[bucket], tokens, count * sizeof *tokens)
               ? -1
               : 0;
}

int token_spool_save(struct token_spool *spool, json_t **saved) {
    const struct token_spool_counts *counts = &spool->counts;
    json_t *sizes = json_array();
    int result = output_sync(&spool->files[TRAIN]) || output_sync(&spool->files[VAL]);
    for (unsigned i = 0; result == 0 && i < spool->settings.buckets; i++) {
        result = output_sync(&spool->buckets[i]) ||
                 json_array_append_new(sizes, json_integer((json_int_t)spool->buckets[i].bytes));
    }
    *saved = json_pack("{s:o, s:I, s:I, s:I, s:I, s:I}", "buckets", sizes, "merged", (json_int_t)spool->merged,
                       "train_tokens", (json_int_t)counts->train_tokens, "val_tokens",
                       (json_int_t)counts->val_tokens, "train_documents", (json_int_t)counts->train_documents,
                       "val_documents", (json_int_t)counts->val_documents);
    if (result == 0 && !*saved) {
        result = error_set("out of memory");
    }
    if (result) {
        json_decref(*saved);
        *saved = NULL;
    }
    return result ? -1 : 0;
}

/* ---- sorting a bucket */

struct entry {
    uint64_t place, document;
    size_t at; /* of its tokens in the bucket */
    uint32_t part, count;
};

static int by_place(const void *a, const void *b) {
    const struct entry *first = a, *second = b;
    if (first->place != second->place) {
        return first->place < second->place ? -1 : 1;
    }
    if (first->document != second->document) {
        return first->document < second->document ? -1 : 1;
    }
    return first->part < second->part ? -1 : first->part > second->part;
}

/* The bucket's parts; their number, or with `entries` [that many] also the parts themselves. SIZE_MAX: the file is
 * not whole. */
static size_t list_parts(const struct token_spool *spool, const unsigned char *data, size_t bytes,
                         struct entry *entries) {
    size_t count = 0, at = 0;
    while (bytes - at >= HEADER_BYTES) {
        struct entry entry = {.at = at + HEADER_BYTES};
        memcpy(&entry.document, data + at, sizeof entry.document);
        memcpy(&entry.part, data + at + 8, sizeof entry.part);
        memcpy(&entry.count, data + at + 12, sizeof entry.count);
        const size_t tokens_bytes = entry.count * sizeof(uint16_t);
        if (tokens_bytes > bytes - entry.at) {
            return SIZE_MAX;
        }
        if (entries) {
            entry.place = document_order_place(spool->settings.order, entry.document);
            entries[count] = entry;
        }
        count++;
        at = entry.at + tokens_bytes;
    }
    return at == bytes ? count : SIZE_MAX;
}

static int write_sorted(struct token_spool *spool, const struct output *bucket, const unsigned char *data) {
    const size_t count = list_parts(spool, data, bucket->bytes, NULL);
    if (count == SIZE_MAX) {
        return error_set("%s is not as it was written: begin anew with --no-resume", bucket->shown);
    }
    struct entry *entries = malloc((count + 1) * sizeof *entries);
    if (!entries) {
        return error_set("out of memory for the order of %zu documents", count);
    }
    list_parts(spool, data, bucket->bytes, entries);
    qsort(entries, count, sizeof *entries, by_place);
    int result = 0;
    for (size_t i = 0; result == 0 && i < count; i++) {
        /* headers and tokens are even, so tokens are aligned */
        const uint16_t *tokens = (const uint16_t *)(const void *)(data + entries[i].at);
        result = write_part(spool, entries[i].document, entries[i].part, tokens, entries[i].count);
    }
    free(entries);
    return result;
}

static int merge_bucket(struct token_spool *spool, struct output *bucket) {
    if (fflush(bucket->stream)) {
        return error_set_errno("cannot write %s", bucket->shown);
    }
    if (bucket->bytes == 0) {
        return 0;
    }
    /* mapped, since a bucket may be larger than memory after all */
    void *data = mmap(NULL, bucket->bytes, PROT_READ, MAP_PRIVATE, fileno(bucket->stream), 0);
    if (data == MAP_FAILED) {
        return error_set_errno("cannot read %s", bucket->shown);
    }
    const int result = write_sorted(spool, bucket, data);
    munmap(data, bucket->bytes);
    return result;
}

int token_spool_merge(struct token_spool *spool, unsigned *left) {
    if (spool->merged < spool->settings.buckets) {
        if (merge_bucket(spool, &spool->buckets[spool->merged])) {
            return -1;
        }
        spool->merged++;
    }
    *left = spool->settings.buckets - spool->merged;
    return *left > 0 ? 0 : output_sync(&spool->files[TRAIN]) || output_sync(&spool->files[VAL]) ? -1 : 0;
}

void token_spool_remove_merged(struct token_spool *spool) {
    for (unsigned i = 0; i < spool->merged; i++) {
        if (spool->buckets[i].path) {
            unlink(spool->buckets[i].path);
            output_close(&spool->buckets[i]);
        }
    }
}

const struct token_spool_counts *token_spool_counts(const struct token_spool *spool) {
    return &spool->counts;
}
