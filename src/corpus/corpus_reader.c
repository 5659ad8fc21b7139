#include "src/corpus/corpus_reader.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/utf8.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK_BYTES = 1 << 20,      /* read at once, and about the size of a batch */
    BATCH_PIECES = 1 << 12,     /* at most */
    CHUNK_BYTES = 1 << 16,      /* of running text */
    LEAST_HELD_OUT_CHUNKS = 4,  /* if chunks have to be smaller for that, they are */
    MOST_PLANNED_CHUNKS = 32,   /* that are held out */
    MOST_UNCUT_BYTES = 1 << 22, /* of a file without white space, which is then cut all the same */
};

/* Which stretches of running text are held out if its size is known: `count` equally long ones, spread evenly from
 * a start that the seed chooses. A stretch ends where text can be cut, so it is longer than planned; the next one
 * is shorter by that much, so the share of all text is as wanted. */
struct split {
    uint64_t total;    /* bytes of all text; 0: nothing is planned, and whole chunks are held out */
    unsigned count;    /* of stretches */
    uint64_t position; /* bytes of pieces so far */
    uint64_t held_out; /* of them */
};

struct corpus_reader {
    const struct prepare_settings *settings;
    const struct tokenizer *tokenizer;
    const struct document_order *order;
    uint64_t total;      /* stored bytes of all sources, 0: not known */
    json_t *done;        /* sources that were read to their end: path, bytes, sha256 */
    uint64_t done_bytes; /* of them, as stored */
    size_t source;       /* number of the current source */
    struct input *input; /* the current source, NULL between two */
    bool at_end;         /* of the current source */
    struct json_lines lines;
    struct text_buffer text;   /* read, but not yet in pieces */
    uint64_t before;           /* documents of the sources before the current one */
    uint64_t documents;        /* so far */
    uint64_t pieces;           /* so far, of the current source */
    uint64_t skip;             /* more pieces of it, which an earlier process has encoded */
    uint32_t part;             /* number of the next part of the current document */
    uint64_t line;             /* of the current source where the next piece begins */
    size_t chunk_bytes;        /* 0: not known yet */
    struct split split;        /* of running text */
    struct split split_before; /* the same at the beginning of the current source */
};

/* ---- the split of running text */

/* Plans the split of so many bytes, and the size of chunks. Plans nothing if the text is a few bytes, or so much
 * that one chunk more or less does not matter. */
static void open_split(struct corpus_reader *reader, uint64_t total) {
    const double wanted = (double)total * reader->settings->val_fraction, chunks = ceil(wanted / CHUNK_BYTES);
    if (wanted < LEAST_HELD_OUT_CHUNKS || chunks > MOST_PLANNED_CHUNKS) {
        return;
    }
    const unsigned count = chunks > LEAST_HELD_OUT_CHUNKS ? (unsigned)chunks : LEAST_HELD_OUT_CHUNKS;
    reader->chunk_bytes = (size_t)(wanted / count) + 1;
    reader->split = (struct split){.total = total, .count = count};
}

/* Whether the text at the position is held out. *bytes: how many more bytes should be, or, if it is not held out,
 * how many come before the next stretch; UINT64_MAX: all that follow. */
static bool is_in_stretch(const struct corpus_reader *reader, uint64_t *bytes) {
    const struct split *split = &reader->split;
    const double fraction = reader->settings->val_fraction;
    const double period = (double)split->total / split->count, each = period * fraction;
    const double complete = floor((double)split->held_out / each); /* stretches */
    if (complete >= split->count) {
        *bytes = UINT64_MAX;
        return false;
    }
    const double begin = (complete + reader->order->offset * (1.0 - fraction)) * period;
    const bool held_out = (double)split->position >= begin;
    const double left =
        held_out ? (complete + 1.0) * each - (double)split->held_out : begin - (double)split->position;
    *bytes = left > 1.0 ? (uint64_t)ceil(left) : 1;
    return held_out;
}

/* ---- opening and closing */

struct corpus_reader *corpus_reader_open(const struct prepare_settings *settings, const struct tokenizer *tokenizer,
                                         const struct document_order *order, uint64_t total, const json_t *saved) {
    struct corpus_reader *reader = memory_zeroed(1, sizeof *reader);
    const json_t *source;
    reader->settings = settings;
    reader->tokenizer = tokenizer;
    reader->order = order;
    reader->total = total;
    reader->done = json_array();
    reader->before = reader->documents = json_file_number(saved, "documents");
    reader->skip = json_file_number(saved, "pieces");
    open_split(reader, json_file_number(saved, "split_total"));
    reader->split.position = json_file_number(saved, "split_position");
    reader->split.held_out = json_file_number(saved, "split_held_out");
    reader->split_before = reader->split;
    json_array_extend(reader->done, json_object_get(saved, "done"));
    json_array_foreach(reader->done, reader->source, source) {
        reader->done_bytes += json_file_number(source, "bytes");
    }
    return reader;
}

