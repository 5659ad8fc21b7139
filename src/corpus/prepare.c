#include "src/corpus/prepare.h"
#include "runtime/files/checksum.h"
#include "runtime/files/files.h"
#include "runtime/files/input.h"
#include "runtime/files/json_file.h"
#include "runtime/files/token_file.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/progress.h"
#include "src/corpus/corpus_reader.h"
#include "src/corpus/token_writer.h"
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_BUCKETS = 256,   /* files open at once */
    UNKNOWN_BUCKETS = 64, /* if the size of the sources is not known */
    MOST_JSON_BYTES = 1 << 28,
    MOST_GROUP_BYTES = 32 << 20, /* of text that is encoded at once, or two batches of a thread */
    THREAD_BATCHES = 2,          /* that are encoded at once */
};

/* Batches that are filled, encoded and written together. */
struct batch_group {
    struct text_batch *batches; /* [THREAD_BATCHES * threads], owned */
    size_t count;               /* of them in use */
};

struct preparation {
    const struct prepare_settings *settings;
    struct tokenizer *tokenizer;
    struct document_order order;
    char vocabulary_digest[CHECKSUM_SIZE], order_digest[CHECKSUM_SIZE]; /* "" if there is no such file */
    json_t *task;     /* settings and sources: only saved work of the same task is resumed */
    char *work;       /* the folder of work in progress */
    int lock;         /* on the folder of results; -1: none */
    bool made_folder; /* of results */
    bool can_resume;  /* all sources can be read again */
    bool saved;       /* the folder of work has a state to resume from */
    bool blocked;     /* the same settings would fail again, as far as is known */
    bool stopped;
    uint64_t total; /* stored bytes of all sources, 0: not known */
    struct corpus_reader *reader;
    struct batch_group groups[2]; /* one is filled while the other is encoded */
    struct encoder encoder;
    struct token_writer *writer;
    struct progress progress;
    double saved_at;
};

/* ---- the task */

/* Fails if the file `input`, which may be NULL, would be replaced by a result. */
static int check_is_no_result(const struct preparation *preparation, const char *input) {
    const char *folder = preparation->settings->folder;
    return input && (files_refuse_members(folder, token_folder_files, input) || shard_refuse_input(folder, input))
               ? -1
               : 0;
}

/* Opens the files that are read beside the sources, and describes the task with the sources' sizes. That is before
 * anything is read, so missing files are reported at once. */
static int begin_task(struct preparation *preparation) {
    const struct prepare_settings *settings = preparation->settings;
    const char *order = settings->order, *vocabulary = settings->tokenizer.path;
    json_t *sources = json_array();
    unsigned from_stdin = 0;
    preparation->task = json_pack("{s:o}", "sources", sources);
    preparation->can_resume = true;
    if (document_order_begin(&preparation->order, (uint64_t)settings->seed, settings->val_fraction, order) ||
        (order && checksum_file(order, preparation->order_digest)) ||
        tokenizer_open(&settings->tokenizer, &preparation->tokenizer) ||
        (vocabulary && checksum_file(vocabulary, preparation->vocabulary_digest)) ||
        check_is_no_result(preparation, order) || check_is_no_result(preparation, vocabulary)) {
        return -1;
    }
    for (size_t i = 0; i < settings->source_count; i++) {
        const char *path = settings->sources[i];
        const bool is_stdin = strcmp(path, "-") == 0;
        struct input_status status;
        if (input_examine(path, &status) || check_is_no_result(preparation, path)) {
            return -1;
        }
        from_stdin += is_stdin;
        preparation->can_resume = preparation->can_resume && status.regular && !is_stdin;
        preparation->total += status.bytes;
        json_array_append_new(sources,
                              json_pack("{s:o, s:I, s:I}", "path", json_file_name(path), "bytes",
                                        (json_int_t)status.bytes, "modified", (json_int_t)status.modified));
    }
    if (!preparation->can_resume) {
        preparation->total = 0;
    }
    json_object_update_new(preparation->task,
                           json_pack("{s:s, s:s, s:I, s:b, s:s, s:s, s:s, s:s, s:b, s:b, s:f, s:I, s:b, s:s, s:b}",
                                     "version", HC_VERSION, "tokenizer", tokenizer_name(preparation->tokenizer),
                                     "end_of_text", (json_int_t)tokenizer_end_of_text(preparation->tokenizer),
                                     "parse_special", settings->tokenizer.parse_special, "vocabulary_sha256",
                                     preparation->vocabulary_digest, "documents",
                                     document_kind_name(settings->kind), "field",
                                     settings->kind == DOCUMENT_JSONL ? settings->field : "", "prompt_field",
                                     settings->prompt_field ? settings->prompt_field : "", "lengths",
                                     settings->lengths, "replace_invalid", settings->replace_invalid,
                                     "val_fraction", settings->val_fraction, "seed", (json_int_t)settings->seed,
                                     "shuffle", settings->shuffle, "order_sha256", preparation->order_digest,
                                     "val_source", settings->val_source));
    return from_stdin < 2 ? 0 : error_set("standard input (-) can be given once only");
}

