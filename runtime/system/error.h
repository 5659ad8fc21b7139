/* Errors as values: a function that can fail returns 0 or -1 and leaves a message here; mains print it and exit.
 * What a format's %s takes in is shown as message.h describes, so names and other text of anyone's may be put in as they are.
 * One message per thread, the innermost cause last: "cannot load checkpoint out/ckpt-10: model.safetensors: ...".
 */
#pragma once

/* Replaces the message by the formatted text. Returns -1, so that callers write `return error_set(...)`. */
int error_set(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Puts "<formatted text>: " before the message, to say what was being done. Returns -1. */
int error_prefix(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* As error_set, with ": <strerror(errno)>" appended. errno is read on entry. Returns -1. */
int error_set_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Appends a text of several lines, such as a compiler's log, which the message's own lines can be told from. Returns -1. */
int error_quote(const char *lines);

/* Puts `to` wherever the message has `from`, such as a name that says nothing to people. Returns -1. */
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