void corpus_reader_close(struct corpus_reader *reader) {
    if (reader) {
        input_close(reader->input);
        json_lines_free(&reader->lines);
        text_free(&reader->text);
        json_decref(reader->done);
        free(reader);
    }
}

/* ---- pieces */

/* Adds the next piece to the batch, unless an earlier process has encoded it. */
static void add_piece(struct corpus_reader *reader, struct text_batch *batch, const char *text, size_t bytes,
                      uint64_t line, bool ends, bool source_ends) {
    const struct prepare_settings *settings = reader->settings;
    struct text_piece piece = {.bytes = bytes,
                               .document = reader->documents,
                               .part = reader->part,
                               .ends = source_ends,
                               .source = input_name(settings->sources[reader->source]),
                               .line = line};
    if (settings->val_source) {
        piece.held_out = reader->source + 1 == settings->source_count;
    } else if (reader->split.total > 0) {
        uint64_t left;
        piece.held_out = is_in_stretch(reader, &left);
    } else {
        piece.held_out = document_order_holds_out(reader->order, reader->documents);
    }
    reader->documents += ends;
    reader->part = ends ? 0 : reader->part + 1;
    reader->pieces++;
    reader->split.position += bytes;
    reader->split.held_out += piece.held_out ? bytes : 0;
    if (reader->skip > 0) {
        reader->skip--;
    } else {
        text_batch_add(batch, &piece, text);
    }
}

static bool is_full(const struct text_batch *batch) {
    return batch->text.size >= BLOCK_BYTES || batch->count >= BATCH_PIECES;
}

/* ---- text */

/* The last end of a character, or of the text if it is the beginning of one character. */
static size_t end_of_characters(const char *text, size_t bytes) {
    const size_t complete = utf8_complete(text, bytes);
    return complete > 0 ? complete : bytes;
}

/* The end of a chunk, from `least` to `most`, of bytes: after a blank line, else after a line's end. Of tokens that
 * must not be cut: before the white space of a blank line, of a line's end, or of anything else; without any white
 * space, between two characters. */
static size_t end_of_chunk(const struct corpus_reader *reader, const char *text, size_t least, size_t most) {
    if (reader->settings->tokenizer.kind == TOKENIZER_BYTE) {
        const char *blank_line = memmem(text + least - 1, most - least, "\n\n", 2);
        const char *line_end = memchr(text + least - 1, '\n', most - least);
        if (blank_line) {
            return (size_t)(blank_line - text) + 2;
        }
        return line_end ? (size_t)(line_end - text) + 1 : most;
    }
    size_t line_end = 0;
    for (size_t at = least > 0 ? least : 1; at + 1 < most; at++) {
        const char *found = memchr(text + at, '\n', most - 1 - at);
        if (!found) {
            break;
        }
        at = (size_t)(found - text);
        if (tokenizer_is_cut(reader->tokenizer, text, at)) {
            if (text[at + 1] == '\n') {
                return at;
            }
            line_end = line_end ? line_end : at;
        }
    }
    const size_t cut = line_end ? line_end : tokenizer_cut(reader->tokenizer, text, most);
    return cut > 0 ? cut : end_of_characters(text, most);
}

/* The size of the next chunk of running text; 0: that needs more text. */
static size_t next_chunk(const struct corpus_reader *reader, const char *text, size_t bytes) {
    const bool planned = reader->split.total > 0;
    uint64_t wanted = reader->chunk_bytes;
    if (planned) {
        is_in_stretch(reader, &wanted);
    }
    const size_t least = wanted < CHUNK_BYTES ? (size_t)wanted : CHUNK_BYTES;
    size_t most = least + reader->chunk_bytes;
    if (bytes < most || (bytes == most && !reader->at_end)) {
        if (!reader->at_end || !planned || bytes <= least) {
            return reader->at_end ? bytes : 0;
        }
        most = bytes;
    }
    return end_of_chunk(reader, text, least, most);
}

/* The size of the next part of a file that is one document; 0 as above. */
static size_t next_part(const struct corpus_reader *reader, const char *text, size_t bytes) {
    if (bytes <= BLOCK_BYTES) {
        return reader->at_end ? bytes : 0;
    }
    const bool are_bytes = reader->settings->tokenizer.kind == TOKENIZER_BYTE;
    const size_t cut = are_bytes ? BLOCK_BYTES : tokenizer_cut(reader->tokenizer, text, bytes);
    const bool waits = !reader->at_end && bytes < MOST_UNCUT_BYTES;
    return cut > 0 || waits ? cut : end_of_characters(text, bytes);
}

/* Sets the size of chunks when the first text was read, so that at least a few chunks are held out. The size of
 * all text is known exactly for files that are not compressed, and if all of it was read. The first source is open
 * and has been read from; the first bytes of the others are read here. A source that cannot be read fails later,
 * when it is opened again. */
