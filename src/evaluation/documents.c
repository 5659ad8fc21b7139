#include "src/evaluation/documents.h"
#include "runtime/files/input.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "src/text/json_lines.h"
#include <inttypes.h>
#include <stdlib.h>

struct documents {
    const struct documents_settings *settings;
    enum document_kind kind;
    size_t file;                               /* number of the one that is read */
    struct json_lines lines;                   /* of it; no input: not opened yet */
    struct text_buffer valid, scored, counted; /* the document made UTF-8, and its fields */
    uint64_t given;                            /* documents */
    uint64_t stored, total;                    /* bytes of the files before this one, and of all */
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

/* Closes the current file, if there is one. */
static void close_file(struct documents *documents) {
    input_close(documents->lines.input);
    json_lines_free(&documents->lines);
    documents->lines = (struct json_lines){0};
}

void documents_close(struct documents *documents) {
    if (documents) {
        close_file(documents);
        text_free(&documents->valid);
        text_free(&documents->scored);
        text_free(&documents->counted);
        free(documents);
    }
}

/* ---- one document */

/* Replaces the line, an object, by its fields. */
static int take_fields(struct documents *documents, struct document *document) {
    const char *field = documents->settings->field, *count_field = documents->settings->count_field;
    const bool replace = documents->settings->invalid == INVALID_REPLACE;
    if (json_lines_field(&document->text, &document->bytes, field, "--field", replace, &documents->scored) ||
        (count_field && json_lines_field(&document->counted, &document->counted_bytes, count_field, "--count-field",
                                         replace, &documents->counted))) {
        return error_prefix("%s:%" PRIu64, input_name(document->source), document->line);
    }
    if (!count_field) {
        document->counted = document->text;
        document->counted_bytes = document->bytes;
    }
    return 0;
}

/* The next document of the current file; results as those of documents_next. */
static int next_of_file(struct documents *documents, struct document *document) {
    const struct documents_settings *settings = documents->settings;
    const bool whole = documents->lines.whole;
    const char *source = settings->names[documents->file], *text;
    size_t bytes;
    const int found = json_lines_next(&documents->lines, &text, &bytes);
    if (found != 1) {
        return found;
    }
    if (text_require_utf8(&text, &bytes, input_name(source), documents->lines.line,
                          settings->invalid == INVALID_REPLACE, &documents->valid)) {
        return -1;
    }
    *document = (struct document){source, whole ? 0 : documents->lines.line, text, bytes, text, bytes};
    return whole || !settings->field || take_fields(documents, document) == 0 ? 1 : -1;
}

int documents_next(struct documents *documents, struct document *document) {
    const struct documents_settings *settings = documents->settings;
    while (documents->file < settings->count &&
           (settings->limit == 0 || documents->given < (uint64_t)settings->limit)) {
        struct json_lines *lines = &documents->lines;
        lines->whole = documents->kind != DOCUMENT_JSONL;
        if (!lines->input && input_open(settings->names[documents->file], interrupt_descriptor(), &lines->input)) {
            return -1;
        }
        const int found = next_of_file(documents, document);
        if (found != 0) {
            documents->given += found == 1;
            return found;
        }
        documents->stored += input_stored_bytes(lines->input);
        close_file(documents);
        documents->file++;
    }
    return 0;
}

const char *documents_progress(const struct documents *documents, uint64_t *done, uint64_t *total) {
    if (documents->settings->limit > 0) {
        *done = documents->given;
        *total = (uint64_t)documents->settings->limit;
        return "documents";
    }
    *done = documents->stored + (documents->lines.input ? input_stored_bytes(documents->lines.input) : 0);
    *total = documents->total;
    return "bytes";
}
