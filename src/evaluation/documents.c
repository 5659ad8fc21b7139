#include "src/evaluation/documents.h"
#include "runtime/files/input.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "src/text/json_lines.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 1 << 18, MOST_FILE_BYTES = 1 << 30 };

struct documents {
    const struct documents_settings *settings;
    enum document_kind kind;
    size_t file;         /* number of the one that is read */
    struct input *input; /* NULL: not opened yet */
    struct json_lines lines;
    struct text_buffer raw, text; /* as read, and made UTF-8 */
    struct text_buffer counted;   /* of count_field */
    uint64_t given;               /* documents */
    uint64_t stored, total;       /* bytes of the files before this one, and of all */
};

/* ---- opening */

static int examine(struct documents *documents) {
    bool known = true;
    for (size_t i = 0; i < documents->settings->count; i++) {
        struct input_status status;
        if (input_examine(documents->settings->names[i], &status)) {
            return -1;
        }
        known = known && status.regular;
        documents->total += status.bytes;
    }
    documents->total = known ? documents->total : 0;
    return 0;
}

int documents_open(const struct documents_settings *settings, struct documents **opened) {
    *opened = memory_zeroed(1, sizeof **opened);
    (*opened)->settings = settings;
    (*opened)->kind = settings->word == DOCUMENTS_JSONL ? DOCUMENT_JSONL : DOCUMENT_FILES;
    return (settings->word == DOCUMENTS_BY_NAME &&
            document_kind_by_names(settings->names, settings->count, DOCUMENT_FILES, &(*opened)->kind)) ||
                   examine(*opened)
               ? -1
               : 0;
}

void documents_close(struct documents *documents) {
    if (documents) {
        input_close(documents->input);
        json_lines_free(&documents->lines);
        text_free(&documents->raw);
        text_free(&documents->text);
        text_free(&documents->counted);
        free(documents);
    }
}

static const char *file_name(const struct documents *documents) {
    return documents->settings->names[documents->file];
}

static int open_file(struct documents *documents) {
    if (input_open(file_name(documents), interrupt_descriptor(), &documents->input)) {
        return -1;
    }
    documents->lines.input = documents->input;
    return 0;
}

static void leave_file(struct documents *documents) {
    documents->stored += input_stored_bytes(documents->input);
    input_close(documents->input);
    json_lines_free(&documents->lines);
    documents->input = NULL;
    documents->lines = (struct json_lines){0};
    documents->file++;
}

/* ---- one document */

static const char *text_of(const struct text_buffer *buffer) {
    return buffer->size > 0 ? buffer->bytes : "";
}

/* Lets what is read through, or made UTF-8. first_line: the number of its first line, for messages. */
static int check_text(struct documents *documents, const char **text, size_t *bytes, uint64_t first_line) {
    return text_require_utf8(text, bytes, input_name(file_name(documents)), first_line,
                             documents->settings->invalid == INVALID_REPLACE, &documents->text);
}

static int read_whole(struct documents *documents) {
    struct text_buffer *raw = &documents->raw;
    bool at_end = false;
    raw->size = 0;
    while (!at_end) {
        if (raw->size > MOST_FILE_BYTES) {
            return error_set("%s has more than 1 GiB, too much for one document: is it JSON lines (--documents "
                             "jsonl)? Else divide it",
                             input_name(file_name(documents)));
        }
        if (text_read(raw, documents->input, READ_BYTES, &at_end)) {
            return -1;
        }
    }
    return 0;
}

static int next_file(struct documents *documents, struct document *document) {
    if (read_whole(documents)) {
        return -1;
    }
    const char *text = text_of(&documents->raw);
    size_t bytes = documents->raw.size;
    if (check_text(documents, &text, &bytes, 1)) {
        return -1;
    }
    *document = (struct document){file_name(documents), 0, text, bytes, text, bytes};
    return 1;
}

static int take_fields(struct documents *documents, const char *line, size_t bytes, struct document *document) {
    const struct documents_settings *settings = documents->settings;
    const bool apart = settings->count_field != NULL;
    const struct text_buffer *counted = apart ? &documents->counted : &documents->raw;
    if (json_lines_text(line, bytes, settings->field, &documents->raw) ||
        (apart && json_lines_text(line, bytes, settings->count_field, &documents->counted))) {
        return -1;
    }
    document->text = text_of(&documents->raw);
    document->bytes = documents->raw.size;
    document->counted = text_of(counted);
    document->counted_bytes = counted->size;
    return 0;
}

/* Whether there is one in this file. */
static int next_line(struct documents *documents, struct document *document) {
    const char *line;
    size_t bytes;
    const int found = json_lines_next(&documents->lines, &line, &bytes);
    const uint64_t number = documents->lines.line + (found < 0); /* of the line that cannot be read */
    if (found == 0) {
        return 0;
    }
    if (found == 1 && check_text(documents, &line, &bytes, number)) {
        return -1;
    }
    *document = (struct document){.source = file_name(documents), .line = number};
    if (found < 0 || take_fields(documents, line, bytes, document)) {
        return error_prefix("%s:%" PRIu64, input_name(file_name(documents)), number);
    }
    return 1;
}

int documents_next(struct documents *documents, struct document *document) {
    const struct documents_settings *settings = documents->settings;
    while (documents->file < settings->count &&
           (settings->limit == 0 || documents->given < (uint64_t)settings->limit)) {
        const bool begun = documents->input != NULL;
        int found = 0;
        if (!begun && open_file(documents)) {
            return -1;
        }
        if (documents->kind == DOCUMENT_JSONL) {
            found = next_line(documents, document);
        } else if (!begun) {
            found = next_file(documents, document);
        }
        if (found != 0) {
            documents->given += found == 1;
            return found;
        }
        leave_file(documents);
    }
    return 0;
}

const char *documents_progress(const struct documents *documents, uint64_t *done, uint64_t *total) {
    if (documents->settings->limit > 0) {
        *done = documents->given;
        *total = (uint64_t)documents->settings->limit;
        return "documents";
    }
    *done = documents->stored + (documents->input ? input_stored_bytes(documents->input) : 0);
    *total = documents->total;
    return "bytes";
}