/* ---- the folder of work */

/* Moves complete results, which the state describes, from the folder of work to their folder, meta.json last, and
 * removes the folder of work. Of older results nothing stays. When it was interrupted or failed, calling it again
 * continues. */
static int move_results(const struct preparation *preparation, const json_t *state) {
    static const char *const bins[] = {"train.bin", "val.bin"}, *const lengths[] = {"train.documents",
                                                                                    "val.documents"};
    const char *folder = preparation->settings->folder, *tokenizer = "";
    const json_t *task = json_object_get(state, "task");
    bool has_val = false, has_lengths = false;
    int64_t shards[TOKEN_SPLITS] = {0}; /* 0: the split has one file */
    if (json_file_get_flag(state, "moving", &has_val) || json_file_get_flag(task, "lengths", &has_lengths) ||
        json_file_get_text(task, "tokenizer", &tokenizer) ||
        json_file_get_whole(state, "train_shards", 0, TOKEN_SHARDS_MOST, &shards[SPLIT_TRAIN]) ||
        json_file_get_whole(state, "val_shards", 0, TOKEN_SHARDS_MOST, &shards[SPLIT_VAL])) {
        return error_prefix("the finished work in %s is damaged (--no-resume discards it)", preparation->work);
    }
    struct token_shard_names moved = {0}, old = {0}; /* in this order; older files that have no successor */
    for (int split = TOKEN_SPLITS - 1; split >= 0; split--) {
        const bool written = split == SPLIT_TRAIN || has_val;
        for (int64_t i = 0; i < shards[split]; i++) {
            token_shards_add(&moved, shard_name(split, (uint64_t)i).text);
        }
        token_shards_add(written && shards[SPLIT_TRAIN] == 0 ? &moved : &old, bins[split]);
        token_shards_add(written && has_lengths ? &moved : &old, lengths[split]);
    }
    token_shards_add(strcmp(tokenizer, "file") == 0 ? &moved : &old, TOKENIZER_FILE_NAME);
    token_shards_add(&moved, "meta.json");
    token_shards_add(&moved, NULL);
    int status = shard_list_old(folder, shards, &old);
    token_shards_add(&old, NULL);
    if (status == 0) {
        status = files_move_into(folder, preparation->work, (const char *const *)moved.names,
                                 (const char *const *)old.names) ||
                 files_remove_folder(preparation->work);
    }
    token_shards_free(&moved);
    token_shards_free(&old);
    return status ? -1 : 0;
}

/* Looks at what an earlier process left. 1: all results of this task were complete, and are in place now. 0:
 * there is work to do, from *state on, which the caller releases, or from the beginning if that is NULL. -1: an
 * error, and what was left stays. Only --no-resume discards the work of another task; a state that is not JSON is
 * ignored. */
