#include "src/corpus/corpus_reader.h"
#include "runtime/files/input.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/utf8.h"
#include "src/corpus/document_order.h"
#include "src/corpus/text_split.h"
#include "src/text/json_lines.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK_BYTES = 1 << 20,      /* read at once, and about the size of a batch */
    BATCH_PIECES = 1 << 12,     /* at most */
    CHUNK_BYTES = 1 << 16,      /* of running text */
    LEAST_HELD_OUT_CHUNKS = 4,  /* wanted, by smaller chunks if need be */
    MOST_PLANNED_CHUNKS = 32,   /* that are held out */
    MOST_UNCUT_BYTES = 1 << 22, /* of a file without any white space, before it is cut all the same */
};

struct corpus_reader {
    const struct prepare_settings *settings;
    uint64_t total;      /* bytes of all sources, 0: not known */
    json_t *done;        /* sources that were read to their end: path, bytes, sha256 */
    uint64_t done_bytes; /* of them, as stored */
    size_t source;       /* the current one */
    uint64_t before;     /* documents of the sources before it */
    uint64_t pieces;     /* given out of it */
    uint64_t skip;       /* more pieces of it that an earlier reader has given */
    uint64_t documents;
    uint64_t held_out_from; /* as in struct corpus_status */
    uint32_t part;          /* of the current document, the next one */
    uint64_t line;          /* of the current source, where the next piece begins */
    size_t chunk_bytes;
    struct text_split split;        /* of running text, if it is planned */
    struct text_split split_before; /* the same where the current source begins */
    struct input *input;            /* the current source, NULL between two */
    bool stopped, at_end;           /* of the current source */
    struct json_lines lines;
    struct text_buffer text; /* read and not yet given */
};

/* ---- opening and closing */

/* Plans what is held out of so many bytes of running text, and the size of chunks. Plans nothing if that is a few bytes, or so
 * much that a chunk more or less does not matter. */
static void open_split(struct corpus_reader *reader, uint64_t total) {
    const double fraction = reader->settings->val_fraction;
    const double wanted = (double)total * fraction, chunks = ceil(wanted / CHUNK_BYTES);
    if (wanted < LEAST_HELD_OUT_CHUNKS || chunks > MOST_PLANNED_CHUNKS) {
        return;
    }
    const unsigned count = chunks > LEAST_HELD_OUT_CHUNKS ? (unsigned)chunks : LEAST_HELD_OUT_CHUNKS;
    reader->chunk_bytes = (size_t)(wanted / count) + 1;
    reader->split = (struct text_split){.total = total,
                                        .fraction = fraction,
                                        .count = count,
                                        .offset = document_order_offset(reader->settings->seed)};
}

int corpus_reader_open(const struct prepare_settings *settings, uint64_t total, const json_t *saved,
                       struct corpus_reader **opened) {
    struct corpus_reader *reader = *opened = calloc(1, sizeof *reader);
    const json_t *source;
    if (!reader || !(reader->done = json_array())) {
        return error_set("out of memory");
    }
    reader->settings = settings;
    reader->total = total;
    reader->before = reader->documents = json_file_number(saved, "documents");
    const json_t *held_out_from = json_object_get(saved, "held_out_from");
    reader->held_out_from = held_out_from ? (uint64_t)json_integer_value(held_out_from) : UINT64_MAX;
    reader->skip = json_file_number(saved, "pieces");
    if (saved) {
        open_split(reader, json_file_number(saved, "split_total"));
        reader->split.position = json_file_number(saved, "split_position");
        reader->split.held_out = json_file_number(saved, "split_held_out");
        reader->split_before = reader->split;
    }
    json_array_extend(reader->done, json_object_get(saved, "done"));
    json_array_foreach(reader->done, reader->source, source) {
        reader->done_bytes += json_file_number(source, "bytes");
    }
    return 0;
}

