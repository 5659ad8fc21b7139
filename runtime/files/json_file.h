/* Small JSON files, read and written whole. Functions return 0 or -1 with an error text that names the path. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads a file of at most `limit` bytes; *json is the caller's to json_decref, NULL on failure. Keys may not come
 * twice. What is no JSON is reported as "<path>:<line>: <text>". */
int json_file_read(const char *path, size_t limit, json_t **json);

/* Writes with jansson's flags (JSON_INDENT, JSON_REAL_PRECISION) by files_write. json may be NULL, as jansson's
 * functions return it when memory runs out: that is the error then. */
int json_file_write(const char *path, const json_t *json, size_t flags);

/* A number of an object; 0 where there is none, or a negative one. */
uint64_t json_file_number(const json_t *object, const char *name);

/* Whether a string is UTF-8, which JSON has to be. */
bool json_file_is_text(const char *text);

/* A path as a JSON string; where it is not UTF-8, its bytes from 0x80 on are written as \xHH. NULL when memory runs
 * out. */
json_t *json_file_name(const char *path);
