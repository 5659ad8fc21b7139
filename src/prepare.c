#include "src/prepare.h"
#include "runtime/checksum.h"
#include "runtime/error.h"
#include "runtime/files.h"
#include "runtime/random.h"
#include "src/markup_gcide.h"
#include "src/text_buffer.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    VOCAB_SIZE = 256,          /* a token is a byte */
    BLOCK_BYTES = 1 << 20,     /* read at once */
    CHUNK_BYTES = 1 << 16,     /* the unit of what is held out */
    LEAST_HELD_OUT_CHUNKS = 4, /* wanted, by smaller chunks if need be */
    TOKEN_BLOCK = 1 << 15,     /* tokens encoded at once */
};

static const double progress_interval = 0.2; /* seconds */

/* Where text comes from. */
struct source {
    const char *path;
    int descriptor;
    bool is_regular;
    uint64_t size;  /* of a regular file at the beginning */
    uint64_t bytes; /* read so far */
    struct checksum *checksum;
    char sha256[CHECKSUM_SIZE];
};

/* A token file in the making. */
struct token_output {
    FILE *stream;
    char *name; /* where it will be, for messages */
    uint64_t tokens;
};

struct preparation {
    const struct prepare_settings *settings;
    struct source *sources;
    char *staging;
    bool made_folder;
    char *block; /* BLOCK_BYTES */
    struct text_buffer text;
    struct markup_gcide gcide;
    struct token_output train, val;
    uint64_t counts[VOCAB_SIZE]; /* of training tokens */
    size_t chunk_bytes;          /* 0 until it is known */
    uint64_t chunks;
    double offset;         /* u of the formula in prepare.h */
    uint64_t bytes_done;   /* of all sources */
    uint64_t bytes_total;  /* 0: not known */
    double started, shown; /* seconds */
    bool stopped;
};

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- sources */

static const char *source_name(const struct source *source) {
    return strcmp(source->path, "-") == 0 ? "standard input" : source->path;
}

/* Notes size and kind; refuses what cannot be text. */
static int source_describe(struct source *source, const struct stat *status) {
    if (S_ISDIR(status->st_mode)) {
        return error_set("cannot read %s: it is a folder; name its files", source_name(source));
    }
    source->is_regular = S_ISREG(status->st_mode);
    source->size = source->is_regular ? (uint64_t)status->st_size : 0;
    return 0;
}

static int source_open(struct source *source, const char *path) {
    source->path = path;
    /* O_NONBLOCK: opening a named pipe does not wait for its writer, wait_for_source does. */
    source->descriptor = strcmp(path, "-") == 0 ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (source->descriptor < 0) {
        return error_set_errno("cannot open %s", path);
    }
    source->checksum = checksum_create();
    return source->checksum != NULL ? 0 : -1;
}

static void source_close(struct source *source) {
    if (source->descriptor > STDIN_FILENO) {
        close(source->descriptor);
        source->descriptor = -1;
    }
    checksum_free(source->checksum);
    source->checksum = NULL;
}

/* Before anything is read: that files are missing shows at once, and how much there will be. */
static int check_sources(struct preparation *preparation) {
    const struct prepare_settings *settings = preparation->settings;
    bool all_regular = true;
    unsigned from_stdin = 0;
    for (size_t i = 0; i < settings->source_count; i++) {
        struct source source = {.path = settings->sources[i]};
        const bool is_stdin = strcmp(source.path, "-") == 0;
        struct stat status;
        if ((is_stdin ? fstat(STDIN_FILENO, &status) : stat(source.path, &status)) != 0) {
            return error_set_errno("cannot open %s", source_name(&source));
        }
        if (source_describe(&source, &status) != 0) {
            return -1;
        }
        from_stdin += is_stdin;
        all_regular = all_regular && source.is_regular;
        preparation->bytes_total += source.size;
    }
    if (!all_regular) {
        preparation->bytes_total = 0;
    }
    return from_stdin < 2 ? 0 : error_set("standard input (-) can be given once only");
}

/* Waits until there is something to read; true if there is a wish to stop. */
static bool wait_for_source(struct preparation *preparation, const struct source *source) {
    struct pollfd waiting[2] = {{preparation->settings->stop_descriptor, POLLIN, 0},
                                {source->descriptor, POLLIN, 0}};
    while (poll(waiting, 2, -1) < 0 && errno == EINTR) {
    }
    preparation->stopped = waiting[0].revents != 0;
    return preparation->stopped;
}

