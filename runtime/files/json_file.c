#include "runtime/files/json_file.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include <stdlib.h>
#include <string.h>

/* Of each thread, which puts objects together and writes or frees them by itself. */
static _Thread_local bool lacked;

/* Where a buffer of jansson's parser cannot grow, the parser goes on with a text whose end is missing, looks for that end behind the
 * buffer, and copies what it passes. So no memory is given any more until somebody has heard that some was missing. */
static void *allocate(size_t bytes) {
    void *memory = lacked ? NULL : malloc(bytes);
    if (memory == NULL) {
        lacked = true;
    }
    return memory;
}

void json_file_watch_memory(void) {
    json_set_alloc_funcs(allocate, free);
}

bool json_file_lacked_memory(void) {
    const bool had_lacked = lacked;
    lacked = false;
    return had_lacked;
}

int json_file_parse(const char *text, size_t bytes, size_t flags, json_t **json, json_error_t *error) {
    *json = json_loadb(text, bytes, flags, error);
    if (json_file_lacked_memory() || (*json == NULL && json_error_code(error) == json_error_out_of_memory)) {
        json_decref(*json);
        *json = NULL;
        return error_set("out of memory");
    }
    return *json != NULL ? 0 : JSON_FILE_INVALID;
}

int json_file_read(const char *path, size_t limit, json_t **json) {
    char *text = NULL;
    size_t bytes = 0;
    json_error_t error;
    *json = NULL;
    if (files_read(path, limit, &text, &bytes) != 0) {
        return -1;
    }
    const int result = json_file_parse(text, bytes, JSON_REJECT_DUPLICATES, json, &error);
    free(text);
    if (result == JSON_FILE_INVALID) {
        error_set("%s:%d: %s", path, error.line, error.text);
    } else if (result != 0) {
        error_prefix("cannot read %s", path);
    }
    return result;
}

char *json_file_text(const json_t *json, size_t flags) {
    const bool whole = !json_file_lacked_memory() && json != NULL;
    char *text = whole ? json_dumps(json, flags) : NULL;
    if (text == NULL) {
        lacked = false;
        error_set("out of memory");
    }
    return text;
}

int json_file_print(const json_t *json, FILE *stream, size_t flags) {
    char *text = json_file_text(json, flags);
    const int result = text == NULL ? -1 : fputs(text, stream) < 0 ? error_set_errno("cannot write") : 0;
    free(text);
    return result;
}

int json_file_write(const char *path, const json_t *json, size_t flags) {
    char *text = json_file_text(json, flags);
    const int result = text != NULL ? files_write(path, text, strlen(text)) : error_prefix("cannot write %s", path);
    free(text);
    return result;
}

uint64_t json_file_number(const json_t *object, const char *name) {
    const json_int_t value = json_integer_value(json_object_get(object, name));
    return value > 0 ? (uint64_t)value : 0;
}

bool json_file_is_text(const char *text) {
    json_t *json = json_string(text);
    const bool is_text = json != NULL;
    json_decref(json);
    return is_text;
}

json_t *json_file_name(const char *path) {
    json_t *name = json_string(path);
    char *spelt = name == NULL ? malloc(4 * strlen(path) + 1) : NULL;
    if (spelt != NULL) {
        char *end = spelt;
        for (const char *at = path; *at != '\0'; at++) {
            end += sprintf(end, (unsigned char)*at < 0x80 ? "%c" : "\\x%02x", (unsigned char)*at);
        }
        *end = '\0';
        name = json_string(spelt);
        free(spelt);
    }
    return name;
}
