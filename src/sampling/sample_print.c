#include "src/sampling/sample_print.h"
#include "runtime/files/files.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "runtime/system/utf8.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one sample */

/* Where the stop text begins that is complete first, of several the longest; `size` if there is none. */
static size_t find_stop(const struct text_buffer *held, const struct option_texts *stops) {
    size_t first = held->size, end = SIZE_MAX;
    for (size_t i = 0; stops && held->size && i < stops->count; i++) {
        const size_t length = strlen(stops->texts[i]);
        const char *found = length ? memmem(held->bytes, held->size, stops->texts[i], length) : NULL;
        const size_t at = found ? (size_t)(found - held->bytes) : 0;
        if (found && (at + length < end || (at + length == end && at < first))) {
            first = at;
            end = at + length;
        }
    }
    return first;
}

/* Bytes at the end that some stop text may begin with. */
static size_t begun_stop(const struct text_buffer *held, const struct option_texts *stops) {
    size_t most = 0;
    for (size_t i = 0; stops && i < stops->count; i++) {
        const size_t length = strlen(stops->texts[i]);
        size_t begun = length < held->size ? length : held->size;
        while (begun > most && memcmp(held->bytes + held->size - begun, stops->texts[i], begun) != 0) {
            begun--;
        }
        most = begun > most ? begun : most;
    }
    return most;
}

/* Moves the first `count` held bytes to `ready`, but, unless it is the end, what may become a character. */
static void release(struct sample_text *text, size_t count, bool end) {
    const size_t done = text->utf8 && !end ? utf8_complete(text->held.bytes, count) : count;
    if (text->utf8) {
        text_append_utf8(&text->ready, text->held.bytes, done);
    } else {
        text_append(&text->ready, text->held.bytes, done);
    }
    text_drop(&text->held, done);
}

void sample_text_add(struct sample_text *text, const char *bytes, size_t count) {
    struct text_buffer *held = &text->held;
    if (text->stopped) {
        return;
    }
    text_append(held, bytes, count);
    const size_t size = held->size;
    held->size = find_stop(held, text->stops);
    text->stopped = held->size < size;
    release(text, held->size - (text->stopped ? 0 : begun_stop(held, text->stops)), text->stopped);
}

void sample_text_end(struct sample_text *text) {
    if (!text->stopped) {
        release(text, text->held.size, true);
    }
}

void sample_text_free(struct sample_text *text) {
    text_free(&text->held);
    text_free(&text->ready);
}

/* ---- samples side by side */

/* Numbers side by side follow each other. */
static struct sample_text *find(struct sample_printer *printer, int64_t number) {
    return &printer->samples[number % printer->side_by_side];
}

static void print_bytes(const struct sample_printer *printer, const char *bytes, size_t count) {
    if (printer->terminal) {
        message_print_text(printer->file, bytes, count);
    } else if (count) { /* else there may be no address */
        fwrite(bytes, 1, count, printer->file);
    }
}

/* Prints what is ready of the current sample. A failed write is found by files_flush. */
static int print_current(struct sample_printer *printer) {
    struct text_buffer *ready = &find(printer, printer->current)->ready;
    if (!printer->begun) {
        fputs(printer->current > 0 ? "---------------\n" : "", printer->file);
        print_bytes(printer, printer->prompt, printer->prompt_bytes);
        printer->begun = true;
    }
    print_bytes(printer, ready->bytes, ready->size);
    text_drop(ready, ready->size);
    return files_flush(printer->file, "the text");
}

static int add_token(void *context, int64_t number, int32_t token) {
    struct sample_printer *printer = context;
    struct sample_text *text = find(printer, number);
    size_t count = 0;
    const char *bytes = tokenizer_bytes(printer->tokenizer, (uint32_t)token, &count);
    sample_text_add(text, bytes, count);
    return number == printer->current && print_current(printer) ? -1 : text->stopped;
}

static int end_sample(void *context, int64_t number) {
    struct sample_printer *printer = context;
    sample_text_end(find(printer, number));
    find(printer, number)->complete = true;
    while (find(printer, printer->current)->complete) {
        struct sample_text *text = find(printer, printer->current);
        if (print_current(printer)) {
            return -1;
        }
        fputc('\n', printer->file);
        printer->begun = false;
        printer->current++; /* the next sample that takes this place begins empty */
        sample_text_free(text);
        text->stopped = text->complete = false;
    }
    return files_flush(printer->file, "the text");
}

void sample_printer_create(struct sample_printer *printer, FILE *file, const struct tokenizer *tokenizer,
                           const char *prompt, size_t prompt_bytes, const struct option_texts *stops,
                           int64_t side_by_side) {
    *printer = (struct sample_printer){.sink = {.token = add_token, .end = end_sample, .context = printer},
                                       .file = file,
                                       .tokenizer = tokenizer,
                                       .prompt = prompt,
                                       .prompt_bytes = prompt_bytes,
                                       .samples = memory_zeroed((size_t)side_by_side, sizeof *printer->samples),
                                       .side_by_side = side_by_side,
                                       .terminal = isatty(fileno(file)) == 1};
    for (int64_t i = 0; i < side_by_side; i++) {
        printer->samples[i].stops = stops;
        printer->samples[i].utf8 = printer->terminal || strcmp(tokenizer_name(tokenizer), "byte") != 0;
    }
}

void sample_printer_release(struct sample_printer *printer) {
    for (int64_t i = 0; i < printer->side_by_side; i++) {
        sample_text_free(&printer->samples[i]);
    }
    free(printer->samples);
    *printer = (struct sample_printer){0};
}