/* Fills the block; *bytes is less than a block at the end only. */
static int source_read(struct preparation *preparation, struct source *source, size_t *bytes) {
    *bytes = 0;
    while (*bytes < BLOCK_BYTES) {
        if (wait_for_source(preparation, source)) {
            return error_set("stopped");
        }
        const ssize_t got = read(source->descriptor, preparation->block + *bytes, BLOCK_BYTES - *bytes);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
            continue;
        }
        if (got < 0) {
            return error_set_errno("cannot read %s", source_name(source));
        }
        if (got == 0) {
            break;
        }
        *bytes += (size_t)got;
    }
    source->bytes += *bytes;
    preparation->bytes_done += *bytes;
    return checksum_update(source->checksum, preparation->block, *bytes);
}

/* ---- tokens */

static int output_open(struct token_output *output, const struct preparation *preparation, const char *name) {
    char *path = files_path("%s/%s", preparation->staging, name);
    output->name = files_path("%s/%s", preparation->settings->folder, name);
    int result = -1;
    if (path != NULL && output->name != NULL) {
        output->stream = fopen(path, "wbe");
        result = output->stream != NULL ? 0 : error_set_errno("cannot write %s", output->name);
    }
    free(path);
    return result;
}

static int output_close(struct token_output *output) {
    int result = 0;
    if (output->stream != NULL && fclose(output->stream) != 0) {
        result = error_set_errno("cannot write %s", output->name);
    }
    free(output->name);
    output->stream = NULL;
    output->name = NULL;
    return result;
}

/* Writes bytes as tokens, little-endian 16-bit numbers. */
static int output_encode(struct token_output *output, const char *text, size_t bytes) {
    unsigned char encoded[2 * TOKEN_BLOCK];
    for (size_t done = 0; done < bytes;) {
        const size_t some = bytes - done < TOKEN_BLOCK ? bytes - done : TOKEN_BLOCK;
        for (size_t i = 0; i < some; i++) {
            encoded[2 * i] = (unsigned char)text[done + i];
            encoded[2 * i + 1] = 0;
        }
        if (fwrite(encoded, 2, some, output->stream) != some) {
            return error_set_errno("cannot write %s", output->name);
        }
        done += some;
    }
    output->tokens += bytes;
    return 0;
}

/* ---- chunks */

/* The bytes of the next chunk, 0 if more text is needed to tell. */
static size_t next_chunk(const struct preparation *preparation, bool at_end) {
    const char *text = preparation->text.bytes;
    const size_t bytes = preparation->text.size, least = preparation->chunk_bytes;
    if (bytes < 2 * least) {
        return at_end ? bytes : 0;
    }
    const char *blank_line = memmem(text + least - 1, least, "\n\n", 2);
    if (blank_line != NULL) {
        return (size_t)(blank_line - text) + 2;
    }
    const char *line_end = memchr(text + least - 1, '\n', least);
    return line_end != NULL ? (size_t)(line_end - text) + 1 : 2 * least;
}

static int write_chunk(struct preparation *preparation, const char *text, size_t bytes) {
    const double fraction = preparation->settings->val_fraction;
    const double position = (double)preparation->chunks++ * fraction + preparation->offset;
    if (floor(position + fraction) > floor(position)) {
        return output_encode(&preparation->val, text, bytes);
    }
    for (size_t i = 0; i < bytes; i++) {
        preparation->counts[(unsigned char)text[i]]++;
    }
    return output_encode(&preparation->train, text, bytes);
}

/* Writes the chunks that are complete; all that is left at the end of a source. */
static int write_chunks(struct preparation *preparation, bool at_end) {
    if (preparation->chunk_bytes == 0) {
        /* What is known of the size when the first text comes. */
        uint64_t total = preparation->bytes_total;
        if (total == 0 && preparation->settings->source_count == 1 && at_end) {
            total = preparation->bytes_done;
        }
        const double wanted = (double)total * preparation->settings->val_fraction / LEAST_HELD_OUT_CHUNKS;
        const bool is_small = total > 0 && wanted < CHUNK_BYTES && preparation->settings->val_fraction > 0;
        preparation->chunk_bytes = is_small ? (size_t)wanted + 1 : CHUNK_BYTES;
    }
    struct text_buffer *text = &preparation->text;
    struct text_buffer rest = *text; /* a view, so that text moves once */
    size_t done = 0, bytes;
    int result = 0;
    while (result == 0 && done < rest.size) {
        *text = (struct text_buffer){rest.bytes + done, rest.size - done, 0};
        bytes = next_chunk(preparation, at_end);
        *text = rest;
        if (bytes == 0) {
            break;
        }
        result = write_chunk(preparation, rest.bytes + done, bytes);
        done += bytes;
    }
    text_drop(text, done);
    return result;
}

