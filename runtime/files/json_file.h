/* Small JSON files, read and written whole. Functions return 0 or -1 with an error text that names the path. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* jansson's functions that set and append tell of missing memory by a result that is not worth a branch at every call. From here
 * on it is noted for each thread, which gets no more memory for its objects until it has heard of it, and nothing incomplete is
 * written: not by json_file_write, _text and _print. Before the first object is made. */
void json_file_watch_memory(void);

/* Whether memory has run out in this thread, so that its objects may lack something. Asking forgets it, as do the functions
 * below that fail for it: whoever hears of it fails, and what is put together afterwards is whole. */
bool json_file_lacked_memory(void);

enum { JSON_FILE_INVALID = -2 }; /* what is read is no JSON, and will not be when it is read again */

/* Parses a text with jansson's flags; *json is the caller's to json_decref, NULL on failure. Where the text is no JSON the result is
 * JSON_FILE_INVALID, `error` says why and the error text is left alone; -1 with an error text where memory runs out. */
int json_file_parse(const char *text, size_t bytes, size_t flags, json_t **json, json_error_t *error);

/* Reads a file of at most `limit` bytes; *json is the caller's to json_decref, NULL on failure. Keys may not come
 * twice. What is no JSON is reported as "<path>:<line>: <text>", and by JSON_FILE_INVALID instead of -1. */
int json_file_read(const char *path, size_t limit, json_t **json);

/* Writes with jansson's flags (JSON_INDENT, JSON_REAL_PRECISION) by files_write. json may be NULL, as jansson's
 * functions return it when memory runs out: that is the error then. */
int json_file_write(const char *path, const json_t *json, size_t flags);

/* The text of an object, the caller's to free; NULL with an error when memory runs out, or has. */
char *json_file_text(const json_t *json, size_t flags);

/* Writes that text to a stream; -1 where the stream does not take it, with an error text that says why. */
int json_file_print(const json_t *json, FILE *stream, size_t flags);

/* A number of an object; 0 where there is none, or a negative one. */
uint64_t json_file_number(const json_t *object, const char *name);

/* Whether a string is UTF-8, which JSON has to be. */
bool json_file_is_text(const char *text);

/* A path as a JSON string; where it is not UTF-8, its bytes from 0x80 on are written as \xHH. NULL when memory runs
 * out. */
json_t *json_file_name(const char *path);
