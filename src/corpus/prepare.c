#include "src/corpus/prepare.h"
#include "runtime/files/checksum.h"
#include "runtime/files/files.h"
#include "runtime/files/input.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/progress.h"
#include "src/corpus/prepare_move.h"
#include "src/corpus/token_spool.h"
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_BUCKETS = 256,   /* files open at once */
    UNKNOWN_BUCKETS = 64, /* where it is not known how much there will be */
    MOST_STATE_BYTES = 1 << 28,
};

struct preparation {
    const struct prepare_settings *settings;
    struct tokenizer *tokenizer;
    struct document_order order;
    char ranks_digest[CHECKSUM_SIZE], order_digest[CHECKSUM_SIZE]; /* "" without */
    json_t *task; /* settings and sources: what saved work must have been for */
    json_t *done; /* [source_count] of sources that were read to their end: bytes, sha256 */
    char *work;   /* the folder of work in progress */
    int lock;     /* on the folder of results */
    bool made_folder;
    bool can_resume; /* sources can be read again */
    bool saved;      /* there is a state to go on from */
    bool stopped;
    uint64_t total; /* stored bytes of all sources, 0: not known */
    struct corpus_reader *reader;
    struct encoder *encoder;
    struct token_spool *spool;
    struct progress progress;
    double saved_at;
};

/* ---- what is to be done */

/* What is read must not be what the results replace. */
static int check_is_no_result(const struct preparation *preparation, const char *input) {
    static const char *const results[] = {"train.bin", "val.bin", "meta.json", NULL};
    return input ? files_refuse_members(preparation->settings->folder, results, input) : 0;
}

/* Before anything is read: that files are missing shows at once, and how much there will be. */
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

static int describe_task(struct preparation *preparation) {
    const struct prepare_settings *settings = preparation->settings;
    json_t *sources = json_array();
    if (check_is_no_result(preparation, settings->order) || check_is_no_result(preparation, settings->ranks) ||
        examine_sources(preparation, sources)) {
        json_decref(sources);
        return -1;
    }
    preparation->task = json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:f, s:I, s:b, s:s, s:o}", "version", HC_VERSION,
                                  "tokenizer", tokenizer_name(preparation->tokenizer), "ranks_sha256",
                                  preparation->ranks_digest, "documents", document_kind_name(settings->kind),
                                  "field", settings->kind == DOCUMENT_JSONL ? settings->field : "",
                                  "replace_invalid", settings->replace_invalid, "val_fraction",
                                  settings->val_fraction, "seed", (json_int_t)settings->seed, "shuffle",
                                  settings->shuffle, "order_sha256", preparation->order_digest, "sources", sources);
    preparation->done = json_array();
    return preparation->task && preparation->done ? 0 : error_set("out of memory");
}

static int open_tokenizer(struct preparation *preparation) {
    const char *ranks = preparation->settings->ranks;
    return tokenizer_open(ranks, &preparation->tokenizer) ||
                   (ranks && checksum_file(ranks, preparation->ranks_digest))
               ? -1
               : 0;
}

/* ---- work in progress */

static char *state_path(const struct preparation *preparation) {
    return files_path("%s/state.json", preparation->work);
}

/* What was saved last; NULL: nothing, or it cannot be read, which is not said. */
static json_t *read_state(const struct preparation *preparation) {
    char *path = state_path(preparation);
    json_t *state = NULL;
    if (path && files_exist(path) && json_file_read(path, MOST_STATE_BYTES, &state)) {
        error_clear();
    }
    free(path);
    return state;
}

static bool is_same_task(const struct preparation *preparation, const json_t *state) {
    return preparation->can_resume && json_equal(json_object_get(state, "task"), preparation->task);
}

/* What an earlier process left: *state is the caller's, NULL where there is nothing to go on from. Another task's
 * work is not thrown away unasked. */
static int take_up(const struct preparation *preparation, json_t **state) {
    *state = read_state(preparation);
    if (*state && !preparation->settings->resume) {
        json_decref(*state);
        *state = NULL;
    }
    if (!*state || is_same_task(preparation, *state)) {
        return 0;
    }
    json_decref(*state);
    *state = NULL;
    return error_set("%s has unfinished work of other files or settings: give --no-resume to discard it, or choose "
                     "another --out",
                     preparation->work);
}

