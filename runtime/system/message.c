#include "runtime/system/message.h"
#include "runtime/system/utf8.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PRINT_BYTES = 1 << 14, MOST_LINE = 2000, FIRST_OF_LONG = 1500, LAST_OF_LONG = 400 };

/* A string that grows up to its capacity. */
struct target {
    char *text;
    size_t capacity, length;
};

static void put(struct target *to, const char *text, size_t bytes) {
    const size_t left = to->capacity - 1 - to->length, count = bytes < left ? bytes : left;
    memcpy(to->text + to->length, text, count);
    to->length += count;
    to->text[to->length] = '\0';
}

/* ---- text of others */

enum { ESCAPED_BYTES = 16 };

/* Writes the first character of text [bytes > 0] as it is shown; the bytes that it has taken. */
static size_t escape(const char *text, size_t bytes, char escaped[ESCAPED_BYTES]) {
    uint32_t character = 0;
    const size_t length = utf8_decode(text, bytes, &character);
    if (length == 0) {
        snprintf(escaped, ESCAPED_BYTES, "\\x%02x", (unsigned char)*text);
        return 1;
    }
    if (character == '\n' || character == '\r') {
        strcpy(escaped, character == '\n' ? "\\n" : "\\r");
    } else if (utf8_is_control(character) && character != '\t') {
        snprintf(escaped, ESCAPED_BYTES, character < 0x100 ? "\\x%02x" : "\\u%04x", (unsigned)character);
    } else {
        memcpy(escaped, text, length);
        escaped[length] = '\0';
    }
    return length;
}

static void put_all(struct target *to, const char *text, size_t bytes) {
    char escaped[ESCAPED_BYTES];
    while (bytes > 0 && to->length + 1 < to->capacity) {
        const size_t taken = escape(text, bytes, escaped);
        put(to, escaped, strlen(escaped));
        text += taken;
        bytes -= taken;
    }
}

static void put_line(struct target *to, const char *text, size_t bytes) {
    if (bytes <= MOST_LINE) {
        put_all(to, text, bytes);
        return;
    }
    const char *last = text + bytes - LAST_OF_LONG;
    while (((unsigned char)*last & 0xc0) == 0x80 && last > text + FIRST_OF_LONG) {
        last--; /* to the beginning of its character */
    }
    put_all(to, text, utf8_complete(text, FIRST_OF_LONG));
    put(to, " ... ", 5);
    put_all(to, last, (size_t)(text + bytes - last));
}

/* A message's own lines end before the next quoted one. */
static void put_shown(struct target *to, const char *text, size_t bytes) {
    for (const char *stop = text + bytes; text < stop;) {
        const char *end = memmem(text, (size_t)(stop - text), "\n" MESSAGE_QUOTE, sizeof("\n" MESSAGE_QUOTE) - 1);
        end = end != NULL ? end : stop;
        put_line(to, text, (size_t)(end - text));
        text = end;
        if (text < stop) {
            put(to, text++, 1);
        }
    }
}

void message_quote(char *to, size_t capacity, const char *text) {
    struct target target = {.text = to, .capacity = capacity, .length = strlen(to)};
    while (*text != '\0') {
        const size_t length = strcspn(text, "\n");
        put(&target, "\n" MESSAGE_QUOTE, sizeof("\n" MESSAGE_QUOTE) - 1);
        put_line(&target, text, length > 0 && text[length - 1] == '\r' ? length - 1 : length);
        text += length + (text[length] == '\n');
    }
}

int message_print_text(FILE *file, const char *text, size_t bytes) {
    char escaped[ESCAPED_BYTES];
    while (bytes > 0) {
        const size_t taken = *text == '\n' ? 1 : escape(text, bytes, escaped);
        if ((*text == '\n' ? fputc('\n', file) : fputs(escaped, file)) == EOF) {
            return -1;
        }
        text += taken;
        bytes -= taken;
    }
    return 0;
}

/* ---- conversions */

enum { FORM_BYTES = 64 };

/* A negative width is that of a text with blanks behind it. */
static void put_string(struct target *to, int width, const char *text, size_t bytes) {
    const size_t before = to->length;
    put_shown(to, text, bytes);
    for (size_t length = to->length - before; length < (size_t)abs(width) && to->length + 1 < to->capacity;
         length++) {
        put(to, " ", 1);
        if (width > 0) {
            memmove(to->text + before + 1, to->text + before, to->length - before - 1);
            to->text[before] = ' ';
        }
    }
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* made of what the compiler has checked */
static void put_argument(struct target *to, const char *form, va_list *arguments) {
    const char letter = form[strlen(form) - 1], *point = strchr(form, '.');
    const int width = atoi(form + 1);
    const bool is_long = strstr(form, "ll") != NULL || strchr(form, 'j') != NULL ||
                         (sizeof(long) == sizeof(uint64_t) && form[strcspn(form, "lz")] != '\0');
    char text[512] = "";
    if (letter == 's') {
        const char *string = va_arg(*arguments, const char *);
        string = string != NULL ? string : "(null)";
        put_string(to, width, string, strnlen(string, point != NULL ? strtoul(point + 1, NULL, 10) : SIZE_MAX));
        return;
    }
    if (letter == 'c') {
        *text = (char)va_arg(*arguments, int);
        put_string(to, width, text, 1);
        return;
    }
    if (letter == '%') {
        *text = '%';
    } else if (strchr("diuxXo", letter) == NULL) {
        snprintf(text, sizeof text, form, va_arg(*arguments, double));
    } else if (is_long) {
        snprintf(text, sizeof text, form, va_arg(*arguments, uint64_t));
    } else {
        snprintf(text, sizeof text, form, va_arg(*arguments, unsigned));
    }
    put(to, text, strlen(text));
}
#pragma GCC diagnostic pop

size_t message_format(char *to, size_t capacity, const char *format, va_list arguments) {
    struct target target = {.text = to, .capacity = capacity};
    va_list own;
    va_copy(own, arguments);
    *to = '\0';
    while (*format != '\0') {
        const size_t plain = strcspn(format, "%");
        put(&target, format, plain);
        format += plain;
        if (*format == '%') {
            /* the conversion, with numbers in place of asterisks */
            char form[FORM_BYTES];
            size_t used = 0;
            do {
                used += (size_t)(*format == '*' ? snprintf(form + used, FORM_BYTES - used, "%d", va_arg(own, int))
                                                : snprintf(form + used, FORM_BYTES - used, "%c", *format));
            } while (strchr("diuxXocsefgEGa%", *++format) == NULL && used + 16 < FORM_BYTES);
            snprintf(form + used, FORM_BYTES - used, "%c", *format);
            put_argument(&target, form, &own);
            format += *format != '\0';
        }
    }
    va_end(own);
    return target.length;
}

size_t message_write(char *to, size_t capacity, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const size_t length = message_format(to, capacity, format, arguments);
    va_end(arguments);
    return length;
}

int message_print(FILE *file, const char *format, ...) {
    char text[PRINT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    const size_t length = message_format(text, sizeof text, format, arguments);
    va_end(arguments);
    return fputs(text, file) < 0 ? -1 : (int)length;
}

struct message_count message_count(int64_t number, const char *noun) {
    struct message_count count;
    snprintf(count.text, sizeof count.text, "%" PRId64 " %.32s%s", number, noun, number == 1 ? "" : "s");
    return count;
}
