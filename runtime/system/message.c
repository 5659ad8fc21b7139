#include "runtime/system/message.h"
#include "runtime/system/utf8.h"
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

/* The end of the first line of a message: before the next quoted one, or of all. */
static const char *line_end(const char *text, size_t bytes) {
    const char *end = memmem(text, bytes, "\n" MESSAGE_QUOTE, sizeof("\n" MESSAGE_QUOTE) - 1);
    return end != NULL ? end : text + bytes;
}

static void put_shown(struct target *to, const char *text, size_t bytes) {
    for (const char *stop = text + bytes; text < stop;) {
        const char *end = line_end(text, (size_t)(stop - text));
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

/* What stands between a % and its letter. */
struct conversion {
    char flags[8];
    int width, precision; /* precision -1: none */
    char length[3];       /* "", "hh", "h", "l", "ll", "z", "j" */
    char letter;
};

/* Reads digits, or an asterisk, for which the argument stands. */
static const char *read_number(const char *at, va_list *arguments, int *number) {
    if (*at == '*') {
        *number = va_arg(*arguments, int);
        return at + 1;
    }
    char *end;
    *number = (int)strtol(at, &end, 10);
    return end;
}

/* Behind the %; gives what is behind the letter. */
static const char *read_conversion(const char *at, va_list *arguments, struct conversion *found) {
    *found = (struct conversion){.precision = -1};
    for (size_t i = 0; *at != '\0' && strchr("-+ #0", *at) != NULL; at++) {
        if (i + 2 < sizeof found->flags) {
            found->flags[i++] = *at;
        }
    }
    at = read_number(at, arguments, &found->width);
    if (*at == '.') {
        at = read_number(at + 1, arguments, &found->precision);
    }
    for (size_t i = 0; *at != '\0' && strchr("hlzj", *at) != NULL; at++) {
        if (i + 1 < sizeof found->length) {
            found->length[i++] = *at;
        }
    }
    found->letter = *at;
    return *at != '\0' ? at + 1 : at;
}

/* The next argument, of the size that the length modifier of its conversion says; sign-extended if is_signed. */
static uintmax_t take_integer(const char *length, bool is_signed, va_list *arguments) {
    const size_t bytes = strcmp(length, "ll") == 0  ? sizeof(long long)
                         : strcmp(length, "l") == 0 ? sizeof(long)
                         : *length == 'z'           ? sizeof(size_t)
                         : *length == 'j'           ? sizeof(intmax_t)
                                                    : sizeof(int);
    if (bytes == sizeof(uint64_t)) {
        return va_arg(*arguments, uint64_t);
    }
    const unsigned value = va_arg(*arguments, unsigned);
    return is_signed ? (uintmax_t)(int)value : value;
}

static void put_string(struct target *to, const struct conversion *as, const char *text, size_t bytes) {
    const size_t before = to->length, width = (size_t)abs(as->width);
    const bool left = as->width < 0 || strchr(as->flags, '-') != NULL;
    put_shown(to, text, bytes);
    for (size_t length = to->length - before; length < width && to->length + 1 < to->capacity; length++) {
        put(to, " ", 1);
        if (!left) {
            memmove(to->text + before + 1, to->text + before, to->length - before - 1);
            to->text[before] = ' ';
        }
    }
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* made of what the compiler has checked */
static void put_argument(struct target *to, const struct conversion *as, va_list *arguments) {
    const bool number = strchr("diuxXo", as->letter) != NULL;
    char form[24], text[512] = "";
    snprintf(form, sizeof form, "%%%s*.*%s%c", as->flags, number ? "j" : "", as->letter);
    if (as->letter == 's') {
        const char *string = va_arg(*arguments, const char *);
        string = string != NULL ? string : "(null)";
        put_string(to, as, string, strnlen(string, as->precision < 0 ? SIZE_MAX : (size_t)as->precision));
    } else if (as->letter == 'c') {
        *text = (char)va_arg(*arguments, int);
        put_string(to, as, text, 1);
    } else if (as->letter == '%') {
        put(to, "%", 1);
    } else if (number) {
        snprintf(text, sizeof text, form, as->width, as->precision,
                 take_integer(as->length, strchr("di", as->letter) != NULL, arguments));
    } else {
        snprintf(text, sizeof text, form, as->width, as->precision, va_arg(*arguments, double));
    }
    if (number || strchr("sc%", as->letter) == NULL) {
        put(to, text, strlen(text));
    }
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
            struct conversion conversion;
            format = read_conversion(format + 1, &own, &conversion);
            put_argument(&target, &conversion, &own);
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
