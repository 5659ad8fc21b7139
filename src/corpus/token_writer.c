#include "src/corpus/token_writer.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TOKEN_BLOCK = 1 << 14, /* tokens written at once */
    COPY_BYTES = 1 << 20,  /* copied at once */
};

/* In a bucket, before the tokens of a part, which are stored as in train.bin. It has this host's byte order, since
 * the file stays here. */
struct header {
    uint64_t document;
    uint32_t part : 31, held_out : 1;
    uint32_t count;  /* of tokens */
    uint64_t prompt; /* of them */
};

/* A file that grows. */
struct output {
    char *path;
    FILE *stream; /* NULL: not open, or a bucket that is sorted */
    uint64_t bytes;
};

struct token_writer {
    const struct document_order *order;
    unsigned buckets, sorted;
    uint32_t vocab_size;
    unsigned token_bytes; /* in all files of tokens */
    size_t file_count;
    struct output *files;   /* [file_count]: train.bin, val.bin, the buckets, and the files of documents */
    struct output *lengths; /* [TOKEN_SPLITS] of `files`: the latter; NULL: there are none */
    struct token_counts counts;
};

/* ---- files */

static int fail_write(const struct output *output) {
    return error_set_errno("cannot write %s", output->path);
}

static int fail_damaged(const struct output *output, const char *what) {
    return error_set("%s %s: start again with --no-resume", output->path, what);
}

