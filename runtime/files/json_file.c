#include "runtime/files/json_file.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    if (*json == NULL) {
        error_set("%s:%d: %s", path, error.line, error.text);
        return JSON_FILE_INVALID;
    }
    return 0;
}

/* The text of an object, which the caller frees; NULL with an error text. */
static char *text_of(const json_t *json, size_t flags) {
    char *text = json_dumps(json, flags);
    if (text == NULL) {
        error_set("JSON cannot hold a text that is not UTF-8, or a number that is not finite");
    }
    return text;
}

int json_file_print_line(json_t *json, FILE *stream, size_t flags) {
    char *text = text_of(json, flags);
    const int result = text == NULL ? -1 : fprintf(stream, "%s\n", text) < 0 ? error_set_errno("cannot write") : 0;
    free(text);
    json_decref(json);
    return result;
}

int json_file_write(const char *path, json_t *json, size_t flags) {
    char *text = text_of(json, flags);
    const int result = text != NULL ? files_write(path, text, strlen(text)) : error_prefix("cannot write %s", path);
    free(text);
    json_decref(json);
    return result;
}

json_t *json_file_real(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

uint64_t json_file_number(const json_t *object, const char *name) {
    const json_int_t value = json_integer_value(json_object_get(object, name));
    return value > 0 ? (uint64_t)value : 0;
}

json_t *json_file_name(const char *path) {
    json_t *name = json_string(path);
    if (name == NULL) {
        char *escaped = memory_allocate(4 * strlen(path) + 1, 1), *end = escaped;
        for (; *path != '\0'; path++) {
            end += sprintf(end, (unsigned char)*path < 0x80 ? "%c" : "\\x%02x", (unsigned char)*path);
        }
        name = json_string(escaped);
        free(escaped);
    }
    return name;
}

json_t *json_file_settings(const char *lines) {
    json_t *settings = json_object();
    char *copy = memory_string(lines), *rest = NULL;
    for (char *line = strtok_r(copy, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char *equals = *line != '#' ? strstr(line, " = ") : NULL;
        if (equals != NULL) {
            *equals = '\0';
            json_object_set_new(settings, line, json_loads(equals + 3, JSON_DECODE_ANY, NULL));
        }
    }
    free(copy);
    return settings;
}