void corpus_reader_close(struct corpus_reader *reader) {
    if (!reader) {
        return;
    }
    input_close(reader->input);
    json_lines_free(&reader->lines);
    text_free(&reader->text);
    json_decref(reader->done);
    free(reader);
}

static const char *source_path(const struct corpus_reader *reader) {
    return reader->settings->sources[reader->source];
}

static int open_source(struct corpus_reader *reader) {
    reader->at_end = false;
    reader->part = 0;
    reader->line = 1;
    if (input_open(source_path(reader), reader->settings->stop_descriptor, &reader->input)) {
        return -1;
    }
    if (reader->settings->val_source && reader->source + 1 == reader->settings->source_count) {
        reader->held_out_from = reader->before;
    }
    reader->lines = (struct json_lines){.input = reader->input};
    return 0;
}

/* At the end of a source. */
static int finish_source(struct corpus_reader *reader) {
    char digest[CHECKSUM_SIZE];
    if (reader->skip > 0) {
        return error_set("%s has fewer documents than before: it was changed; begin anew with --no-resume",
                         input_label(reader->input));
    }
    if (input_digest(reader->input, digest)) {
        return -1;
    }
    const uint64_t bytes = input_stored_bytes(reader->input);
    json_array_append_new(reader->done, json_pack("{s:o, s:I, s:s}", "path", json_file_name(source_path(reader)),
                                                  "bytes", (json_int_t)bytes, "sha256", digest));
    input_close(reader->input);
    json_lines_free(&reader->lines);
    reader->input = NULL;
    reader->done_bytes += bytes;
    reader->source++;
    reader->before = reader->documents;
    reader->split_before = reader->split;
    reader->pieces = 0;
    return 0;
}

/* ---- pieces */

/* The next piece, to the batch or, if an earlier reader gave it, nowhere. */
static void give(struct corpus_reader *reader, struct text_batch *batch, const char *text, size_t bytes,
                 uint64_t line, bool ends, bool source_ends) {
    uint64_t left;
    const bool held_out = reader->split.total > 0 && text_split_next(&reader->split, &left);
    const struct text_piece piece = {.document = reader->documents,
                                     .part = reader->part,
                                     .ends = source_ends,
                                     .held_out = held_out,
                                     .source = input_name(source_path(reader)),
                                     .line = line};
    reader->documents += ends;
    reader->part = ends ? 0 : reader->part + 1;
    reader->pieces++;
    reader->split.position += bytes;
    reader->split.held_out += held_out ? bytes : 0;
    if (reader->skip > 0) {
        reader->skip--;
        return;
    }
    text_batch_add(batch, &piece, text, bytes);
}

static uint64_t count_lines(const char *text, size_t bytes) {
    uint64_t lines = 0;
    for (const char *at = text, *end = text + bytes; at && (at = memchr(at, '\n', (size_t)(end - at))); at++) {
        lines++;
    }
    return lines;
}

static bool is_full(const struct text_batch *batch) {
    return batch->text.size >= BLOCK_BYTES || batch->count >= BATCH_PIECES;
}

/* ---- text */

/* Where tokens are bytes, text can be cut anywhere. */
static bool is_any_cut(const struct corpus_reader *reader) {
    return reader->settings->vocabulary == NULL;
}

/* Where a chunk of bytes ends, from `least` to `most`: at a blank line, else at a line's end. */
static size_t end_of_bytes(const char *text, size_t least, size_t most) {
    const char *blank_line = memmem(text + least - 1, most - least, "\n\n", 2);
    if (blank_line) {
        return (size_t)(blank_line - text) + 2;
    }
    const char *line_end = memchr(text + least - 1, '\n', most - least);
    return line_end ? (size_t)(line_end - text) + 1 : most;
}

/* Between two characters, or after some bytes of one if there is no more. */
static size_t end_of_characters(const char *text, size_t bytes) {
    const size_t complete = utf8_complete(text, bytes);
    return complete > 0 ? complete : bytes;
}