static int read_state(const struct preparation *preparation, json_t **state) {
    const bool resume = preparation->settings->resume;
    json_t *left = NULL;
    json_error_t error;
    int result = 0;
    const struct path path = path_of("%s/state.json", preparation->work);
    if (files_exist(path.text) && json_file_read(path.text, MOST_JSON_BYTES, &left) == -1 && resume) {
        return error_prefix("unfinished work (--no-resume discards it)");
    }
    error_clear();
    const json_t *moving = json_object_get(left, "moving");
    const bool same =
        resume && preparation->can_resume && json_equal(json_object_get(left, "task"), preparation->task);
    if (moving && move_results(preparation, left) == 0) {
        result = same && json_file_number(left, "shard_tokens") == (uint64_t)preparation->settings->shard_tokens;
    } else if (moving) {
        result = resume ? -1 : 0;
    } else if (same && json_unpack_ex(left, &error, JSON_VALIDATE_ONLY,
                                      "{s:{s:o, s:I, s:I, s:I, s:I, s:I}, s:{s:o, s:I, s:[I, I]}}", "reader",
                                      "done", "documents", "pieces", "split_total", "split_position",
                                      "split_held_out", "writer", "bytes", "sorted", "documents")) {
        result = error_set("the unfinished work in %s is damaged (%s): start again with --no-resume",
                           preparation->work, error.text);
    } else if (same) {
        *state = json_incref(left);
    } else if (left && resume) {
        result = error_set("%s has unfinished work of other files or settings: give --no-resume to discard it, or "
                           "choose another --out",
                           preparation->work);
    }
    json_decref(left);
    return result;
}

/* Makes the folder of work, or resumes from what an earlier process left there. Results as those of read_state. */
static int begin_work(struct preparation *preparation) {
    const struct prepare_settings *settings = preparation->settings;
    const struct tokenizer *tokenizer = preparation->tokenizer;
    const char *work = preparation->work;
    json_t *state = NULL;
    const int left = read_state(preparation, &state);
    preparation->saved = state || left < 0;
    preparation->blocked = left < 0;
    if (left != 0) {
        return left;
    }
    unsigned buckets = 0; /* documents keep their order */
    if (settings->kind != DOCUMENT_CHUNKS && (settings->shuffle || settings->order)) {
        const uint64_t wanted = preparation->total / settings->bucket_bytes + 1;
        buckets = wanted < MOST_BUCKETS ? (unsigned)wanted : MOST_BUCKETS;
        buckets = preparation->total == 0 ? UNKNOWN_BUCKETS : buckets;
    }
    for (size_t i = 0; i < COUNT(preparation->groups); i++) {
        preparation->groups[i].batches =
            memory_zeroed(THREAD_BATCHES * (size_t)settings->threads, sizeof(struct text_batch));
    }
    preparation->encoder = (struct encoder){.settings = settings, .tokenizer = tokenizer};
    preparation->reader = corpus_reader_open(settings, tokenizer, &preparation->order, preparation->total,
                                             json_object_get(state, "reader"));
    const int result =
        (!state && files_exist(work) && files_remove_folder(work)) || files_make_folder(work) ||
        token_writer_open(work, &preparation->order, buckets, settings->lengths, tokenizer_count(tokenizer),
                          json_object_get(state, "writer"), &preparation->writer);
    json_decref(state);
    return result ? -1 : 0;
}

/* Saves a state to resume from. All batches must have been written. */
static int save_state(struct preparation *preparation) {
    json_t *writer;
    preparation->saved_at = progress_clock();
    if (!preparation->can_resume) {
        return 0;
    }
    if (token_writer_save(preparation->writer, &writer)) {
        return -1;
    }
    json_t *state = json_pack("{s:O, s:o, s:o}", "task", preparation->task, "reader",
                              corpus_reader_save(preparation->reader), "writer", writer);
    if (json_file_write(path_of("%s/state.json", preparation->work).text, state,
                        JSON_INDENT(1) | JSON_REAL_PRECISION(17))) {
        return -1;
    }
    preparation->saved = true;
    return 0;
}

/* ---- reading, encoding and sorting */

/* Shows nothing for work that takes only a moment. */
static void begin_progress(struct preparation *preparation, uint64_t first) {
    progress_end(&preparation->progress);
    progress_start(&preparation->progress, (int64_t)first);
    preparation->progress.shown = preparation->progress.start;
}

