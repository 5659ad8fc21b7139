/* Small JSON files, read and written whole. Functions return 0 or -1 with an error text that names the path.
 * jansson allocates through runtime/system/memory.h in all programs, so its functions fail only for what they are
 * given, such as text that is not UTF-8. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { JSON_FILE_INVALID = -2 }; /* the file was read, but it is not JSON */

/* Parses JSON with jansson's flags; the caller releases it. NULL: it is not JSON, as *error says. What Python and
 * others write beyond JSON does not make the rest unreadable: NaN, Infinity and numbers that are too large become
 * values that no reader accepts, and strings may have NUL in them, which json_file_get_text refuses.
 * replace: half a surrogate pair in a string becomes U+FFFD. */
json_t *json_file_parse(const char *text, size_t bytes, size_t flags, bool replace, json_error_t *error);

/* Reads a file of at most `limit` bytes. *json is the caller's to json_decref, NULL on failure. Keys may not be
 * repeated. A file that is not JSON gives JSON_FILE_INVALID with the error text "<path>:<line>: <text>". */
int json_file_read(const char *path, size_t limit, json_t **json);

/* Writes with jansson's flags (JSON_INDENT, JSON_REAL_PRECISION) by files_write, and releases `json`. That may be
 * NULL, as jansson's functions return it for a text that is not UTF-8 or a number that is not finite; that is an
 * error of the functions below. */
int json_file_write(const char *path, json_t *json, size_t flags);

/* Writes the text and a newline to a stream, and releases the object. The error text has no path. */
int json_file_print_line(json_t *json, FILE *stream, size_t flags);

/* A number as JSON, which has none that are infinite or NaN: those are null. */
json_t *json_file_real(double value);

/* Members of an object that was read. *value stays as it is if there is no such member, or null. Fails if the value
 * is of another type, out of the range, or a text that has NUL in it. The error text names the key and the value,
 * but not the file. A text belongs to the object. */
int json_file_get_flag(const json_t *object, const char *key, bool *value);
int json_file_get_whole(const json_t *object, const char *key, int64_t least, int64_t most, int64_t *value);
int json_file_get_real(const json_t *object, const char *key, double *value);
int json_file_get_text(const json_t *object, const char *key, const char **value);

/* The text of a value; NULL if it is none, or has NUL in it. */
const char *json_file_text(const json_t *value);

/* A whole number of an object that this program wrote itself; 0 if it is missing or negative. */
uint64_t json_file_number(const json_t *object, const char *key);

/* Sets the error text "'key' is VALUE: help". Returns -1. */
int json_file_fail(const char *key, const json_t *value, const char *help);

/* A path as a JSON string. If it is not UTF-8, its bytes from 0x80 on are written as \xHH. */
json_t *json_file_name(const char *path);
