/* Text for a reader at a terminal that contains foreign text: names of files and tensors, device names, compiler
 * logs. Text that a message takes in by %s or %c never controls the terminal: control characters and bytes that are
 * not UTF-8 are written as \n, \r, \x1b, \u202e, and the middle of a long line is left out. So no name can move the
 * cursor or fake a line. Messages of error.h are made in this way; all other human-readable output goes through
 * message_print (ci/calls.py checks the sources). */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A number and a noun that takes an s: message_count(1, "stream").text is "1 stream", that of 4 "4 streams". */
struct message_count {
    char text[56];
};
struct message_count message_count(int64_t number, const char *noun);

/* Begins the lines of a quoted text. A newline before it is kept, so that a message can be quoted in another
 * one. */
#define MESSAGE_QUOTE "  | "

/* As vsnprintf, for the conversions d, i, u, x, X, o, c, s, e, f, g, a and %. Returns the length of the text in
 * `to`, which is less than capacity > 0. NULL for %s is written as "(null)". */
size_t message_format(char *to, size_t capacity, const char *format, va_list arguments)
    __attribute__((format(printf, 3, 0)));

/* As message_format, with arguments as snprintf takes them. */
size_t message_write(char *to, size_t capacity, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Prints a formatted text of at most 16 KiB. Returns the number of bytes, or -1 if writing fails. */
int message_print(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends a text of several lines to the string in `to`, each line after "\n" MESSAGE_QUOTE. */
void message_quote(char *to, size_t capacity, const char *text);

/* Prints text [bytes] unchanged except for control characters other than newlines and tabs. Returns 0, or -1 if
 * writing fails. */
int message_print_text(FILE *file, const char *text, size_t bytes);