/* Writes the tokens of a group that was encoded. */
static int write_group(struct preparation *preparation, struct batch_group *group) {
    for (struct text_batch *batch = group->batches; batch < group->batches + group->count; batch++) {
        const uint32_t *tokens = batch->tokens.tokens;
        if (batch->error) {
            error_restore(batch->error);
            batch->error = NULL;
            preparation->blocked = true;
            return -1;
        }
        for (size_t i = 0, at = 0; i < batch->count; at = batch->pieces[i++].token_end) {
            const struct text_piece *piece = &batch->pieces[i];
            if (token_writer_add(preparation->writer, piece->document, piece->part,
                                 piece->held_out ? SPLIT_VAL : SPLIT_TRAIN, tokens ? tokens + at : NULL,
                                 piece->token_end - at, piece->prompt_tokens)) {
                return -1;
            }
        }
    }
    group->count = 0;
    return 0;
}

static bool wants_to_stop(const struct preparation *preparation) {
    struct pollfd waiting = {preparation->settings->stop_descriptor, POLLIN, 0};
    return poll(&waiting, 1, 0) > 0;
}

/* Reads, encodes and writes all text. When asked to stop, it writes and saves what was read. */
static int read_all(struct preparation *preparation) {
    const struct prepare_settings *settings = preparation->settings;
    struct batch_group *filled = &preparation->groups[0], *encoded = &preparation->groups[1];
    const size_t most_batches = THREAD_BATCHES * (size_t)settings->threads;
    const size_t most_bytes = size_larger(MOST_GROUP_BYTES, most_batches << 20);
    for (int more = 1; more == 1;) {
        bool saves = false, stops = false;
        char details[80];
        for (size_t bytes = 0; more == 1 && !saves && bytes < most_bytes && filled->count < most_batches;) {
            struct text_batch *batch = &filled->batches[filled->count++];
            text_batch_clear(batch, false);
            more = corpus_reader_fill(preparation->reader, batch);
            stops = more < 0 && wants_to_stop(preparation);
            saves = stops || (more == 1 && progress_clock() - preparation->saved_at >= settings->save_interval);
            bytes += batch->text.size;
            const struct corpus_status status = corpus_reader_status(preparation->reader);
            const double seconds = progress_clock() - preparation->progress.start;
            const double read = (double)status.stored_bytes / 1e6 - (double)preparation->progress.first;
            const uint64_t total = preparation->total > 0 ? preparation->total : status.stored_bytes;
            snprintf(details, sizeof details, "%" PRIu64 " %s, %.1f MB/s", status.documents,
                     settings->kind == DOCUMENT_CHUNKS ? "chunks" : "documents", read / (seconds + 1e-9));
            progress_show(&preparation->progress, "reading MB", (int64_t)(status.stored_bytes / 1000000),
                          (int64_t)(total / 1000000), details);
        }
        if (more < 0 && !stops) {
            preparation->blocked = true;
            return -1;
        }
        encoder_wait(&preparation->encoder);
        encoder_start(&preparation->encoder, filled->batches, filled->count);
        if (write_group(preparation, encoded)) {
            return -1;
        }
        if (more != 1 || saves) {
            encoder_wait(&preparation->encoder);
            if (write_group(preparation, filled) || (saves && save_state(preparation))) {
                return -1;
            }
        }
        preparation->stopped = stops;
        struct batch_group *swapped = filled;
        filled = encoded;
        encoded = swapped;
    }
    if (preparation->stopped) {
        return error_set("stopped while reading");
    }
    const struct document_order *order = &preparation->order;
    const uint64_t documents = corpus_reader_status(preparation->reader).documents;
    if (order->places && order->count != documents) {
        preparation->saved = false;
        return error_set("the order lists %" PRIu64 " documents, but the input has %" PRIu64, order->count,
                         documents);
    }
    return 0;
}