/* The same for tokens that must not be torn: before the white space of a blank line, of a line's end, of anything;
 * failing all, between two characters. */
static size_t end_of_words(const char *text, size_t least, size_t most) {
    size_t line_end = 0;
    for (size_t at = least > 0 ? least : 1; at + 1 < most; at++) {
        const char *found = memchr(text + at, '\n', most - 1 - at);
        if (!found) {
            break;
        }
        at = (size_t)(found - text);
        if (tokenizer_is_cut(text, at)) {
            if (text[at + 1] == '\n') {
                return at;
            }
            line_end = line_end ? line_end : at;
        }
    }
    const size_t cut = line_end ? line_end : tokenizer_cut(text, most);
    return cut > 0 ? cut : end_of_characters(text, most);
}

/* The bytes of the next chunk of running text; 0: more text is needed to tell. */
static size_t next_chunk(const struct corpus_reader *reader, const char *text, size_t bytes) {
    const bool planned = reader->split.total > 0;
    uint64_t wanted = reader->chunk_bytes;
    if (planned) {
        text_split_next(&reader->split, &wanted);
    }
    const size_t least = wanted < CHUNK_BYTES ? (size_t)wanted : CHUNK_BYTES;
    size_t most = least + reader->chunk_bytes;
    if (bytes < most || (bytes == most && !reader->at_end)) {
        if (!reader->at_end || !planned || bytes <= least) {
            return reader->at_end ? bytes : 0;
        }
        most = bytes;
    }
    return is_any_cut(reader) ? end_of_bytes(text, least, most) : end_of_words(text, least, most);
}

/* The bytes of the next part of a file that is one document; 0 as above. */
static size_t next_part(const struct corpus_reader *reader, const char *text, size_t bytes) {
    if (bytes <= BLOCK_BYTES) {
        return reader->at_end ? bytes : 0;
    }
    size_t cut = is_any_cut(reader) ? BLOCK_BYTES : tokenizer_cut(text, BLOCK_BYTES);
    if (cut == 0) { /* words longer than a block */
        cut = tokenizer_cut(text, bytes);
    }
    const bool waits = cut == 0 && !reader->at_end && bytes < MOST_UNCUT_BYTES;
    return cut > 0 || waits ? cut : end_of_characters(text, bytes);
}

/* Whether none of the sources is compressed. The first one is open, and its first bytes have been read; of the others these are
 * read here. A source that cannot be read fails later, when its turn comes. */
static bool all_are_plain(const struct corpus_reader *reader) {
    const struct prepare_settings *settings = reader->settings;
    bool plain = input_is_plain(reader->input);
    for (size_t i = 1; plain && i < settings->source_count; i++) {
        struct input *input = NULL;
        char first;
        size_t got;
        plain = input_open(settings->sources[i], settings->stop_descriptor, &input) == 0 &&
                input_read(input, &first, 1, &got) == 0 && input_is_plain(input);
        input_close(input);
    }
    return plain;
}

/* Chunks are sized when the first text has come, by what is known of how much there will be: so that a few of them are held out. Of
 * files that are not compressed, and of what is read already, it is known exactly. */
static void choose_chunks(struct corpus_reader *reader) {
    const bool is_all = reader->settings->source_count == 1 && reader->at_end;
    const bool begins = reader->documents == 0 && reader->skip == 0; /* else an earlier reader made no plan */
    if (begins && (is_all || (reader->total > 0 && all_are_plain(reader)))) {
        open_split(reader, is_all ? reader->text.size : reader->total);
        reader->split_before = reader->split;
    }
    if (reader->split.total == 0) {
        const double wanted = (double)reader->total * reader->settings->val_fraction / LEAST_HELD_OUT_CHUNKS;
        reader->chunk_bytes = wanted > 0 && wanted < CHUNK_BYTES ? (size_t)wanted + 1 : CHUNK_BYTES;
    }
}