static int open_spool(struct preparation *preparation, const json_t *saved) {
    const struct prepare_settings *settings = preparation->settings;
    const uint64_t wanted = preparation->total / settings->bucket_bytes + 1;
    const uint64_t buckets = preparation->total == 0 ? UNKNOWN_BUCKETS
                             : wanted < MOST_BUCKETS ? wanted
                                                     : MOST_BUCKETS;
    const bool sorts = settings->kind != DOCUMENT_CHUNKS && (settings->shuffle || settings->order);
    return token_spool_open(&(struct token_spool_settings){.folder = preparation->work,
                                                           .shown = settings->folder,
                                                           .order = &preparation->order,
                                                           .buckets = sorts ? (unsigned)buckets : 0},
                            saved, &preparation->spool);
}

static int open_reader(struct preparation *preparation, const json_t *state) {
    const struct prepare_settings *settings = preparation->settings;
    const struct corpus_place place = {.source = json_file_number(state, "source"),
                                       .pieces = json_file_number(state, "pieces"),
                                       .documents = json_file_number(state, "documents")};
    const struct corpus_settings corpus = {
        .sources = settings->sources,
        .source_count = settings->source_count,
        .kind = settings->kind,
        .bytes = settings->ranks == NULL,
        .chunk_bytes = preparation->total > 0 ? corpus_chunk_bytes(preparation->total, settings->val_fraction) : 0,
        .val_fraction = settings->val_fraction,
        .stop_descriptor = settings->stop_descriptor,
    };
    return corpus_reader_open(&corpus, place, &preparation->reader);
}

static int open_encoder(struct preparation *preparation) {
    const struct prepare_settings *settings = preparation->settings;
    const bool plain = settings->kind == DOCUMENT_CHUNKS && settings->ranks == NULL;
    return encoder_create(&(struct encoder_settings){.tokenizer = preparation->tokenizer,
                                                     .threads = settings->threads,
                                                     .field =
                                                         settings->kind == DOCUMENT_JSONL ? settings->field : NULL,
                                                     .replace_invalid = settings->replace_invalid,
                                                     .marks_end = !plain},
                          &preparation->encoder);
}

/* Makes the folder of results, for this process alone. */
static int begin_folder(struct preparation *preparation) {
    const char *folder = preparation->settings->folder;
    preparation->made_folder = !files_exist(folder);
    if (files_make_folder(folder)) {
        preparation->made_folder = false;
        return -1;
    }
    if (files_lock_folder(folder, &preparation->lock)) {
        return -1;
    }
    files_stage_clean(folder);
    preparation->work = files_path("%s/.hc_prepare", folder);
    return preparation->work ? 0 : -1;
}

/* Makes the work folder, or goes on from what an earlier process left there. */
static int begin_work(struct preparation *preparation) {
    json_t *state = NULL;
    if (take_up(preparation, &state)) {
        preparation->saved = true; /* what is there stays there */
        return -1;
    }
    if ((!state && files_exist(preparation->work) && files_remove_folder(preparation->work)) ||
        files_make_folder(preparation->work)) {
        return -1;
    }
    preparation->saved = state != NULL;
    json_array_extend(preparation->done, json_object_get(state, "done"));
    const int result = open_spool(preparation, json_object_get(state, "spool")) || open_reader(preparation, state);
    json_decref(state);
    return result || open_encoder(preparation) ? -1 : 0;
}

/* Sources that were read to their end since the last time. */
static void note_sources(struct preparation *preparation) {
    const struct corpus_source *sources = corpus_reader_sources(preparation->reader);
    for (size_t i = json_array_size(preparation->done);
         i < preparation->settings->source_count && *sources[i].sha256; i++) {
        json_array_append_new(preparation->done, json_pack("{s:I, s:s}", "bytes", (json_int_t)sources[i].bytes,
                                                           "sha256", sources[i].sha256));
    }
}