/* Opens the file with its first output->bytes, or creates it. */
static int output_open(struct output *output) {
    const int descriptor = open(output->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    struct stat status;
    if (descriptor < 0) {
        return fail_write(output);
    }
    output->stream = fdopen(descriptor, "r+b");
    if (!output->stream) {
        memory_refused(0);
    }
    if (fstat(descriptor, &status)) {
        return fail_write(output);
    }
    if (!S_ISREG(status.st_mode)) {
        return error_set("cannot write %s: it is not a regular file", output->path);
    }
    if ((uint64_t)status.st_size < output->bytes) {
        return fail_damaged(output, "is shorter than it was");
    }
    return ftruncate(descriptor, (off_t)output->bytes) || fseeko(output->stream, 0, SEEK_END) ? fail_write(output)
                                                                                              : 0;
}

static int output_write(struct output *output, const void *data, size_t bytes) {
    output->bytes += bytes;
    return fwrite(data, 1, bytes, output->stream) == bytes ? 0 : fail_write(output);
}

static int output_sync(const struct output *output) {
    const bool done = !output->stream || (fflush(output->stream) == 0 && fsync(fileno(output->stream)) == 0);
    return done ? 0 : fail_write(output);
}

/* ---- opening */

/* Counts tokens of train.bin as they are stored. Fails if one is beyond the vocabulary, which `file` then has. */
static int count_values(struct token_writer *writer, const struct output *file, const unsigned char *stored,
                        size_t count) {
    for (size_t i = 0; i < count; i++) {
        const uint32_t token = token_load(stored + i * writer->token_bytes, writer->token_bytes);
        if (token >= writer->vocab_size) {
            return fail_damaged(file, "is not as it was written");
        }
        writer->counts.train_values[token]++;
    }
    return 0;
}

/* Number `i` of a list in the saved state, 0 if there is none. */
static uint64_t saved_number(const json_t *saved, const char *list, size_t i) {
    const json_int_t number = json_integer_value(json_array_get(json_object_get(saved, list), i));
    return number > 0 ? (uint64_t)number : 0;
}

int token_writer_open(const char *folder, const struct document_order *order, unsigned buckets, bool lengths,
                      uint32_t vocab_size, const json_t *saved, struct token_writer **opened) {
    struct token_writer *writer = *opened = memory_zeroed(1, sizeof *writer);
    writer->order = order;
    writer->buckets = buckets;
    writer->vocab_size = vocab_size;
    writer->token_bytes = token_bytes_for(vocab_size);
    writer->counts.train_values = memory_zeroed(vocab_size, sizeof *writer->counts.train_values);
    writer->file_count = TOKEN_SPLITS + buckets + (lengths ? TOKEN_SPLITS : 0);
    writer->files = memory_zeroed(writer->file_count, sizeof *writer->files);
    writer->lengths = lengths ? writer->files + TOKEN_SPLITS + buckets : NULL;
    for (size_t i = 0; i < writer->file_count; i++) {
        struct output *file = &writer->files[i];
        file->bytes = saved_number(saved, "bytes", i);
        if (i < TOKEN_SPLITS) {
            file->path = memory_format("%s/%s.bin", folder, token_split_name((int)i));
        } else if (i < TOKEN_SPLITS + buckets) {
            file->path = memory_format("%s/bucket-%04zu", folder, i - TOKEN_SPLITS);
        } else {
            file->path =
                memory_format("%s/%s.documents", folder, token_split_name((int)(i - TOKEN_SPLITS - buckets)));
        }
    }
    const uint64_t sorted = json_file_number(saved, "sorted");
    if (sorted > buckets) {
        return error_set("the unfinished work in %s is damaged: start again with --no-resume", folder);
    }
    writer->sorted = (unsigned)sorted;
    for (size_t i = 0; i < TOKEN_SPLITS; i++) {
        writer->counts.tokens[i] = writer->files[i].bytes / writer->token_bytes;
        writer->counts.documents[i] = saved_number(saved, "documents", i);
    }
    for (size_t i = 0; i < writer->file_count; i++) {
        if ((i < TOKEN_SPLITS || i - TOKEN_SPLITS >= sorted) && output_open(&writer->files[i])) {
            return -1;
        }
    }
    /* the tokens that train.bin already has */
    const struct output *train = &writer->files[SPLIT_TRAIN];
    unsigned char block[TOKEN_BLOCK * TOKEN_MOST_BYTES];
    rewind(train->stream);
    for (size_t got; (got = fread(block, writer->token_bytes, TOKEN_BLOCK, train->stream)) > 0;) {
        if (count_values(writer, train, block, got)) {
            return -1;
        }
    }
    return ferror(train->stream) || fseeko(train->stream, 0, SEEK_END)
               ? error_set_errno("cannot read %s", train->path)
               : 0;
}

void token_writer_close(struct token_writer *writer) {
    if (writer) {
        for (size_t i = 0; i < writer->file_count; i++) {
            if (writer->files[i].stream) {
                fclose(writer->files[i].stream);
            }
            free(writer->files[i].path);
        }
        free(writer->counts.train_values);
        free(writer->files);
        free(writer);
    }
}

/* ---- adding */

/* Appends tokens to a file as token files have them. */
static int write_tokens(const struct token_writer *writer, struct output *file, const uint32_t *tokens,
                        size_t count) {
    unsigned char block[TOKEN_BLOCK * TOKEN_MOST_BYTES];
    const unsigned bytes = writer->token_bytes;
    for (size_t done = 0; done < count;) {
        const size_t some = count - done < TOKEN_BLOCK ? count - done : TOKEN_BLOCK;
        for (size_t i = 0; i < some; i++) {
            token_store(block + i * bytes, bytes, tokens[done + i]);
        }
        if (output_write(file, block, some * bytes)) {
            return -1;
        }
        done += some;
    }
    return 0;
}

/* Counts a part that is written to train.bin or val.bin, and writes its length if lengths are written. */
static int count_part(struct token_writer *writer, uint32_t part, enum token_split split, size_t count,
                      uint64_t prompt) {
    unsigned char length[TOKEN_DOCUMENT_BYTES];
    writer->counts.tokens[split] += count;
    writer->counts.documents[split] += part == 0;
    if (!writer->lengths) {
        return 0;
    }
    token_documents_store(length, (uint32_t)count, (uint32_t)prompt);
    return output_write(&writer->lengths[split], length, sizeof length);
}

int token_writer_add(struct token_writer *writer, uint64_t document, uint32_t part, enum token_split split,
                     const uint32_t *tokens, size_t count, uint32_t prompt) {
    if (writer->buckets == 0) {
        if (count_part(writer, part, split, count, prompt)) {
            return -1;
        }
        for (size_t i = 0; split == SPLIT_TRAIN && i < count; i++) {
            writer->counts.train_values[tokens[i]]++;
        }
        return write_tokens(writer, &writer->files[split], tokens, count);
    }
    const uint64_t place = document_order_place(writer->order, document);
    struct output *bucket =
        &writer->files[TOKEN_SPLITS + (size_t)((unsigned __int128)place * writer->buckets >> 64)];
    const struct header header = {document, part & INT32_MAX, split == SPLIT_VAL, (uint32_t)count, prompt};
    if (!bucket->stream) { /* the saved state belongs to other texts */
        return fail_damaged(bucket, "was sorted already");
    }
    return output_write(bucket, &header, sizeof header) || write_tokens(writer, bucket, tokens, count) ? -1 : 0;
}

int token_writer_save(struct token_writer *writer, json_t **saved) {
    const uint64_t *documents = writer->counts.documents;
    json_t *bytes = json_array();
    *saved = json_pack("{s:o, s:I, s:[I, I]}", "bytes", bytes, "sorted", (json_int_t)writer->sorted, "documents",
                       (json_int_t)documents[SPLIT_TRAIN], (json_int_t)documents[SPLIT_VAL]);
    for (size_t i = 0; i < writer->file_count; i++) {
        json_array_append_new(bytes, json_integer((json_int_t)writer->files[i].bytes));
        if (output_sync(&writer->files[i])) {
            json_decref(*saved);
            *saved = NULL;
            return -1;
        }
    }
    return 0;
}

/* ---- sorting */

struct entry {
    uint64_t place;
    struct header header;
    size_t at; /* of its tokens in the bucket */
};

static int by_place(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->place != y->place) {
        return x->place < y->place ? -1 : 1;
    }
    if (x->header.document != y->header.document) {
        return x->header.document < y->header.document ? -1 : 1;
    }
    return (x->at > y->at) - (x->at < y->at);
}

