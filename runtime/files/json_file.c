#include "runtime/files/json_file.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- parsing */

/* NaN, Infinity and numbers that neither int64_t nor double can hold. */
static bool is_beyond_numbers(const char *word, size_t bytes, size_t flags) {
    static const char *const names[] = {"NaN", "Infinity", "-Infinity"};
    char *text = memory_string_part(word, bytes);
    bool result = false;
    for (size_t i = 0; i < COUNT(names); i++) {
        result |= strcmp(text, names[i]) == 0;
    }
    if (strspn(text, "+-.0123456789eE") == bytes) {
        result = isinf(strtod(text, NULL));
        if (strspn(text, "-0123456789") == bytes && !(flags & JSON_DECODE_INT_AS_REAL)) {
            errno = 0;
            strtoll(text, NULL, 10);
            result = errno == ERANGE;
        }
    }
    free(text);
    return result;
}

/* The code unit of an escape \uXXXX; 0: there is none. */
static unsigned long code_unit(const char *text, size_t bytes) {
    char digits[5] = "";
    if (bytes < 6 || text[0] != '\\' || text[1] != 'u') {
        return 0;
    }
    memcpy(digits, text + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? strtoul(digits, NULL, 16) : 0;
}

/* Replaces escapes that are half of a surrogate pair by U+FFFD. */
static void replace_halves(char *text, size_t bytes) {
    for (size_t at = 0; at < bytes; at++) {
        const unsigned long first = code_unit(text + at, bytes - at);
        if (first >= 0xd800 && first <= 0xdfff) {
            const unsigned long second = code_unit(text + at + 6, bytes - at - 6);
            const bool pair = first < 0xdc00 && second >= 0xdc00 && second <= 0xdfff;
            if (!pair) {
                memcpy(text + at, "\\ufffd", 6);
            }
            at += pair ? 11 : 5;
        } else if (text[at] == '\\') {
            at++;
        }
    }
}

/* Such a number becomes a string in a list of a list, which no reader takes for a number, text, flag, object or
 * list of these. */
static const char beyond_begin[] = "[[\"", beyond_end[] = "\"]]";
enum { BEYOND_BYTES = sizeof beyond_begin - 1 };

/* Copies the text with such numbers made lists, so it has at most three times as many bytes. The bytes written. */
static size_t mend(const char *text, size_t bytes, size_t flags, bool replace, char *to) {
    char *end = to;
    for (size_t at = 0, some; at < bytes; at += some) {
        const bool is_string = text[at] == '"';
        size_t around = 0, next = at + 1;
        if (is_string) {
            while (next < bytes && text[next] != '"') {
                next += text[next] == '\\' ? 2 : 1;
            }
            next++; /* its closing quote */
        } else if (isalnum((unsigned char)text[at]) || text[at] == '-') {
            while (next < bytes && (isalnum((unsigned char)text[next]) || memchr("+-.", text[next], 3))) {
                next++;
            }
            around = is_beyond_numbers(text + at, next - at, flags) ? BEYOND_BYTES : 0;
        }
        some = (next < bytes ? next : bytes) - at;
        memcpy(end, beyond_begin, around);
        memcpy(end + around, text + at, some);
        memcpy(end + around + some, beyond_end, around);
        if (is_string && replace) {
            replace_halves(end, some);
        }
        end += some + 2 * around;
    }
    return (size_t)(end - to);
}

json_t *json_file_parse(const char *text, size_t bytes, size_t flags, bool replace, json_error_t *error) {
    json_t *json = json_loadb(text, bytes, flags | JSON_ALLOW_NUL, error);
    if (!json) {
        char *mended = memory_allocate(3 * bytes + 1, 1);
        json = json_loadb(mended, mend(text, bytes, flags, replace, mended), flags | JSON_ALLOW_NUL, error);
        free(mended);
    }
    return json;
}

/* ---- files */

int json_file_read(const char *path, size_t limit, json_t **json) {
    char *text = NULL;
    size_t bytes = 0;
    json_error_t error;
    *json = NULL;
    if (files_read(path, limit, &text, &bytes) != 0) {
        return -1;
    }
    *json = json_file_parse(text, bytes, JSON_REJECT_DUPLICATES, false, &error);
    free(text);
    if (*json == NULL) {
        error_set("%s:%d: %s", path, error.line, error.text);
        return JSON_FILE_INVALID;
    }
    return 0;
}

/* The text of an object, which the caller frees; NULL with an error text. Releases the object. */
static char *text_of(json_t *json, size_t flags) {
    char *text = json_dumps(json, flags);
    json_decref(json);
    if (text == NULL) {
        error_set("JSON cannot hold a text that is not UTF-8, or a number that is not finite");
    }
    return text;
}

int json_file_print_line(json_t *json, FILE *stream, size_t flags) {
    char *text = text_of(json, flags);
    const int result = text == NULL ? -1 : fprintf(stream, "%s\n", text) < 0 ? error_set_errno("cannot write") : 0;
    free(text);
    return result;
}

int json_file_write(const char *path, json_t *json, size_t flags) {
    char *text = text_of(json, flags);
    const int result = text != NULL ? files_write(path, text, strlen(text)) : error_prefix("cannot write %s", path);
    free(text);
    return result;
}

json_t *json_file_real(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

int json_file_fail(const char *key, const json_t *value, const char *help) {
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    const size_t bytes = text ? strlen(text) : 0;
    const char *shown = text ? text : "missing";
    if (bytes > 2 * BEYOND_BYTES && memcmp(text, beyond_begin, BEYOND_BYTES) == 0) {
        shown += BEYOND_BYTES;
        text[bytes - BEYOND_BYTES] = '\0';
    }
    const int status = error_set("'%.60s' is %.60s: %s", key, shown, help);
    free(text);
    return status;
}

/* Finds the member; NULL if there is none, or null. Fails unless its type is in the range. */
static int find_member(const json_t *object, const char *key, json_type first, json_type last, const char *help,
                       const json_t **found) {
    const json_t *value = json_object_get(object, key);
    *found = json_is_null(value) ? NULL : value;
    return !*found || (json_typeof(value) >= first && json_typeof(value) <= last)
               ? 0
               : json_file_fail(key, value, help);
}

int json_file_get_flag(const json_t *object, const char *key, bool *value) {
    const json_t *member;
    if (find_member(object, key, JSON_TRUE, JSON_FALSE, "it must be true or false", &member)) {
        return -1;
    }
    *value = member ? json_is_true(member) : *value;
    return 0;
}

int json_file_get_whole(const json_t *object, const char *key, int64_t least, int64_t most, int64_t *value) {
    const json_t *member;
    if (find_member(object, key, JSON_INTEGER, JSON_INTEGER, "it must be a whole number", &member)) {
        return -1;
    }
    const int64_t number = json_integer_value(member);
    if (member && (number < least || number > most)) {
        return error_set("'%.60s' is %" PRId64 ": it must be a whole number from %" PRId64 " to %" PRId64, key,
                         number, least, most);
    }
    *value = member ? number : *value;
    return 0;
}

int json_file_get_real(const json_t *object, const char *key, double *value) {
    const json_t *member;
    if (find_member(object, key, JSON_INTEGER, JSON_REAL, "it must be a number", &member)) {
        return -1;
    }
    *value = member ? json_number_value(member) : *value;
    return 0;
}

const char *json_file_text(const json_t *value) {
    const char *text = json_string_value(value);
    return text && strlen(text) == json_string_length(value) ? text : NULL;
}

int json_file_get_text(const json_t *object, const char *key, const char **value) {
    const json_t *member;
    if (find_member(object, key, JSON_STRING, JSON_STRING, "it must be a string", &member)) {
        return -1;
    }
    if (member && !json_file_text(member)) {
        return json_file_fail(key, member, "it must be a string without NUL");
    }
    *value = member ? json_string_value(member) : *value;
    return 0;
}

uint64_t json_file_number(const json_t *object, const char *key) {
    const json_int_t value = json_integer_value(json_object_get(object, key));
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