static int sort_all(struct preparation *preparation) {
    unsigned left = 1, most = 0;
    begin_progress(preparation, 0);
    while (left > 0) {
        if (wants_to_stop(preparation)) {
            preparation->stopped = true;
            return error_set("stopped while sorting");
        }
        if (token_writer_sort(preparation->writer, &left) || (left > 0 && save_state(preparation))) {
            return -1;
        }
        if (left > 0) {
            token_writer_remove_sorted(preparation->writer);
        }
        most = most > 0 ? most : left + 1;
        progress_show(&preparation->progress, "sorting", most - left, most, "");
    }
    return 0;
}

/* ---- results */

static bool has_val(const struct prepare_settings *settings) {
    return settings->val_fraction > 0 || settings->val_source;
}

static int write_meta(const struct preparation *preparation) {
    const struct prepare_settings *settings = preparation->settings;
    const struct corpus_status status = corpus_reader_status(preparation->reader);
    const struct token_counts *counts = token_writer_counts(preparation->writer);
    const struct tokenizer *tokenizer = preparation->tokenizer;
    const uint64_t train = counts->tokens[SPLIT_TRAIN], val = counts->tokens[SPLIT_VAL];
    const uint32_t vocabulary = tokenizer_count(tokenizer);
    const char *path = settings->tokenizer.path;
    const bool chunks = settings->kind == DOCUMENT_CHUNKS, has_file = settings->tokenizer.kind == TOKENIZER_FILE;
    const char *shuffled = !chunks && settings->shuffle ? "shuffled" : "kept";
    const char *order = !chunks && settings->order ? "listed" : shuffled;
    json_t *wide = token_bytes_for(vocabulary) > 2 ? json_integer(token_bytes_for(vocabulary)) : NULL;
    size_t end_bytes;
    const char *end = tokenizer_bytes(tokenizer, tokenizer_end_of_text(tokenizer), &end_bytes);
    double entropy = 0; /* of the training tokens, nats per token */
    for (uint32_t i = 0; i < vocabulary; i++) {
        if (counts->train_values[i] > 0) {
            const double share = (double)counts->train_values[i] / (double)train;
            entropy -= share * log(share);
        }
    }
    json_t *meta =
        json_pack("{s:I, s:o*, s:o*, s:s, s:I, s:I, s:f, s:f, s:f, s:I, s:s, s:I, s:I, s:s, s:s, s:o*, s:O, s:s*, "
                  "s:o*, s:s*, s:s*, s:o*, s:o*, s:s*}",
                  "vocab_size", (json_int_t)vocabulary, "token_bytes", wide, "shard_tokens",
                  settings->shard_tokens ? json_integer(settings->shard_tokens) : NULL, "tokenizer",
                  tokenizer_name(tokenizer), "train_tokens", (json_int_t)train, "val_tokens", (json_int_t)val,
                  "held_out_fraction", (double)val / (double)(train + val), "val_fraction", settings->val_fraction,
                  "unigram_entropy", entropy, "seed", (json_int_t)settings->seed, "documents",
                  document_kind_name(settings->kind), "train_documents", (json_int_t)counts->documents[SPLIT_TRAIN],
                  "val_documents", (json_int_t)counts->documents[SPLIT_VAL], "order", order, "strip_markup",
                  "none", /* data/gcide/describe.py replaces it */
                  "chunk_bytes", chunks ? json_integer((json_int_t)status.chunk_bytes) : NULL, "sources",
                  status.sources, has_file ? "tokenizer_sha256" : "ranks_sha256",
                  path ? preparation->vocabulary_digest : NULL, "end_of_text",
                  has_file ? json_stringn(end, end_bytes) : NULL, "special_tokens",
                  settings->tokenizer.parse_special ? "parse" : NULL, "order_sha256",
                  settings->order ? preparation->order_digest : NULL, "val_source",
                  settings->val_source ? json_file_name(settings->sources[settings->source_count - 1]) : NULL,
                  "document_lengths", settings->lengths ? json_true() : NULL, "prompt_field",
                  settings->prompt_field);
    return json_file_write(path_of("%s/meta.json", preparation->work).text, meta,
                           JSON_INDENT(2) | JSON_REAL_PRECISION(10))
               ? error_prefix("cannot write %s/meta.json", settings->folder)
               : 0;
}

