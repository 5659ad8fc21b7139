/* Text for a reader at a terminal, with text of others in it: names of files and tensors, what a device calls itself, what a
 * compiler has to say. Whatever a message takes in by %s or %c is shown, never obeyed: control characters and what is not UTF-8
 * are written as \n, \r, \x1b, \u202e, and the middle of a long line is left out. So no name moves the cursor, or makes up a
 * line. error.h's messages are made so; all else that programs print for people goes through message_print, to which ci/calls.py
 * holds the sources. */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

/* Begins the lines of a quoted text. A line's end before it is taken as it is, so that a message may be part of another. */
#define MESSAGE_QUOTE "  | "

/* As vsnprintf, for the conversions d, i, u, x, X, o, c, s, e, f, g, a and %, with the length of what is in `to`, less than
 * room > 0. %s of NULL is "(null)". */
size_t message_format(char *to, size_t room, const char *format, va_list arguments)
    __attribute__((format(printf, 3, 0)));

/* The same of arguments, as snprintf. */
size_t message_write(char *to, size_t room, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Prints a formatted text of at most 16 KiB: how many bytes, or -1 where that fails. */
int message_print(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends a text of several lines to the string in `to`, each of them behind "\n" MESSAGE_QUOTE. */
void message_quote(char *to, size_t room, const char *text);

/* Prints text [bytes] as it is but for control characters other than the ends of its lines and tabs. 0, or -1. */
int message_print_text(FILE *file, const char *text, size_t bytes);