/* All batches must have been written. */
static int save_state(struct preparation *preparation) {
    json_t *spool;
    preparation->saved_at = progress_clock();
    if (!preparation->can_resume) {
        return 0;
    }
    if (token_spool_save(preparation->spool, &spool)) {
        return -1;
    }
    note_sources(preparation);
    const struct corpus_place place = corpus_reader_place(preparation->reader);
    json_t *state = json_pack("{s:O, s:O, s:I, s:I, s:I, s:o}", "task", preparation->task, "done",
                              preparation->done, "source", (json_int_t)place.source, "pieces",
                              (json_int_t)place.pieces, "documents", (json_int_t)place.documents, "spool", spool);
    char *path = state_path(preparation);
    const int result = path ? json_file_write(path, state, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : -1;
    preparation->saved = preparation->saved || result == 0;
    json_decref(state);
    free(path);
    return result;
}

/* ---- reading and encoding */

/* What is done in a moment shows nothing. */
static void begin_progress(struct preparation *preparation, int64_t first) {
    progress_end(&preparation->progress);
    progress_start(&preparation->progress, first);
    preparation->progress.shown = preparation->progress.start;
}

static uint64_t stored_bytes(const struct preparation *preparation) {
    const struct corpus_source *sources = corpus_reader_sources(preparation->reader);
    uint64_t bytes = 0;
    for (size_t i = 0; i < preparation->settings->source_count; i++) {
        const json_t *done = json_array_get(preparation->done, i);
        bytes += done ? json_file_number(done, "bytes") : sources[i].bytes;
    }
    return bytes;
}

static void show_reading(struct preparation *preparation) {
    const uint64_t bytes = stored_bytes(preparation);
    const double seconds = progress_clock() - preparation->progress.start;
    const double rate = ((double)bytes / 1e6 - (double)preparation->progress.first) / (seconds + 1e-9);
    char details[80];
    snprintf(details, sizeof details, "%" PRIu64 " %s, %.1f MB/s", corpus_reader_documents(preparation->reader),
             preparation->settings->kind == DOCUMENT_CHUNKS ? "chunks" : "documents", rate);
    const uint64_t total = preparation->total > 0 ? preparation->total : bytes;
    progress_show(&preparation->progress, "reading MB", (int64_t)(bytes / 1000000), (int64_t)(total / 1000000),
                  details, false);
}

static int write_batch(struct preparation *preparation, const struct text_batch *batch) {
    size_t at = 0;
    for (size_t i = 0; i < batch->count; i++) {
        const struct text_piece *piece = &batch->pieces[i];
        if (token_spool_add(preparation->spool, piece->document, piece->part,
                            batch->tokens.tokens ? batch->tokens.tokens + at : NULL, piece->token_end - at)) {
            return -1;
        }
        at = piece->token_end;
    }
    return 0;
}

/* Writes batches that are encoded: all of them with `wait`, else those that are ready, and one at least if none is
 * vacant. */
static int drain(struct preparation *preparation, bool wait) {
    struct text_batch *batch;
    bool failed;
    while ((batch = encoder_take(preparation->encoder, wait || !encoder_vacant(preparation->encoder), &failed))) {
        if (failed || write_batch(preparation, batch)) {
            return -1;
        }
        encoder_release(preparation->encoder);
    }
    return 0;
}

/* After a wish to stop: what has been read is written and noted. */
static int stop_reading(struct preparation *preparation) {
    char *kept = error_keep();
    encoder_submit(preparation->encoder);
    if (drain(preparation, true) || save_state(preparation)) {
        free(kept);
        return -1;
    }
    preparation->stopped = true;
    return error_restore(kept);
}

static int read_all(struct preparation *preparation) {
    int more = 1;
    while (more == 1) {
        more = corpus_reader_fill(preparation->reader, encoder_vacant(preparation->encoder));
        if (more < 0) {
            return corpus_reader_stopped(preparation->reader) ? stop_reading(preparation) : -1;
        }
        encoder_submit(preparation->encoder);
        const bool saves =
            more == 1 && progress_clock() - preparation->saved_at >= preparation->settings->save_interval;
        if (drain(preparation, more == 0 || saves) || (saves && save_state(preparation))) {
            return -1;
        }
        show_reading(preparation);
    }
    if (document_order_check(&preparation->order, corpus_reader_documents(preparation->reader))) {
        preparation->saved = false;
        return -1;
    }
    return 0;
}

/* ---- sorting */

static bool wants_to_stop(const struct preparation *preparation) {
    struct pollfd waiting = {preparation->settings->stop_descriptor, POLLIN, 0};
    return poll(&waiting, 1, 0) > 0;
}

static int sort_all(struct preparation *preparation) {
    unsigned left = 1, most = 0;
    begin_progress(preparation, 0);
    while (left > 0) {
        if (wants_to_stop(preparation)) {
            preparation->stopped = true;
            return error_set("stopped while sorting");
        }
        if (token_spool_merge(preparation->spool, &left) || (left > 0 && save_state(preparation))) {
            return -1;
        }
        if (left > 0) {
            token_spool_remove_merged(preparation->spool);
        }
        most = most > 0 ? most : left + 1;
        progress_show(&preparation->progress, "sorting", most - left, most, "", false);
    }
    return 0;
}

/* ---- results */

static double entropy(const uint64_t counts[TOKEN_VALUES], uint64_t total) {
    double sum = 0;
    for (int i = 0; i < TOKEN_VALUES; i++) {
        if (counts[i] > 0) {
            const double share = (double)counts[i] / (double)total;
            sum -= share * log(share);
        }
    }
    return sum;
}

static json_t *describe_sources(const struct preparation *preparation) {
    const json_t *given = json_object_get(preparation->task, "sources");
    json_t *list = json_array();
    for (size_t i = 0; i < preparation->settings->source_count; i++) {
        json_t *source = json_pack("{s:O}", "path", json_object_get(json_array_get(given, i), "path"));
        json_object_update(source, json_array_get(preparation->done, i));
        json_array_append_new(list, source);
    }
    return list;
}

static int write_meta(const struct preparation *preparation, const struct prepare_report *report) {
    const struct prepare_settings *settings = preparation->settings;
    const struct token_spool_counts *counts = token_spool_counts(preparation->spool);
    const uint64_t tokens = report->train_tokens + report->val_tokens;
    json_t *meta =
        json_pack("{s:i, s:s, s:I, s:I, s:f, s:f, s:f, s:I, s:s, s:I, s:I, s:s, s:s}", "vocab_size",
                  (int)tokenizer_count(preparation->tokenizer), "tokenizer", tokenizer_name(preparation->tokenizer),
                  "train_tokens", (json_int_t)report->train_tokens, "val_tokens", (json_int_t)report->val_tokens,
                  "held_out_fraction", (double)report->val_tokens / (double)tokens, "val_fraction",
                  settings->val_fraction, "unigram_entropy", report->unigram_entropy, "seed",
                  (json_int_t)settings->seed, "documents", document_kind_name(settings->kind), "train_documents",
                  (json_int_t)counts->train_documents, "val_documents", (json_int_t)counts->val_documents, "order",
                  settings->kind == DOCUMENT_CHUNKS ? "kept"
                  : settings->order                 ? "listed"
                  : settings->shuffle               ? "shuffled"
                                                    : "kept",
                  "strip_markup", "none");
    if (settings->kind == DOCUMENT_CHUNKS) {
        json_object_set_new(meta, "chunk_bytes",
                            json_integer((json_int_t)corpus_reader_chunk_bytes(preparation->reader)));
    }
    json_object_set_new(meta, "sources", describe_sources(preparation));
    if (settings->ranks) {
        json_object_set_new(meta, "ranks_sha256", json_string(preparation->ranks_digest));
    }
    if (settings->order) {
        json_object_set_new(meta, "order_sha256", json_string(preparation->order_digest));
    }
    char *path = files_path("%s/meta.json", preparation->work);
    const int result = path ? json_file_write(path, meta, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) : -1;
    json_decref(meta);
    free(path);
    return result ? error_prefix("cannot write %s/meta.json", settings->folder) : 0;
}

static int check_result(const struct preparation *preparation, const struct prepare_report *report) {
    const struct prepare_settings *settings = preparation->settings;
    const double fraction = settings->val_fraction;
    if (report->train_tokens + report->val_tokens == 0) {
        return error_set("there is no text in the input%s", report->source_bytes == 0 ? ": it is empty" : "");
    }
    if (report->train_tokens > 0 && (fraction == 0 || report->val_tokens > 0)) {
        return 0;
    }
    return settings->kind == DOCUMENT_CHUNKS
               ? error_set(
                     "the input, %" PRIu64
                     " tokens of text, is too small to hold out %g %% of it; give more text or --val-fraction 0",
                     report->train_tokens + report->val_tokens, 100 * fraction)
               : error_set("%" PRIu64 " documents are too few to hold out %g %% of them; give more, another "
                           "--val-fraction (0: none), or take the text as one with --documents chunks",
                           report->documents, 100 * fraction);
}

static void fill_report(const struct preparation *preparation, struct prepare_report *report) {
    const struct token_spool_counts *counts = token_spool_counts(preparation->spool);
    report->source_bytes = stored_bytes(preparation);
    report->documents = corpus_reader_documents(preparation->reader);
    report->train_tokens = counts->train_tokens;
    report->val_tokens = counts->val_tokens;
    report->unigram_entropy = entropy(counts->train_values, counts->train_tokens);
}

/* What meta.json says of results that were complete before. */
static int report_meta(const struct preparation *preparation, struct prepare_report *report) {
    char *path = files_path("%s/meta.json", preparation->settings->folder);
    json_t *meta = NULL;
    const json_t *source;
    size_t i;
    const int result = path ? json_file_read(path, MOST_STATE_BYTES, &meta) : -1;
    report->train_tokens = json_file_number(meta, "train_tokens");
    report->val_tokens = json_file_number(meta, "val_tokens");
    report->documents = json_file_number(meta, "train_documents") + json_file_number(meta, "val_documents");
    report->unigram_entropy = json_number_value(json_object_get(meta, "unigram_entropy"));
    json_array_foreach(json_object_get(meta, "sources"), i, source) {
        report->source_bytes += json_file_number(source, "bytes");
    }
    json_decref(meta);
    free(path);
    return result;
}

/* 1: an earlier process had all but moved the results of this task, and they are in place now; 0: there is work to
 * do. */
static int finish_earlier(struct preparation *preparation, struct prepare_report *report) {
    const struct prepare_settings *settings = preparation->settings;
    json_t *task = NULL;
    int result = prepare_finish_move(settings->folder, preparation->work, &task);
    if (result < 0) {
        preparation->saved = settings->resume; /* what is there stays there */
        return settings->resume ? -1 : 0;
    }
    const bool same =
        result == 1 && settings->resume && preparation->can_resume && json_equal(task, preparation->task);
    json_decref(task);
    return !same ? 0 : report_meta(preparation, report) ? -1 : 1;
}

static int prepare(struct preparation *preparation, struct prepare_report *report) {
    const struct prepare_settings *settings = preparation->settings;
    if (document_order_begin(&preparation->order, settings->seed, settings->val_fraction, settings->order) ||
        (settings->order && checksum_file(settings->order, preparation->order_digest)) ||
        open_tokenizer(preparation) || describe_task(preparation) || begin_folder(preparation)) {
        return -1;
    }
    const int earlier = finish_earlier(preparation, report);
    if (earlier != 0 || begin_work(preparation)) {
        return earlier == 1 ? 0 : -1;
    }
    preparation->saved_at = progress_clock();
    begin_progress(preparation, (int64_t)(stored_bytes(preparation) / 1000000));
    if (read_all(preparation) || sort_all(preparation)) {
        return -1;
    }
    note_sources(preparation);
    fill_report(preparation, report);
    if (check_result(preparation, report)) {
        preparation->saved = false; /* the same would come out again */
        return -1;
    }
    if (write_meta(preparation, report)) {
        return -1;
    }
    preparation->saved = true; /* whatever happens now, the next process goes on with it */
    return prepare_move(settings->folder, preparation->work, settings->val_fraction > 0, preparation->task);
}

/* Work that can go on stays, all else goes. */
static void clean_up(struct preparation *preparation, bool failed, struct prepare_report *report) {
    progress_end(&preparation->progress);
    encoder_free(preparation->encoder);
    corpus_reader_close(preparation->reader);
    token_spool_close(preparation->spool);
    tokenizer_close(preparation->tokenizer);
    document_order_end(&preparation->order);
    json_decref(preparation->task);
    json_decref(preparation->done);
    report->kept = failed && preparation->saved && preparation->work;
    if (failed && !report->kept && preparation->work) {
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

enum prepare_result prepare_run(const struct prepare_settings *settings, struct prepare_report *report) {
    struct preparation preparation = {.settings = settings, .lock = -1};
    *report = (struct prepare_report){0};
    const int result = prepare(&preparation, report);
    char *kept = result ? error_keep() : NULL;
    clean_up(&preparation, result != 0, report);
    if (result) {
        error_restore(kept);
    }
    return result == 0 ? PREPARE_DONE : preparation.stopped ? PREPARE_STOPPED : PREPARE_FAILED;
}