/* Lists the parts in a bucket; *entries is heap memory of the caller, also on failure. */
static int list_parts(const struct token_writer *writer, const struct output *bucket, const unsigned char *data,
                      struct entry **entries, size_t *count) {
    size_t at = 0, capacity = 0;
    while (bucket->bytes - at >= sizeof(struct header)) {
        struct entry entry = {.at = at + sizeof entry.header};
        memcpy(&entry.header, data + at, sizeof entry.header);
        at = entry.at + (size_t)entry.header.count * writer->token_bytes;
        if (at > bucket->bytes) {
            break;
        }
        entry.place = document_order_place(writer->order, entry.header.document);
        memory_reserve((void **)entries, &capacity, *count + 1, sizeof **entries);
        (*entries)[(*count)++] = entry;
    }
    return at == bucket->bytes ? 0 : fail_damaged(bucket, "is not as it was written");
}

/* Sorts the parts of a bucket, which is mapped as `data`, into the files of their splits. */
static int write_sorted(struct token_writer *writer, const struct output *bucket, const unsigned char *data) {
    struct entry *entries = NULL;
    size_t count = 0;
    int result = list_parts(writer, bucket, data, &entries, &count);
    if (result == 0 && count > 0) {
        qsort(entries, count, sizeof *entries, by_place);
    }
    for (size_t i = 0; result == 0 && i < count; i++) {
        const struct header *header = &entries[i].header;
        const unsigned char *tokens = data + entries[i].at;
        const enum token_split split = header->held_out ? SPLIT_VAL : SPLIT_TRAIN;
        result = count_part(writer, header->part, split, header->count, header->prompt) ||
                         (split == SPLIT_TRAIN && count_values(writer, bucket, tokens, header->count)) ||
                         output_write(&writer->files[split], tokens, (size_t)header->count * writer->token_bytes)
                     ? -1
                     : 0;
    }
    free(entries);
    return result;
}

int token_writer_sort(struct token_writer *writer, unsigned *left) {
    if (writer->sorted < writer->buckets) {
        const struct output *bucket = &writer->files[TOKEN_SPLITS + writer->sorted];
        if (fflush(bucket->stream)) {
            return fail_write(bucket);
        }
        if (bucket->bytes > 0) {
            /* mapped rather than read, since a bucket may be larger than memory after all */
            void *data = mmap(NULL, bucket->bytes, PROT_READ, MAP_PRIVATE, fileno(bucket->stream), 0);
            if (data == MAP_FAILED) {
                return error_set_errno("cannot read %s", bucket->path);
            }
            const int result = write_sorted(writer, bucket, data);
            munmap(data, bucket->bytes);
            if (result) {
                return -1;
            }
        }
        writer->sorted++;
    }
    *left = writer->buckets - writer->sorted;
    for (size_t i = 0; *left == 0 && i < writer->file_count; i++) {
        const bool is_bucket = i >= TOKEN_SPLITS && i < TOKEN_SPLITS + writer->buckets;
        if (!is_bucket && output_sync(&writer->files[i])) {
            return -1;
        }
    }
    return 0;
}

void token_writer_remove_sorted(struct token_writer *writer) {
    for (size_t i = TOKEN_SPLITS; i < TOKEN_SPLITS + writer->sorted; i++) {
        if (writer->files[i].stream) {
            unlink(writer->files[i].path);
            fclose(writer->files[i].stream);
            writer->files[i].stream = NULL;
        }
    }
}

const struct token_counts *token_writer_counts(const struct token_writer *writer) {
    return &writer->counts;
}

/* ---- names of shards */

struct shard_name shard_name(int split, uint64_t number) {
    struct shard_name name;
    snprintf(name.text, sizeof name.text, "corpus_%s_%06" PRIu64 ".bin", token_split_name(split), number);
    return name;
}