static int check_results(const struct preparation *preparation) {
    const struct prepare_settings *settings = preparation->settings;
    const struct corpus_status status = corpus_reader_status(preparation->reader);
    const struct token_counts *counts = token_writer_counts(preparation->writer);
    const uint64_t train = counts->tokens[SPLIT_TRAIN], val = counts->tokens[SPLIT_VAL];
    if (train + val == 0) {
        return error_set("there is no text in the input%s", status.stored_bytes == 0 ? ": it is empty" : "");
    }
    if (train > 0 && (!has_val(settings) || val > 0)) {
        return 0;
    }
    if (settings->val_source) {
        return error_set(train > 0 ? "the file to hold out has no text" : "the files to train on have no text");
    }
    const bool chunks = settings->kind == DOCUMENT_CHUNKS;
    return error_set("the input has %" PRIu64 " %s, too few to hold out %g %% of them; give more or another "
                     "--val-fraction (0: none)%s",
                     chunks ? train + val : status.documents, chunks ? "tokens" : "documents",
                     100 * settings->val_fraction,
                     chunks ? "" : ", or take the text as one with --documents chunks");
}

/* Divides train.bin and val.bin, which stay in the folder of work, into shards, whose numbers are in counts. Shards
 * of an earlier process go first, since they may be of another size and take the space of the new ones. */
static int write_shards(struct preparation *preparation, uint64_t counts[TOKEN_SPLITS]) {
    const unsigned token_bytes = token_bytes_for(tokenizer_count(preparation->tokenizer));
    const uint64_t each = (uint64_t)preparation->settings->shard_tokens;
    const uint64_t *tokens = token_writer_counts(preparation->writer)->tokens;
    if (save_state(preparation) || shard_remove_all(preparation->work)) {
        return -1;
    }
    for (int split = 0; split < TOKEN_SPLITS; split++) {
        counts[split] = tokens[split] / each + (tokens[split] % each > 0);
        if (counts[split] > TOKEN_SHARDS_MOST) {
            preparation->blocked = true;
            return error_set("%" PRIu64 " tokens of %s are %" PRIu64 " shards, and at most %d can be read: give "
                             "--shards %" PRIu64 " or more",
                             tokens[split], token_split_name(split), counts[split], TOKEN_SHARDS_MOST,
                             (tokens[split] - 1) / TOKEN_SHARDS_MOST + 1);
        }
    }
    const uint64_t total = counts[SPLIT_TRAIN] + counts[SPLIT_VAL];
    begin_progress(preparation, 0);
    for (uint64_t i = 0; i < total; i++) {
        const bool is_val = i >= counts[SPLIT_TRAIN];
        if (wants_to_stop(preparation)) {
            preparation->stopped = true;
            return error_set("stopped while writing shards");
        }
        if (shard_write(preparation->work, is_val ? SPLIT_VAL : SPLIT_TRAIN, token_bytes, each,
                        is_val ? i - counts[SPLIT_TRAIN] : i)) {
            return -1;
        }
        progress_show(&preparation->progress, "writing shards", (int64_t)i + 1, (int64_t)total, "");
    }
    return files_sync_all(preparation->work); /* before the state says that only the move is left */
}

/* Writes what is missing beside train.bin and val.bin and moves the results into place. From then on, the next
 * process only continues the move. */
static int finish(struct preparation *preparation) {
    const struct prepare_settings *settings = preparation->settings;
    const struct path copy = path_of("%s/" TOKENIZER_FILE_NAME, preparation->work);
    uint64_t shards[TOKEN_SPLITS] = {0};
    char digest[CHECKSUM_SIZE];
    if (check_results(preparation)) {
        preparation->saved = false; /* resuming would give the same */
        return -1;
    }
    if (settings->shard_tokens > 0 && write_shards(preparation, shards)) {
        return -1;
    }
    if (settings->tokenizer.kind == TOKENIZER_FILE) { /* it belongs to the results */
        if (tokenizer_copy(settings->tokenizer.path, copy.text) || checksum_file(copy.text, digest)) {
            return -1;
        }
        if (strcmp(digest, preparation->vocabulary_digest) != 0) {
            return error_set("%s was changed while the text was encoded", settings->tokenizer.path);
        }
    }
    if (write_meta(preparation)) {
        return -1;
    }
    json_t *state = json_pack("{s:O, s:b, s:I, s:I, s:I}", "task", preparation->task, "moving", has_val(settings),
                              "shard_tokens", (json_int_t)settings->shard_tokens, "train_shards",
                              (json_int_t)shards[SPLIT_TRAIN], "val_shards", (json_int_t)shards[SPLIT_VAL]);
    preparation->saved = true;
    const int status = json_file_write(path_of("%s/state.json", preparation->work).text, json_incref(state),
                                       JSON_REAL_PRECISION(17)) ||
                       move_results(preparation, state);
    json_decref(state);
    return status ? -1 : 0;
}

