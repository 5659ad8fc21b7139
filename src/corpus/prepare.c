#include "src/corpus/prepare.h"
#include "runtime/files/checksum.h"
#include "runtime/files/files.h"
#include "runtime/files/input.h"
#include "runtime/files/json_file.h"
#include "runtime/files/token_file.h"
#include "runtime/files/token_shards.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/progress.h"
#include "src/corpus/corpus_reader.h"
#include "src/corpus/shard_writer.h"
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
    struct encoder *encoder;
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

/* Lists the sources and their sizes before anything is read, so missing files are reported at once. */
static int examine_sources(struct preparation *preparation, json_t *list) {
    const struct prepare_settings *settings = preparation->settings;
    unsigned from_stdin = 0;
    preparation->can_resume = true;
    for (size_t i = 0; i < settings->source_count; i++) {
        const char *path = settings->sources[i];
        struct input_status status;
        if (input_examine(path, &status) || check_is_no_result(preparation, path)) {
            return -1;
        }
        from_stdin += strcmp(path, "-") == 0;
        preparation->can_resume = preparation->can_resume && status.regular && strcmp(path, "-") != 0;
        preparation->total += status.bytes;
        json_array_append_new(list, json_pack("{s:o, s:I, s:I}", "path", json_file_name(path), "bytes",
                                              (json_int_t)status.bytes, "modified", (json_int_t)status.modified));
    }
    if (!preparation->can_resume) {
        preparation->total = 0;
    }
    return from_stdin < 2 ? 0 : error_set("standard input (-) can be given once only");
}

/* Opens the files that are read beside the sources, and describes the task. */
static int begin_task(struct preparation *preparation) {
    const struct prepare_settings *settings = preparation->settings;
    const char *order = settings->order, *vocabulary = settings->tokenizer.path;
    if (document_order_begin(&preparation->order, (uint64_t)settings->seed, settings->val_fraction, order) ||
        (order && checksum_file(order, preparation->order_digest)) ||
        tokenizer_open(&settings->tokenizer, &preparation->tokenizer) ||
        (vocabulary && checksum_file(vocabulary, preparation->vocabulary_digest)) ||
        check_is_no_result(preparation, order) || check_is_no_result(preparation, vocabulary)) {
        return -1;
    }
    json_t *sources = json_array();
    if (examine_sources(preparation, sources)) {
        json_decref(sources);
        return -1;
    }
    preparation->task =
        json_pack("{s:s, s:s, s:I, s:b, s:s, s:s, s:s, s:s, s:b, s:b, s:f, s:I, s:b, s:s, s:b, s:o}", "version",
                  HC_VERSION, "tokenizer", tokenizer_name(preparation->tokenizer), "end_of_text",
                  (json_int_t)tokenizer_end_of_text(preparation->tokenizer), "parse_special",
                  settings->tokenizer.parse_special, "vocabulary_sha256", preparation->vocabulary_digest,
                  "documents", document_kind_name(settings->kind), "field",
                  settings->kind == DOCUMENT_JSONL ? settings->field : "", "prompt_field",
                  settings->prompt_field ? settings->prompt_field : "", "lengths", settings->lengths,
                  "replace_invalid", settings->replace_invalid, "val_fraction", settings->val_fraction, "seed",
                  (json_int_t)settings->seed, "shuffle", settings->shuffle, "order_sha256",
                  preparation->order_digest, "val_source", settings->val_source, "sources", sources);
    return 0;
}

/* ---- the folder of work */

/* The results of finished work. */
struct results {
    uint64_t shards[TOKEN_SPLITS]; /* 0: the split has one file */
    bool has_val, has_tokenizer, has_lengths;
};

static const char *const lengths_files[TOKEN_SPLITS] = {"train.documents", "val.documents"};

/* Lists the files of results in the order in which they are moved, with NULL behind the last. The caller frees. */
static struct token_shard_names list_results(const struct results *results) {
    struct token_shard_names list = {0};
    for (int split = TOKEN_SPLITS - 1; split >= 0; split--) {
        for (uint64_t i = 0; i < results->shards[split]; i++) {
            token_shards_add(&list, shard_name(split, i).text);
        }
        if (results->shards[SPLIT_TRAIN] == 0 && (split == SPLIT_TRAIN || results->has_val)) {
            token_shards_add(&list, split == SPLIT_TRAIN ? "train.bin" : "val.bin");
        }
    }
    if (results->has_tokenizer) {
        token_shards_add(&list, TOKENIZER_FILE_NAME);
    }
    for (int split = 0; results->has_lengths && split < (results->has_val ? TOKEN_SPLITS : 1); split++) {
        token_shards_add(&list, lengths_files[split]);
    }
    token_shards_add(&list, "meta.json");
    token_shards_add(&list, NULL);
    return list;
}

