#include "src/corpus/markup_gcide.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum {
    MOST_LINE_BYTES = 1 << 16,
    MOST_PARAGRAPH_BYTES = 1 << 18,
    MOST_BRACKET_BYTES = 4096, /* from a bracket to the one that closes it, mostly an etymology */
    MOST_PRONUNCIATION_BYTES = 200,
    MOST_PARENTHESIS_BYTES = 80,
    MOST_ENTITY_BYTES = 8,
};

/* A part of a paragraph. */
struct part {
    const char *at;
    size_t bytes;
};

/* Where the bracket at text[0] is closed, brackets inside counted; 0 if it is not. */
static size_t closing(const char *text, size_t bytes, char open, char close, size_t most) {
    size_t depth = 0;
    for (size_t i = 0; i < bytes && i < most; i++) {
        depth += text[i] == open;
        if (text[i] == close && --depth == 0) {
            return i;
        }
    }
    return 0;
}

static bool has_byte(struct part part, char byte) {
    return memchr(part.at, byte, part.bytes) != NULL;
}

static bool is_blank(char byte) {
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\v' || byte == '\f';
}

/* ---- letters: [ae], ['e], [imac] */

/* The ASCII text for an entity, "" if it is none. `letters` has room for MOST_ENTITY_BYTES + 1. */
static const char *entity_text(struct part entity, char *letters) {
    static const char *const named[][2] = {
        {"ae", "ae"},       {"AE", "AE"},         {"oe", "oe"},       {"OE", "OE"},       {"imac", "i"},
        {"aum", "a"},       {"asl", "a"},         {"add", "a"},       {"udd", "u"},       {"eth", "th"},
        {"thorn", "th"},    {"yogh", "y"},        {"th", "th"},       {"ng", "ng"},       {"deg", " deg."},
        {"alpha", "alpha"}, {"beta", "beta"},     {"gamma", "gamma"}, {"delta", "delta"}, {"Delta", "Delta"},
        {"theta", "theta"}, {"phi", "phi"},       {"pi", "pi"},       {"tau", "tau"},     {"prime", "'"},
        {"bprime", "'"},    {"sect", "section "}, {"frac12", "1/2"},  {"frac14", "1/4"},  {"frac34", "3/4"},
    };
    if (entity.bytes > MOST_ENTITY_BYTES) {
        return "";
    }
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        if (strlen(named[i][0]) == entity.bytes && memcmp(named[i][0], entity.at, entity.bytes) == 0) {
            return named[i][1];
        }
    }
    size_t count = 0;
    for (size_t i = 0; i < entity.bytes; i++) {
        if (isalpha((unsigned char)entity.at[i])) {
            letters[count++] = entity.at[i];
        } else if (strchr("'\"`^~=.-,_*", entity.at[i]) == NULL) {
            return "";
        }
    }
    /* An accent and its letter or two; a letter and a point alone is an abbreviation: [R.], [F.]. */
    const bool abbreviation = entity.bytes > 0 && entity.at[entity.bytes - 1] == '.';
    letters[count] = '\0';
    return count == 0 || count > 2 || count == entity.bytes || abbreviation ? "" : letters;
}

/* ---- what is left out */

/* Words that editors put into quotations, "[They] were": no label, and the sentence goes on. */
static bool is_editorial(struct part content, const char *after, const char *end) {
    for (size_t i = 0; i < content.bytes; i++) {
        if (!isalpha((unsigned char)content.at[i]) && content.at[i] != ' ' && content.at[i] != '\'') {
            return false;
        }
    }
    return end - after >= 2 && after[0] == ' ' && islower((unsigned char)after[1]);
}

/* "(l[.a]mz)", "(?; 277)", "(-n[=e])": what stands in parentheses beside a headword to say how it is spoken. */
static bool is_pronunciation(struct part content, bool is_head) {
    bool only_gaps = true;
    for (size_t i = 0; i < content.bytes && only_gaps; i++) {
        only_gaps = strchr("?;, 0123456789", content.at[i]) != NULL && content.at[i] != '\0';
    }
    if (only_gaps && has_byte(content, '?')) {
        return true;
    }
    const bool accents = has_byte(content, '[') || has_byte(content, '"');
    const bool several_words = has_byte(content, ' ') && !has_byte(content, ';');
    if (is_head) {
        return has_byte(content, '*') || has_byte(content, '`') || (accents && !several_words) ||
               (!several_words && has_byte(content, '?'));
    }
    return accents && has_byte(content, '*');
}