/* Returns the number of a shard by its name; UINT64_MAX if hc_prepare gives no such name. */
static uint64_t number_of(const char *name, int split) {
    const size_t before = strlen("corpus_") + strlen(token_split_name(split)) + 1;
    const uint64_t number = strlen(name) > before ? strtoull(name + before, NULL, 10) : 0;
    return strcmp(shard_name(split, number).text, name) == 0 ? number : UINT64_MAX;
}

/* ---- writing shards */

int shard_write(const char *folder, int split, unsigned token_bytes, uint64_t each, uint64_t number) {
    const struct path from = path_of("%s/%s.bin", folder, token_split_name(split));
    const struct path path = path_of("%s/%s", folder, shard_name(split, number).text);
    unsigned char header[TOKEN_SHARD_HEADER_BYTES];
    uint64_t bytes;
    const int source = files_open(from.text, from.text, &bytes);
    if (source < 0) {
        return -1;
    }
    const int target = open(path.text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    const uint64_t first = number * each * token_bytes, left = bytes - first;
    const uint64_t size = left < each * token_bytes ? left - left % token_bytes : each * token_bytes;
    int status = 0;
    token_shard_fill_header(header, token_bytes, size / token_bytes);
    if (target < 0 || files_write_all(target, header, sizeof header)) {
        status = error_set_errno("cannot write %s", path.text);
    }
    unsigned char *block = memory_allocate(COPY_BYTES, 1);
    for (uint64_t done = 0; status == 0 && done < size;) {
        const size_t some = size - done < COPY_BYTES ? (size_t)(size - done) : COPY_BYTES;
        const ssize_t got = files_read_all(source, block, some, (int64_t)(first + done));
        if (got < (ssize_t)some) {
            status =
                got < 0 ? error_set_errno("cannot read %s", from.text) : error_set("%s became shorter", from.text);
        } else if (files_write_all(target, block, some)) {
            status = error_set_errno("cannot write %s", path.text);
        }
        done += some;
    }
    free(block);
    close(source);
    if (target >= 0) {
        close(target);
    }
    return status;
}

/* ---- older shards */

int shard_refuse_others(const char *folder, bool has_shards) {
    int status = 0;
    for (int split = 0; status == 0 && split < TOKEN_SPLITS; split++) {
        struct token_shard_names list;
        status = token_shards_list(folder, split, &list);
        for (size_t i = 0; status == 0 && i < list.count; i++) {
            const char *name = list.names[i];
            if (number_of(name, split) == UINT64_MAX &&
                (has_shards || token_shard_kind(path_of("%s/%s", folder, name).text))) {
                status = error_set("%s has %s, which would be read as a token shard beside the new %s: choose "
                                   "another --out",
                                   folder, name, has_shards ? "ones" : "files");
            }
        }
        token_shards_free(&list);
    }
    return status;
}

int shard_list_old(const char *folder, const int64_t kept[TOKEN_SPLITS], struct token_shard_names *old) {
    int status = 0;
    for (int split = 0; status == 0 && split < TOKEN_SPLITS; split++) {
        struct token_shard_names list;
        status = token_shards_list(folder, split, &list);
        for (size_t i = 0; i < list.count; i++) {
            const uint64_t number = number_of(list.names[i], split);
            if (number != UINT64_MAX && number >= (uint64_t)kept[split]) {
                token_shards_add(old, list.names[i]);
            }
        }
        token_shards_free(&list);
    }
    return status;
}

int shard_refuse_input(const char *folder, const char *input) {
    const char *slash = strrchr(input, '/'), *name = slash ? slash + 1 : input;
    const int64_t none[TOKEN_SPLITS] = {0};
    struct token_shard_names list = {0};
    int status = 0;
    if (files_is_link(input)) {
        status = shard_list_old(folder, none, &list);
    } else if (number_of(name, SPLIT_TRAIN) < UINT64_MAX || number_of(name, SPLIT_VAL) < UINT64_MAX) {
        token_shards_add(&list, name); /* faster than looking at all shards */
    }
    for (size_t i = 0; status == 0 && i < list.count; i++) {
        status = files_refuse_same(path_of("%s/%s", folder, list.names[i]).text, input);
    }
    token_shards_free(&list);
    return status;
}

int shard_remove_all(const char *folder) {
    const int64_t none[TOKEN_SPLITS] = {0};
    struct token_shard_names list = {0};
    int status = shard_list_old(folder, none, &list);
    for (size_t i = 0; status == 0 && i < list.count; i++) {
        status = files_remove(path_of("%s/%s", folder, list.names[i]).text);
    }
    token_shards_free(&list);
    return status;
}