/* Reads the report from meta.json, since an earlier process may have written the results. */
static int fill_report(const struct preparation *preparation, struct prepare_report *report) {
    json_t *meta = NULL;
    const json_t *source;
    size_t i;
    if (json_file_read(path_of("%s/meta.json", preparation->settings->folder).text, MOST_JSON_BYTES, &meta)) {
        return -1;
    }
    report->train_tokens = json_file_number(meta, "train_tokens");
    report->val_tokens = json_file_number(meta, "val_tokens");
    report->documents = json_file_number(meta, "train_documents") + json_file_number(meta, "val_documents");
    report->unigram_entropy = json_number_value(json_object_get(meta, "unigram_entropy"));
    json_array_foreach(json_object_get(meta, "sources"), i, source) {
        report->source_bytes += json_file_number(source, "bytes");
    }
    json_decref(meta);
    return 0;
}

static int prepare(struct preparation *preparation) {
    const char *folder = preparation->settings->folder;
    if (begin_task(preparation)) {
        return -1;
    }
    preparation->made_folder = !files_exist(folder);
    preparation->work = memory_format("%s/.hc_prepare", folder);
    if (files_make_folder(folder) || files_lock_folder(folder, &preparation->lock) ||
        shard_refuse_others(folder, preparation->settings->shard_tokens > 0)) {
        return -1;
    }
    files_stage_clean(folder);
    const int left = begin_work(preparation);
    if (left != 0) {
        return left == 1 ? 0 : -1;
    }
    preparation->saved_at = progress_clock();
    begin_progress(preparation, corpus_reader_status(preparation->reader).stored_bytes / 1000000);
    return read_all(preparation) || sort_all(preparation) || finish(preparation) ? -1 : 0;
}

enum program_status prepare_run(const struct prepare_settings *settings, struct prepare_report *report) {
    struct preparation preparation = {.settings = settings, .lock = -1};
    *report = (struct prepare_report){0};
    const int result = prepare(&preparation) || fill_report(&preparation, report) ? -1 : 0;
    char *kept = error_keep();
    progress_end(&preparation.progress);
    encoder_wait(&preparation.encoder);
    for (size_t i = 0; i < COUNT(preparation.groups); i++) {
        for (size_t j = 0; preparation.groups[i].batches && j < THREAD_BATCHES * (size_t)settings->threads; j++) {
            text_batch_clear(&preparation.groups[i].batches[j], true);
        }
        free(preparation.groups[i].batches);
    }
    corpus_reader_close(preparation.reader);
    token_writer_close(preparation.writer);
    tokenizer_close(preparation.tokenizer);
    document_order_end(&preparation.order);
    json_decref(preparation.task);
    report->kept = result && preparation.saved;
    report->resumes = report->kept && !preparation.blocked;
    if (result && !report->kept) { /* only work that can be resumed stays */
        if (preparation.lock >= 0) {
            files_remove_folder(preparation.work);
        }
        if (preparation.made_folder) {
            rmdir(settings->folder);
        }
    }
    if (preparation.lock >= 0) {
        close(preparation.lock);
    }
    free(preparation.work);
    error_restore(kept);
    return result == 0 ? PROGRAM_DONE : preparation.stopped ? PROGRAM_INTERRUPTED : PROGRAM_FAILED;
}