/* Gives the pieces that are complete; all of the rest at the end of the source. */
static void give_text(struct corpus_reader *reader, struct text_batch *batch) {
    const bool chunks = reader->settings->kind == DOCUMENT_CHUNKS;
    const char *text = reader->text.bytes;
    size_t done = 0;
    while (done < reader->text.size) {
        const size_t left = reader->text.size - done;
        const size_t bytes = chunks ? next_chunk(reader, text + done, left) : next_part(reader, text + done, left);
        if (bytes == 0) {
            break;
        }
        const bool source_ends = reader->at_end && bytes == left;
        give(reader, batch, text + done, bytes, reader->line, chunks || source_ends, source_ends);
        reader->line += count_lines(text + done, bytes);
        done += bytes;
    }
    text_drop(&reader->text, done);
}

static int fill_from_text(struct corpus_reader *reader, struct text_batch *batch) {
    if (text_read(&reader->text, reader->input, BLOCK_BYTES, &reader->at_end)) {
        return -1;
    }
    if (reader->chunk_bytes == 0 && reader->settings->kind == DOCUMENT_CHUNKS) {
        choose_chunks(reader);
    }
    give_text(reader, batch);
    if (reader->at_end && reader->settings->kind == DOCUMENT_FILES && reader->pieces == 0) {
        give(reader, batch, "", 0, 1, true, true); /* an empty file is a document */
    }
    return 0;
}

/* ---- JSON lines */

static int fill_from_lines(struct corpus_reader *reader, struct text_batch *batch) {
    while (!is_full(batch)) {
        const char *line;
        size_t bytes;
        const int found = json_lines_next(&reader->lines, &line, &bytes);
        if (found < 0) {
            return -1;
        }
        reader->at_end = found == 0;
        if (found == 0) {
            break;
        }
        give(reader, batch, line, bytes, reader->lines.line, true, true);
    }
    return 0;
}

/* ---- all together */

static int fill_from_source(struct corpus_reader *reader, struct text_batch *batch) {
    if (!reader->input && open_source(reader)) {
        return -1;
    }
    const int result =
        reader->settings->kind == DOCUMENT_JSONL ? fill_from_lines(reader, batch) : fill_from_text(reader, batch);
    if (result) {
        reader->stopped = input_stopped(reader->input);
        return -1;
    }
    return reader->at_end ? finish_source(reader) : 0;
}

int corpus_reader_fill(struct corpus_reader *reader, struct text_batch *batch) {
    while (reader->source < reader->settings->source_count && !is_full(batch)) {
        const size_t before = reader->source;
        if (fill_from_source(reader, batch)) {
            return -1;
        }
        if (reader->source == before && batch->count > 0) {
            break; /* a block of a long source is enough, small sources go together */
        }
    }
    return reader->source < reader->settings->source_count;
}

json_t *corpus_reader_save(const struct corpus_reader *reader) {
    json_t *state = json_pack("{s:O, s:I, s:I}", "done", reader->done, "documents", (json_int_t)reader->before,
                              "pieces", (json_int_t)(reader->pieces + reader->skip));
    if (reader->split.total > 0) {
        json_object_set_new(state, "split_total", json_integer((json_int_t)reader->split.total));
        json_object_set_new(state, "split_position", json_integer((json_int_t)reader->split_before.position));
        json_object_set_new(state, "split_held_out", json_integer((json_int_t)reader->split_before.held_out));
    }
    if (reader->held_out_from != UINT64_MAX) {
        json_object_set_new(state, "held_out_from", json_integer((json_int_t)reader->held_out_from));
    }
    return state;
}

struct corpus_status corpus_reader_status(const struct corpus_reader *reader) {
    return (struct corpus_status){
        .documents = reader->documents,
        .stored_bytes = reader->done_bytes + (reader->input ? input_stored_bytes(reader->input) : 0),
        .chunk_bytes = reader->chunk_bytes,
        .divides = reader->split.total > 0,
        .sources = reader->done,
        .held_out_from = reader->held_out_from,
        .stopped = reader->stopped,
    };
}