/* ---- progress */

static void show_progress(struct preparation *preparation) {
    const double now = seconds();
    if (!preparation->settings->progress || now - preparation->shown < progress_interval) {
        return;
    }
    preparation->shown = now;
    const double done = (double)preparation->bytes_done, total = (double)preparation->bytes_total;
    const double rate = done / (now - preparation->started + 1e-9);
    if (total > 0) {
        const double left = done < total && rate > 0 ? (total - done) / rate : 0;
        fprintf(stderr, "\r%5.1f %%  %.0f of %.0f MB  %.0f MB/s  %.0f s left \033[K", 100 * fmin(done / total, 1),
                done / 1e6, total / 1e6, rate / 1e6, left);
    } else {
        fprintf(stderr, "\r%.0f MB  %.0f MB/s \033[K", done / 1e6, rate / 1e6);
    }
    fflush(stderr);
}

static void clear_progress(const struct preparation *preparation) {
    if (preparation->shown > 0) {
        fprintf(stderr, "\r\033[K");
    }
}

/* ---- all together */

static int take_block(struct preparation *preparation, size_t bytes, bool at_end) {
    int result = 0;
    if (preparation->settings->markup == PREPARE_MARKUP_GCIDE) {
        result = markup_gcide_add(&preparation->gcide, preparation->block, bytes, &preparation->text);
        if (result == 0 && at_end) {
            result = markup_gcide_finish(&preparation->gcide, &preparation->text);
            markup_gcide_free(&preparation->gcide);
            preparation->gcide = (struct markup_gcide){0};
        }
    } else {
        result = text_append(&preparation->text, preparation->block, bytes);
    }
    return result == 0 ? write_chunks(preparation, at_end) : -1;
}

static int take_source(struct preparation *preparation, struct source *source, const char *path) {
    if (source_open(source, path) != 0) {
        return -1;
    }
    size_t bytes = BLOCK_BYTES;
    while (bytes == BLOCK_BYTES) {
        if (source_read(preparation, source, &bytes) != 0 ||
            take_block(preparation, bytes, bytes < BLOCK_BYTES) != 0) {
            return -1;
        }
        show_progress(preparation);
    }
    return checksum_finish(source->checksum, source->sha256);
}

static double entropy(const uint64_t counts[VOCAB_SIZE], uint64_t total) {
    double sum = 0;
    for (int i = 0; i < VOCAB_SIZE; i++) {
        if (counts[i] > 0) {
            const double share = (double)counts[i] / (double)total;
            sum -= share * log(share);
        }
    }
    return sum;
}

static json_t *sources_json(const struct preparation *preparation) {
    json_t *list = json_array();
    for (size_t i = 0; i < preparation->settings->source_count; i++) {
        const struct source *source = &preparation->sources[i];
        json_t *path = json_string(source->path);
        if (path == NULL) {
            path = json_string("(a name that is not UTF-8)");
        }
        json_array_append_new(list, json_pack("{s:o, s:I, s:s}", "path", path, "bytes", (json_int_t)source->bytes,
                                              "sha256", source->sha256));
    }
    return list;
}

static int write_meta(const struct preparation *preparation, const struct prepare_report *report) {
    const struct prepare_settings *settings = preparation->settings;
    const uint64_t tokens = report->train_tokens + report->val_tokens;
    json_t *meta =
        json_pack("{s:i, s:s, s:I, s:I, s:f, s:f, s:f, s:I, s:I, s:s, s:o}", "vocab_size", VOCAB_SIZE, "tokenizer",
                  "byte", "train_tokens", (json_int_t)report->train_tokens, "val_tokens",
                  (json_int_t)report->val_tokens, "held_out_fraction", (double)report->val_tokens / (double)tokens,
                  "val_fraction", settings->val_fraction, "unigram_entropy", report->unigram_entropy, "seed",
                  (json_int_t)settings->seed, "chunk_bytes", (json_int_t)preparation->chunk_bytes, "strip_markup",
                  settings->markup == PREPARE_MARKUP_GCIDE ? "gcide" : "none", "sources",
                  sources_json(preparation));
    char *text = meta != NULL ? json_dumps(meta, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) : NULL;
    char *path = files_path("%s/meta.json", preparation->staging);
    int result = -1;
    if (text == NULL || path == NULL) {
        error_set("out of memory");
    } else {
        const size_t length = strlen(text);
        text[length] = '\n'; /* over the final NUL */
        result = files_write(path, text, length + 1);
        if (result != 0) {
            error_prefix("cannot write %s/meta.json", settings->folder);
        }
    }
    json_decref(meta);
    free(text);
    free(path);
    return result;
}