/* A bracket that names the source of what is before it. */
static bool is_source(struct part content) {
    static const char *const words[] = {"1913", "Webster", "WordNet", "PJC", "Century", "RDH", "RHUD", "AS", "MW"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const size_t length = strlen(words[i]);
        if (content.bytes >= length && memcmp(content.at, words[i], length) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- a paragraph */

/* Takes out the blank before a point that ends a word: "Laminas ." */
static void close_point(struct text_buffer *out, size_t begin) {
    if (out->size >= begin + 2 && memcmp(out->bytes + out->size - 2, " .", 2) == 0) {
        out->size--;
        out->bytes[out->size - 1] = '.';
    }
}

/* Appends text so that blanks do not run, and none are before closing punctuation. */
static int put(struct text_buffer *out, size_t begin, const char *text, size_t bytes) {
    if (text_reserve(out, bytes) != 0) {
        return -1;
    }
    for (size_t i = 0; i < bytes; i++) {
        const char byte = is_blank(text[i]) ? ' ' : text[i];
        if (byte == ' ') {
            close_point(out, begin);
        }
        const bool at_begin = out->size == begin;
        const char last = at_begin ? ' ' : out->bytes[out->size - 1];
        if (byte == ' ' && (last == ' ' || last == '(')) {
            continue;
        }
        if (strchr(",;:!?)", byte) != NULL && last == ' ' && !at_begin) {
            out->size--;
        }
        if (byte == ',' && out->size > begin && out->bytes[out->size - 1] == ',') {
            continue; /* something between two commas was left out */
        }
        out->bytes[out->size++] = byte;
    }
    return 0;
}

/* Writes a reference without the marks of its syllables: {Di*chot"o*mous*ly}. */
static int put_reference(struct text_buffer *out, size_t begin, struct part name) {
    const bool syllables = has_byte(name, '*') || has_byte(name, '"');
    for (size_t i = 0; i < name.bytes; i++) {
        if ((!syllables || strchr("*\"`", name.at[i]) == NULL) && put(out, begin, name.at + i, 1) != 0) {
            return -1;
        }
    }
    return 0;
}

/* Handles the markup at text[0], if there is some; *taken bytes are done, 0 if it is plain text. */
static int put_markup(struct text_buffer *out, size_t begin, const char *text, size_t bytes, bool is_head,
                      size_t *taken) {
    char letters[MOST_ENTITY_BYTES + 1];
    size_t end;
    *taken = 1;
    switch (*text) {
    case '\\': {
        const size_t most = bytes - 1 < MOST_PRONUNCIATION_BYTES ? bytes - 1 : MOST_PRONUNCIATION_BYTES;
        const char *close = is_head ? memchr(text + 1, '\\', most) : NULL;
        *taken = close != NULL ? (size_t)(close - text) + 1 : 1;
        return 0;
    }
    case '[': {
        end = closing(text, bytes, '[', ']', MOST_BRACKET_BYTES);
        if (end == 0) {
            return 0;
        }
        const struct part content = {text + 1, end - 1};
        *taken = end + 1;
        const char *letter = entity_text(content, letters);
        if (*letter == '\0' && !is_head && is_editorial(content, text + end + 1, text + bytes)) {
            return put(out, begin, text, end + 1);
        }
        return put(out, begin, letter, strlen(letter));
    }
    case '(':
        end = closing(text, bytes, '(', ')', MOST_PARENTHESIS_BYTES);
        *taken = end > 0 && is_pronunciation((struct part){text + 1, end - 1}, is_head) ? end + 1 : 0;
        return 0;
    case '{':
        end = closing(text, bytes, '{', '}', MOST_PARENTHESIS_BYTES);
        if (end > 0 && memchr(text, '[', end) == NULL) {
            *taken = end + 1;
            return put_reference(out, begin, (struct part){text + 1, end - 1});
        }
        return 0;
    case '}':
    case ']':
        return 0;
    default:
        *taken = 0;
        return 0;
    }
}

/* Writes the paragraph as one line, if anything is left of it. */
static int flush_paragraph(struct markup_gcide *markup, struct text_buffer *out) {
    const char *text = markup->paragraph.bytes;
    const size_t bytes = markup->paragraph.size;
    const bool is_head = markup->is_head;
    markup->paragraph.size = 0;
    markup->is_head = false;
    if (bytes == 0) {
        return 0;
    }
    const size_t before = out->size;
    if (is_head && markup->wrote_entry && text_append(out, "\n", 1) != 0) {
        return -1;
    }
    const size_t begin = out->size;
    for (size_t i = 0; i < bytes;) {
        size_t taken = 0;
        if (put_markup(out, begin, text + i, bytes - i, is_head, &taken) != 0 ||
            (taken == 0 && put(out, begin, text + i, 1) != 0)) {
            return -1;
        }
        i += taken > 0 ? taken : 1;
    }
    close_point(out, begin);
    bool has_letters = false;
    for (size_t i = begin; i < out->size && !has_letters; i++) {
        has_letters = isalnum((unsigned char)out->bytes[i]);
    }
    while (out->size > begin && out->bytes[out->size - 1] == ' ') {
        out->size--;
    }
    if (!has_letters) {
        out->size = before;
        return 0;
    }
    markup->wrote_entry = true;
    return text_append(out, "\n", 1);
}

/* ---- lines */

/* Ends the paragraph where an entry begins, and appends the line to the paragraph. */
static int take_text(struct markup_gcide *markup, const char *text, size_t bytes, bool begins_entry,
                     struct text_buffer *out) {
    if (begins_entry) {
        if (flush_paragraph(markup, out) != 0) {
            return -1;
        }
        markup->is_head = true;
        markup->in_entries = true;
    }
    if (!markup->in_entries) {
        return 0;
    }
    if (markup->paragraph.size > MOST_PARAGRAPH_BYTES && flush_paragraph(markup, out) != 0) {
        return -1;
    }
    return text_append(&markup->paragraph, text, bytes) != 0 ? -1 : text_append(&markup->paragraph, " ", 1);
}

/* Whether the lines so far end between the backslashes around a pronunciation. */
static bool is_spelling_open(const struct markup_gcide *markup) {
    size_t backslashes = 0;
    for (size_t i = 0; markup->is_head && i < markup->paragraph.size; i++) {
        backslashes += markup->paragraph.bytes[i] == '\\';
    }
    return backslashes % 2 != 0;
}

static int take_line(struct markup_gcide *markup, const char *line, size_t bytes, struct text_buffer *out) {
    size_t indent = 0;
    while (bytes > 0 && is_blank(line[bytes - 1])) {
        bytes--;
    }
    while (indent < bytes && is_blank(line[indent])) {
        indent++;
    }
    bytes -= indent;
    if (bytes == 0) { /* line may be NULL then */
        return flush_paragraph(markup, out);
    }
    const char *text = line + indent;
    const size_t end = *text == '[' ? closing(text, bytes, '[', ']', MOST_BRACKET_BYTES) : 0;
    if (end > 0 && is_source((struct part){text + 1, end - 1})) {
        /* What follows a source goes on, begins an entry, or is a headword that was left there twice. */
        size_t skip = end + 1;
        while (skip < bytes && is_blank(text[skip])) {
            skip++;
        }
        text += skip;
        bytes -= skip;
        const bool is_entry = bytes > 0 && memchr(text, '\\', bytes) != NULL;
        if (bytes == 0 || (!is_entry && strchr("-([{\"", *text) == NULL)) {
            return 0;
        }
        return take_text(markup, text, bytes, is_entry && isalnum((unsigned char)*text), out);
    }
    const bool begins_entry = indent == 0 && !is_spelling_open(markup) && *text != '\\' && *text != '(' &&
                              memchr(text, '\\', bytes) != NULL;
    return take_text(markup, text, bytes, begins_entry, out);
}

int markup_gcide_add(struct markup_gcide *markup, const char *data, size_t bytes, struct text_buffer *out) {
    struct text_buffer *line = &markup->line;
    while (bytes > 0) {
        const char *end = memchr(data, '\n', bytes);
        const size_t length = end != NULL ? (size_t)(end - data) : bytes;
        if (text_append(line, data, length) != 0) {
            return -1;
        }
        data += length + (end != NULL);
        bytes -= length + (end != NULL);
        if (end != NULL || line->size > MOST_LINE_BYTES) {
            if (take_line(markup, line->bytes, line->size, out) != 0) {
                return -1;
            }
            line->size = 0;
        }
    }
    return 0;
}

int markup_gcide_finish(struct markup_gcide *markup, struct text_buffer *out) {
    if (take_line(markup, markup->line.bytes, markup->line.size, out) != 0) {
        return -1;
    }
    markup->line.size = 0;
    return flush_paragraph(markup, out);
}

void markup_gcide_free(struct markup_gcide *markup) {
    text_free(&markup->line);
    text_free(&markup->paragraph);
}