static void choose_chunks(struct corpus_reader *reader) {
    const struct prepare_settings *settings = reader->settings;
    const bool is_all = settings->source_count == 1 && reader->at_end;
    const bool begins = reader->documents == 0 && reader->skip == 0; /* else an earlier process made no plan */
    bool plain = reader->total > 0 && input_is_plain(reader->input);
    for (size_t i = 1; begins && plain && i < settings->source_count; i++) {
        struct input *input = NULL;
        char first;
        size_t got;
        plain = input_open(settings->sources[i], settings->stop_descriptor, &input) == 0 &&
                input_read(input, &first, 1, &got) == 0 && input_is_plain(input);
        input_close(input);
    }
    if (begins && (is_all || plain)) {
        open_split(reader, is_all ? reader->text.size : reader->total);
        reader->split_before = reader->split;
    }
    if (reader->split.total == 0) {
        const double wanted = (double)reader->total * settings->val_fraction / LEAST_HELD_OUT_CHUNKS;
        reader->chunk_bytes = wanted > 0 && wanted < CHUNK_BYTES ? (size_t)wanted + 1 : CHUNK_BYTES;
    }
}

/* Reads a block and adds the pieces that are complete; at the end of the source, all of the rest. */
static int fill_from_text(struct corpus_reader *reader, struct text_batch *batch) {
    const bool chunks = reader->settings->kind == DOCUMENT_CHUNKS;
    size_t done = 0;
    if (text_read(&reader->text, reader->input, BLOCK_BYTES, &reader->at_end)) {
        return -1;
    }
    if (reader->chunk_bytes == 0 && chunks) {
        choose_chunks(reader);
    }
    while (done < reader->text.size) {
        const char *text = reader->text.bytes + done;
        const size_t left = reader->text.size - done;
        const size_t bytes = chunks ? next_chunk(reader, text, left) : next_part(reader, text, left);
        if (bytes == 0) {
            break;
        }
        const bool source_ends = reader->at_end && bytes == left;
        add_piece(reader, batch, text, bytes, reader->line, chunks || source_ends, source_ends);
        reader->line += text_lines(text, bytes);
        done += bytes;
    }
    text_drop(&reader->text, done);
    if (reader->at_end && !chunks && reader->pieces == 0) {
        add_piece(reader, batch, "", 0, 1, true, true); /* an empty file is a document */
    }
    return 0;
}

/* ---- JSON lines, and all kinds */

/* Ends the current source, which was read to its end. */
static int finish_source(struct corpus_reader *reader) {
    char digest[CHECKSUM_SIZE];
    if (reader->skip > 0) {
        return error_set("%s has fewer documents than before, so it was changed: start again with --no-resume",
                         input_label(reader->input));
    }
    const uint64_t bytes = input_stored_bytes(reader->input);
    input_digest(reader->input, digest);
    json_array_append_new(reader->done, json_pack("{s:o, s:I, s:s}", "path",
                                                  json_file_name(reader->settings->sources[reader->source]),
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

int corpus_reader_fill(struct corpus_reader *reader, struct text_batch *batch) {
    const struct prepare_settings *settings = reader->settings;
    const bool lines = settings->kind == DOCUMENT_JSONL;
    const char *line;
    size_t bytes;
    while (reader->source < settings->source_count && !is_full(batch)) {
        if (!reader->input) {
            reader->at_end = false;
            reader->part = 0;
            reader->line = 1;
            if (input_open(settings->sources[reader->source], settings->stop_descriptor, &reader->input)) {
                return -1;
            }
            reader->lines = (struct json_lines){.input = reader->input};
        }
        int found = 1;
        while (lines && !is_full(batch) && (found = json_lines_next(&reader->lines, &line, &bytes)) == 1) {
            add_piece(reader, batch, line, bytes, reader->lines.line, true, true);
        }
        reader->at_end = lines && found == 0;
        if (found < 0 || (!lines && fill_from_text(reader, batch))) {
            return -1;
        }
        if (reader->at_end && finish_source(reader)) {
            return -1;
        }
        if (!reader->at_end && batch->count > 0) {
            break; /* a block of a long source is enough, small sources go together */
        }
    }
    return reader->source < settings->source_count;
}

json_t *corpus_reader_save(const struct corpus_reader *reader) {
    return json_pack("{s:O, s:I, s:I, s:I, s:I, s:I}", "done", reader->done, "documents",
                     (json_int_t)reader->before, "pieces", (json_int_t)(reader->pieces + reader->skip),
                     "split_total", (json_int_t)reader->split.total, "split_position",
                     (json_int_t)reader->split_before.position, "split_held_out",
                     (json_int_t)reader->split_before.held_out);
}

struct corpus_status corpus_reader_status(const struct corpus_reader *reader) {
    return (struct corpus_status){
        .documents = reader->documents,
        .stored_bytes = reader->done_bytes + (reader->input ? input_stored_bytes(reader->input) : 0),
        .chunk_bytes = reader->chunk_bytes,
        .sources = reader->done,
    };
}