/* Lists in the same way the files of older results that have no successor. The caller frees, also on failure. */
static int list_old(const char *folder, const struct results *results, struct token_shard_names *list) {
    const bool has_shards = results->shards[SPLIT_TRAIN] > 0;
    *list = (struct token_shard_names){0};
    if (has_shards) {
        token_shards_add(list, "train.bin");
    }
    if (has_shards || !results->has_val) {
        token_shards_add(list, "val.bin");
    }
    if (!results->has_tokenizer) {
        token_shards_add(list, TOKENIZER_FILE_NAME);
    }
    for (int split = 0; split < TOKEN_SPLITS; split++) {
        if (!results->has_lengths || (split == SPLIT_VAL && !results->has_val)) {
            token_shards_add(list, lengths_files[split]);
        }
    }
    const int status = shard_list_old(folder, results->shards, list);
    token_shards_add(list, NULL);
    return status;
}

/* Moves complete results, which the state describes, from the folder of work to their folder, meta.json last, and
 * removes the folder of work. Of older results nothing stays. When it was interrupted or failed, calling it again
 * continues. */
static int move_results(const struct preparation *preparation, const json_t *state) {
    const char *folder = preparation->settings->folder;
    const json_t *task = json_object_get(state, "task");
    const char *tokenizer = "";
    int64_t train_shards = 0, val_shards = 0;
    struct results results = {0};
    if (json_file_get_flag(state, "moving", &results.has_val) ||
        json_file_get_flag(task, "lengths", &results.has_lengths) ||
        json_file_get_text(task, "tokenizer", &tokenizer) ||
        json_file_get_whole(state, "train_shards", 0, TOKEN_SHARDS_MOST, &train_shards) ||
        json_file_get_whole(state, "val_shards", 0, TOKEN_SHARDS_MOST, &val_shards)) {
        return error_prefix("the finished work in %s is damaged (--no-resume discards it)", preparation->work);
    }
    results.has_tokenizer = strcmp(tokenizer, "file") == 0;
    results.shards[SPLIT_TRAIN] = (uint64_t)train_shards;
    results.shards[SPLIT_VAL] = (uint64_t)val_shards;
    struct token_shard_names list = list_results(&results), old;
    const int status = list_old(folder, &results, &old) ||
                       files_move_into(folder, preparation->work, (const char *const *)list.names,
                                       (const char *const *)old.names) ||
                       files_remove_folder(preparation->work);
    token_shards_free(&list);
    token_shards_free(&old);
    return status ? -1 : 0;
}

/* Fails if a member of the state to resume from is not of the type that save_state writes. */
static int check_state(const struct preparation *preparation, json_t *state) {
    json_error_t error;
    return json_unpack_ex(state, &error, JSON_VALIDATE_ONLY,
                          "{s:{s:o, s:I, s:I, s:I, s:I, s:I}, s:{s:o, s:I, s:[I, I]}}", "reader", "done",
                          "documents", "pieces", "split_total", "split_position", "split_held_out", "writer",
                          "bytes", "sorted", "documents") == 0
               ? 0
               : error_set("the unfinished work in %s is damaged (%s): start again with --no-resume",
                           preparation->work, error.text);
}

/* Looks at what an earlier process left. 1: all results of this task were complete, and are in place now. 0:
 * there is work to do, from *state on, which the caller releases, or from the beginning if that is NULL. -1: an
 * error, and what was left stays. Only --no-resume discards the work of another task; a state that is not JSON is
 * ignored. */
