/* Errors as values: a function that can fail returns 0 or -1 and leaves a message here; mains print it and exit.
 * Foreign text may be passed for %s, since it is escaped as message.h describes. There is one message per thread,
 * with the innermost cause last: "cannot load checkpoint out/ckpt-10: model.safetensors: ...".
 */
#pragma once

#include "runtime/system/array.h"

/* Replaces the message by the formatted text. Returns -1, so that callers write `return error_set(...)`. */
int error_set(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Puts "<formatted text>: " before the message, to name the operation that failed. Returns -1. */
int error_prefix(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* As error_set, with ": <strerror(errno)>" appended. errno is read on entry. Returns -1. */
int error_set_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Appends a text of several lines, such as a compiler's log, each marked as a quotation. Returns -1. */
int error_quote(const char *lines);

/* Replaces `from` by `to` everywhere in the message. Returns -1. */
int error_replace(const char *from, const char *to);

/* The message of the last failure on this thread, "" when none. Valid until the next call here. */
const char *error_text(void);

void error_clear(void);

/* For clean-up after a failure, which may fail too and must not replace the message:
 *   char *kept = error_keep();
 *   ...
 *   return error_restore(kept);
 * error_keep copies the message. error_restore sets it again, frees the copy and returns -1. */
char *error_keep(void);
int error_restore(char *kept);