static int check_result(const struct preparation *preparation, const struct prepare_report *report) {
    const double fraction = preparation->settings->val_fraction;
    if (report->train_tokens + report->val_tokens == 0) {
        return error_set("there is no text in the input%s",
                         report->source_bytes > 0 ? " after its markup was stripped" : ": it is empty");
    }
    if (report->train_tokens == 0 || (fraction > 0 && report->val_tokens == 0)) {
        return error_set("the input, %" PRIu64
                         " bytes of text, is too small to hold out %g %% of it; give more text or "
                         "--val-fraction 0",
                         report->train_tokens + report->val_tokens, 100 * fraction);
    }
    return 0;
}

static int begin(struct preparation *preparation) {
    const char *folder = preparation->settings->folder;
    preparation->sources = calloc(preparation->settings->source_count, sizeof *preparation->sources);
    preparation->block = malloc(BLOCK_BYTES);
    if (preparation->sources == NULL || preparation->block == NULL) {
        return error_set("out of memory");
    }
    preparation->offset = random_uniform(random_key(preparation->settings->seed, "held-out chunks"), 0);
    preparation->started = seconds();
    if (check_sources(preparation) != 0) {
        return -1;
    }
    preparation->made_folder = !files_exist(folder);
    if (files_make_folder(folder) != 0) {
        preparation->made_folder = false;
        return -1;
    }
    files_stage_clean(folder);
    char *name = files_path("%s/prepare", folder);
    const int result = name != NULL ? files_stage_begin(name, &preparation->staging) : -1;
    free(name);
    if (result != 0 || output_open(&preparation->train, preparation, "train.bin") != 0) {
        return -1;
    }
    return output_open(&preparation->val, preparation, "val.bin");
}

/* Puts the staged files into the folder, meta.json as the last one. */
static int commit(struct preparation *preparation) {
    const char *folder = preparation->settings->folder;
    const bool has_val = preparation->settings->val_fraction > 0;
    static const char *const names[] = {"train.bin", "val.bin", "meta.json", NULL};
    static const char *const names_without_val[] = {"train.bin", "meta.json", NULL};
    char *old_meta = files_path("%s/meta.json", folder);
    char *old_val = files_path("%s/val.bin", folder);
    int result = old_meta != NULL && old_val != NULL ? 0 : -1;
    if (result == 0) {
        unlink(old_meta); /* from here on the folder is incomplete, should the machine stop */
        if (!has_val) {
            unlink(old_val);
        }
        result = files_stage_commit_into(folder, preparation->staging, has_val ? names : names_without_val);
        preparation->staging = NULL;
    }
    free(old_meta);
    free(old_val);
    return result;
}

static int prepare(struct preparation *preparation, struct prepare_report *report) {
    const struct prepare_settings *settings = preparation->settings;
    if (begin(preparation) != 0) {
        return -1;
    }
    for (size_t i = 0; i < settings->source_count; i++) {
        const int result = take_source(preparation, &preparation->sources[i], settings->sources[i]);
        source_close(&preparation->sources[i]);
        if (result != 0) {
            return -1;
        }
    }
    report->source_bytes = preparation->bytes_done;
    report->train_tokens = preparation->train.tokens;
    report->val_tokens = preparation->val.tokens;
    report->unigram_entropy = entropy(preparation->counts, report->train_tokens);
    if (check_result(preparation, report) != 0 || output_close(&preparation->train) != 0 ||
        output_close(&preparation->val) != 0) {
        return -1;
    }
    return write_meta(preparation, report) == 0 ? commit(preparation) : -1;
}

enum prepare_result prepare_run(const struct prepare_settings *settings, struct prepare_report *report) {
    struct preparation preparation = {.settings = settings};
    *report = (struct prepare_report){0};
    const int result = prepare(&preparation, report);
    clear_progress(&preparation);
    if (result != 0) {
        char *kept = error_keep();
        output_close(&preparation.train);
        output_close(&preparation.val);
        files_stage_abandon(preparation.staging);
        if (preparation.made_folder) {
            rmdir(settings->folder);
        }
        error_restore(kept);
    }
    markup_gcide_free(&preparation.gcide);
    text_free(&preparation.text);
    free(preparation.sources);
    free(preparation.block);
    return result == 0 ? PREPARE_DONE : preparation.stopped ? PREPARE_STOPPED : PREPARE_FAILED;
}
