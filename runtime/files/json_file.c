#include "runtime/files/json_file.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_bool lacked;

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes);
    if (memory == NULL) {
        lacked = true;
    }
    return memory;
}

void json_file_watch_memory(void) {
    json_set_alloc_funcs(allocate, free);
}

bool json_file_lacked_memory(void) {
    return atomic_exchange(&lacked, false);
}

int json_file_read(const char *path, size_t limit, json_t **json) {
    char *text = NULL;
    size_t bytes = 0;
    json_error_t error;
    *json = NULL;
    if (files_read(path, limit, &text, &bytes) != 0) {
        return -1;
    }
    *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (*json == NULL && (json_error_code(&error) == json_error_out_of_memory || lacked)) {
        lacked = false;
        return error_set("cannot read %s: out of memory", path);
    }
    if (*json == NULL) {
        error_set("%s:%d: %s", path, error.line, error.text);
        return JSON_FILE_INVALID;
    }
    return 0;
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
