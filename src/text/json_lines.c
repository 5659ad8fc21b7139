#include "src/text/json_lines.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    READ_BYTES = 1 << 18,
    MOST_LINE_BYTES = 1 << 30,
    MOST_FIELDS_SHOWN = 200, /* characters of a list of fields */
};

static bool is_blank(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] != ' ' && (text[i] < '\t' || text[i] > '\r')) {
            return false;
        }
    }
    return true;
}

int json_lines_next(struct json_lines *lines, const char **line, size_t *bytes) {
    for (size_t searched = 0;;) {
        const size_t left = lines->held.size - lines->at;
        const bool search = !lines->whole && left > searched;
        const char *begin = left > 0 ? lines->held.bytes + lines->at : "";
        const char *end = search ? memchr(begin + searched, '\n', left - searched) : NULL;
        if (end || (lines->at_end && (left > 0 || (lines->whole && lines->line == 0)))) {
            *line = begin;
            *bytes = end ? (size_t)(end - begin) : left;
            lines->at += *bytes + (end != NULL);
            lines->line++;
            searched = 0;
            if (lines->whole || !is_blank(*line, *bytes)) {
                return 1;
            }
            continue;
        }
        if (lines->at_end) {
            return 0;
        }
        searched = left;
        text_drop(&lines->held, lines->at); /* the lines that were returned */
        lines->at = 0;
        if (lines->held.size > MOST_LINE_BYTES) {
            return error_set("%s:%" PRIu64
                             ": a document of more than 1 GiB begins here: check --documents, or divide it",
                             input_label(lines->input), lines->line + 1);
        }
        if (text_read(&lines->held, lines->input, READ_BYTES, &lines->at_end)) {
            return -1;
        }
    }
}

void json_lines_free(struct json_lines *lines) {
    text_free(&lines->held);
}

static int read_field(json_t *object, const char *field, const char *option, struct text_buffer *buffer) {
    const json_t *value = json_object_get(object, field);
    if (!json_is_object(object)) {
        return error_set("not a JSON object ({...})");
    }
    if (!value) {
        char fields[MOST_FIELDS_SHOWN] = "none";
        const char *name;
        json_t *other;
        size_t length = 0;
        json_object_foreach(object, name, other) {
            if (length < sizeof fields) {
                length +=
                    (size_t)snprintf(fields + length, sizeof fields - length, "%s'%s'", length ? ", " : "", name);
            }
        }
        return option ? error_set("no field '%s'; there is %s (choose with %s)", field, fields, option)
                      : error_set("no field '%s'; there is %s", field, fields);
    }
    if (!json_is_string(value)) {
        return error_set("field '%s' is not a string", field);
    }
    buffer->size = 0;
    text_append(buffer, json_string_value(value), json_string_length(value));
    return 0;
}

int json_lines_field(const char **text, size_t *bytes, const char *field, const char *option, bool replace,
                     struct text_buffer *buffer) {
    json_error_t error;
    json_t *object = json_file_parse(*text, *bytes, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, replace, &error);
    const bool half = !object && !replace && strstr(error.text, "invalid Unicode");
    const int result = object ? read_field(object, field, option, buffer)
                              : error_set("not JSON at byte %d: %s%s", error.position, error.text,
                                          half ? " (--invalid replace puts U+FFFD there)" : "");
    *text = buffer->bytes;
    *bytes = buffer->size;
    json_decref(object);
    return result;
}

/* ---- kinds of documents */

const char *document_kind_name(enum document_kind kind) {
    static const char *const names[] = {"chunks", "files", "jsonl"};
    return names[kind];
}

int document_kind_by_names(const char *const *names, size_t count, enum document_kind otherwise,
                           enum document_kind *kind) {
    size_t json = 0;
    for (size_t i = 0; i < count; i++) {
        json += fnmatch("?*.@(jsonl|ndjson|json)?(.zst)?(.gz)", names[i], FNM_EXTMATCH) == 0;
    }
    *kind = json > 0 ? DOCUMENT_JSONL : otherwise;
    return json == 0 || json == count
               ? 0
               : error_set(
                     "some files are JSON lines by their names and some are not: give one kind at a time, or say "
                     "with --documents what all of them are");
}