static int read_state(const struct preparation *preparation, json_t **state) {
    const bool resume = preparation->settings->resume;
    json_t *left = NULL;
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
    } else if (same && check_state(preparation, left)) {
        result = -1;
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

/* Makes the folder of results, and keeps other processes out of it. */
static int begin_folder(struct preparation *preparation) {
    const char *folder = preparation->settings->folder;
    preparation->made_folder = !files_exist(folder);
    preparation->work = memory_format("%s/.hc_prepare", folder);
    if (files_make_folder(folder) || files_lock_folder(folder, &preparation->lock) ||
        shard_refuse_others(folder, preparation->settings->shard_tokens > 0)) {
        return -1;
    }
    files_stage_clean(folder);
    return 0;
}

/* The number of buckets in which documents are sorted; 0: they keep their order. */
static unsigned count_buckets(const struct preparation *preparation) {
    const struct prepare_settings *settings = preparation->settings;
    const uint64_t wanted = preparation->total / settings->bucket_bytes + 1;
    return settings->kind == DOCUMENT_CHUNKS || !(settings->shuffle || settings->order) ? 0
           : preparation->total == 0                                                    ? UNKNOWN_BUCKETS
           : wanted < MOST_BUCKETS                                                      ? (unsigned)wanted
                                                                                        : MOST_BUCKETS;
}

/* Makes the folder of work, or resumes from what an earlier process left there. Results as those of read_state. */
static int begin_work(struct preparation *preparation) {
    const struct prepare_settings *settings = preparation->settings;
    const char *work = preparation->work;
    json_t *state = NULL;
    const int left = read_state(preparation, &state);
    preparation->saved = state || left < 0;
    preparation->blocked = left < 0;
    if (left != 0) {
        return left;
    }
    preparation->reader = corpus_reader_open(settings, preparation->tokenizer, &preparation->order,
                                             preparation->total, json_object_get(state, "reader"));
    const int result = (!state && files_exist(work) && files_remove_folder(work)) || files_make_folder(work) ||
                       token_writer_open(work, &preparation->order, count_buckets(preparation), settings->lengths,
                                         tokenizer_count(preparation->tokenizer), json_object_get(state, "writer"),
                                         &preparation->writer) ||
                       encoder_create(settings, preparation->tokenizer, &preparation->encoder);
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

static void show_reading(struct preparation *preparation) {
    const struct corpus_status status = corpus_reader_status(preparation->reader);
    const double seconds = progress_clock() - preparation->progress.start;
    const double rate =
        ((double)status.stored_bytes / 1e6 - (double)preparation->progress.first) / (seconds + 1e-9);
    char details[80];
    snprintf(details, sizeof details, "%" PRIu64 " %s, %.1f MB/s", status.documents,
             preparation->settings->kind == DOCUMENT_CHUNKS ? "chunks" : "documents", rate);
    const uint64_t total = preparation->total > 0 ? preparation->total : status.stored_bytes;
    progress_show(&preparation->progress, "reading MB", (int64_t)(status.stored_bytes / 1000000),
                  (int64_t)(total / 1000000), details, false);
}

static int write_batch(struct preparation *preparation, const struct text_batch *batch) {
    size_t at = 0;
    for (const struct text_piece *piece = batch->pieces; piece < batch->pieces + batch->count; piece++) {
        const uint32_t *tokens = batch->tokens.tokens ? batch->tokens.tokens + at : NULL;
        if (token_writer_add(preparation->writer, piece->document, piece->part,
                             piece->held_out ? SPLIT_VAL : SPLIT_TRAIN, tokens, piece->token_end - at,
                             piece->prompt_tokens)) {
            return -1;
        }
        at = piece->token_end;
    }
    return 0;
}

/* Writes encoded batches: with `all`, all that were submitted, else those that are ready, and at least one if no
 * batch is vacant. */
static int write_batches(struct preparation *preparation, bool all) {
    struct encoder *encoder = preparation->encoder;
    const struct text_batch *batch;
    int found;
    while ((found = encoder_take(encoder, all || !encoder_vacant(encoder), &batch)) == 1) {
        if (write_batch(preparation, batch)) {
            return -1;
        }
        encoder_release(encoder);
    }
    preparation->blocked = found < 0;
    return found;
}

static bool wants_to_stop(const struct preparation *preparation) {
    struct pollfd waiting = {preparation->settings->stop_descriptor, POLLIN, 0};
    return poll(&waiting, 1, 0) > 0;
}

/* When asked to stop, it writes and saves what was read. */
static int read_all(struct preparation *preparation) {
    int more = 1;
    while (more == 1) {
        more = corpus_reader_fill(preparation->reader, encoder_vacant(preparation->encoder));
        const bool stops = more < 0 && wants_to_stop(preparation);
        if (more < 0 && !stops) {
            preparation->blocked = true;
            return -1;
        }
        encoder_submit(preparation->encoder);
        const bool saves = stops || (more == 1 && progress_clock() - preparation->saved_at >=
                                                      preparation->settings->save_interval);
        if (write_batches(preparation, more != 1 || saves) || (saves && save_state(preparation))) {
            return -1;
        }
        preparation->stopped = stops;
        show_reading(preparation);
    }
    if (preparation->stopped) {
        return error_set("stopped while reading");
    }
    if (document_order_check(&preparation->order, corpus_reader_status(preparation->reader).documents)) {
        preparation->saved = false;
        return -1;
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
        progress_show(&preparation->progress, "sorting", most - left, most, "", false);
    }
    return 0;
}

/* ---- results */

static bool has_val(const struct prepare_settings *settings) {
    return settings->val_fraction > 0 || settings->val_source;
}

/* Of the training tokens, nats per token. */
static double entropy(const uint64_t *counts, uint32_t values, uint64_t total) {
    double sum = 0;
    for (uint32_t i = 0; i < values; i++) {
        if (counts[i] > 0) {
            const double share = (double)counts[i] / (double)total;
            sum -= share * log(share);
        }
    }
    return sum;
}

/* The name of the token that ends documents. */
static json_t *end_of_text(const struct preparation *preparation) {
    size_t bytes;
    const struct tokenizer *tokenizer = preparation->tokenizer;
    const char *name = tokenizer_bytes(tokenizer, tokenizer_end_of_text(tokenizer), &bytes);
    return json_stringn(name, bytes);
}

static int write_meta(const struct preparation *preparation) {
    const struct prepare_settings *settings = preparation->settings;
    const struct corpus_status status = corpus_reader_status(preparation->reader);
    const struct token_counts *counts = token_writer_counts(preparation->writer);
    const uint64_t train = counts->tokens[SPLIT_TRAIN], val = counts->tokens[SPLIT_VAL];
    const uint32_t vocabulary = tokenizer_count(preparation->tokenizer);
    const char *path = settings->tokenizer.path;
    const bool has_file = settings->tokenizer.kind == TOKENIZER_FILE;
    json_t *wide = token_bytes_for(vocabulary) > 2 ? json_integer(token_bytes_for(vocabulary)) : NULL;
    const bool chunks = settings->kind == DOCUMENT_CHUNKS;
    const char *order = chunks ? "kept" : settings->order ? "listed" : settings->shuffle ? "shuffled" : "kept";
    json_t *meta = json_pack(
        "{s:I, s:o*, s:o*, s:s, s:I, s:I, s:f, s:f, s:f, s:I, s:s, s:I, s:I, s:s, s:s, s:o*, s:O, s:s*, "
        "s:o*, s:s*, s:s*, s:o*, s:o*, s:s*}",
        "vocab_size", (json_int_t)vocabulary, "token_bytes", wide, "shard_tokens",
        settings->shard_tokens ? json_integer(settings->shard_tokens) : NULL, "tokenizer",
        tokenizer_name(preparation->tokenizer), "train_tokens", (json_int_t)train, "val_tokens", (json_int_t)val,
        "held_out_fraction", (double)val / (double)(train + val), "val_fraction", settings->val_fraction,
        "unigram_entropy", entropy(counts->train_values, vocabulary, train), "seed", (json_int_t)settings->seed,
        "documents", document_kind_name(settings->kind), "train_documents",
        (json_int_t)counts->documents[SPLIT_TRAIN], "val_documents", (json_int_t)counts->documents[SPLIT_VAL],
        "order", order, "strip_markup", "none", /* data/gcide/describe.py replaces it */
        "chunk_bytes", chunks ? json_integer((json_int_t)status.chunk_bytes) : NULL, "sources", status.sources,
        has_file ? "tokenizer_sha256" : "ranks_sha256", path ? preparation->vocabulary_digest : NULL, "end_of_text",
        has_file ? end_of_text(preparation) : NULL, "special_tokens",
        settings->tokenizer.parse_special ? "parse" : NULL, "order_sha256",
        settings->order ? preparation->order_digest : NULL, "val_source",
        settings->val_source ? json_file_name(settings->sources[settings->source_count - 1]) : NULL,
        "document_lengths", settings->lengths ? json_true() : NULL, "prompt_field", settings->prompt_field);
    return json_file_write(path_of("%s/meta.json", preparation->work).text, meta,
                           JSON_INDENT(2) | JSON_REAL_PRECISION(10))
               ? error_prefix("cannot write %s/meta.json", settings->folder)
               : 0;
}

/* The tokenizer.json belongs to the results. */
static int copy_tokenizer(const struct preparation *preparation) {
    const struct tokenizer_source *source = &preparation->settings->tokenizer;
    const struct path copy = path_of("%s/" TOKENIZER_FILE_NAME, preparation->work);
    char digest[CHECKSUM_SIZE];
    if (source->kind != TOKENIZER_FILE) {
        return 0;
    }
    if (tokenizer_copy(source->path, copy.text) || checksum_file(copy.text, digest)) {
        return -1;
    }
    return strcmp(digest, preparation->vocabulary_digest) == 0
               ? 0
               : error_set("%s was changed while the text was encoded", source->path);
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

static int count_shards(const struct preparation *preparation, int split, uint64_t *count) {
    const uint64_t tokens = token_writer_counts(preparation->writer)->tokens[split];
    return shard_count(split, tokens, (uint64_t)preparation->settings->shard_tokens, count);
}

/* Divides train.bin and val.bin, which stay in the folder of work, into shards, whose numbers are in counts. Shards
 * of an earlier process go first, since they may be of another size and take the space of the new ones. */
static int write_shards(struct preparation *preparation, uint64_t counts[TOKEN_SPLITS]) {
    const unsigned token_bytes = token_bytes_for(tokenizer_count(preparation->tokenizer));
    const uint64_t each = (uint64_t)preparation->settings->shard_tokens;
    if (save_state(preparation) || shard_remove_all(preparation->work)) {
        return -1;
    }
    if (count_shards(preparation, SPLIT_TRAIN, &counts[SPLIT_TRAIN]) ||
        count_shards(preparation, SPLIT_VAL, &counts[SPLIT_VAL])) {
        preparation->blocked = true;
        return -1;
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
        progress_show(&preparation->progress, "writing shards", (int64_t)i + 1, (int64_t)total, "", false);
    }
    return files_sync_all(preparation->work); /* before the state says that only the move is left */
}

/* Writes what is missing beside train.bin and val.bin and moves the results into place. From then on, the next
 * process only continues the move. */
static int finish(struct preparation *preparation) {
    const int64_t shard_tokens = preparation->settings->shard_tokens;
    uint64_t shards[TOKEN_SPLITS] = {0};
    if (check_results(preparation)) {
        preparation->saved = false; /* resuming would give the same */
        return -1;
    }
    if ((shard_tokens > 0 && write_shards(preparation, shards)) || copy_tokenizer(preparation) ||
        write_meta(preparation)) {
        return -1;
    }
    json_t *state =
        json_pack("{s:O, s:b, s:I, s:I, s:I}", "task", preparation->task, "moving", has_val(preparation->settings),
                  "shard_tokens", (json_int_t)shard_tokens, "train_shards", (json_int_t)shards[SPLIT_TRAIN],
                  "val_shards", (json_int_t)shards[SPLIT_VAL]);
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
    if (begin_task(preparation) || begin_folder(preparation)) {
        return -1;
    }
    const int left = begin_work(preparation);
    if (left != 0) {
        return left == 1 ? 0 : -1;
    }
    preparation->saved_at = progress_clock();
    begin_progress(preparation, corpus_reader_status(preparation->reader).stored_bytes / 1000000);
    return read_all(preparation) || sort_all(preparation) || finish(preparation) ? -1 : 0;
}

/* Removes everything but work that can be resumed. */
static void clean_up(struct preparation *preparation, bool failed, struct prepare_report *report) {
    progress_end(&preparation->progress);
    encoder_free(preparation->encoder);
    corpus_reader_close(preparation->reader);
    token_writer_close(preparation->writer);
    tokenizer_close(preparation->tokenizer);
    document_order_end(&preparation->order);
    json_decref(preparation->task);
    report->kept = failed && preparation->saved;
    report->resumes = report->kept && !preparation->blocked;
    if (failed && !report->kept && preparation->lock >= 0) {
        files_remove_folder(preparation->work);
    }
    if (preparation->lock >= 0) {
        close(preparation->lock);
    }
    if (failed && !report->kept && preparation->made_folder) {
        rmdir(preparation->settings->folder);
    }
    free(preparation->work);
}

enum program_status prepare_run(const struct prepare_settings *settings, struct prepare_report *report) {
    struct preparation preparation = {.settings = settings, .lock = -1};
    *report = (struct prepare_report){0};
    const int result = prepare(&preparation) || fill_report(&preparation, report) ? -1 : 0;
    char *kept = result ? error_keep() : NULL;
    clean_up(&preparation, result != 0, report);
    if (result) {
        error_restore(kept);
    }
    return result == 0 ? PROGRAM_DONE : preparation.stopped ? PROGRAM_INTERRUPTED : PROGRAM_FAILED;
}
