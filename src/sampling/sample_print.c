#include "src/sampling/sample_print.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/message.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct printed_sample {
    struct sample_text text;
    bool complete;
};

int sample_printer_create(struct sample_printer *printer, FILE *file, const struct tokenizer *tokenizer,
                          const char *prompt, size_t prompt_bytes, const char *stop, int64_t side_by_side) {
    *printer = (struct sample_printer){.file = file,
                                       .tokenizer = tokenizer,
                                       .prompt = prompt,
                                       .prompt_bytes = prompt_bytes,
                                       .samples = calloc((size_t)side_by_side, sizeof *printer->samples),
                                       .side_by_side = side_by_side,
                                       .terminal = isatty(fileno(file)) == 1};
    if (!printer->samples) {
        return error_set("out of memory");
    }
    for (int64_t i = 0; i < side_by_side; i++) {
        printer->samples[i].text.stop = stop;
        printer->samples[i].text.utf8 = printer->terminal || strcmp(tokenizer_name(tokenizer), "byte") != 0;
    }
    return 0;
}

void sample_printer_release(struct sample_printer *printer) {
    for (int64_t i = 0; printer->samples && i < printer->side_by_side; i++) {
        sample_text_free(&printer->samples[i].text);
    }
    free(printer->samples);
    *printer = (struct sample_printer){0};
}

/* Numbers side by side follow each other. */
static struct printed_sample *find(struct sample_printer *printer, int64_t number) {
    return &printer->samples[number % printer->side_by_side];
}

static void print_bytes(const struct sample_printer *printer, const char *bytes, size_t count) {
    if (printer->terminal) {
        message_print_text(printer->file, bytes, count);
    } else if (count) { /* else there may be no address */
        fwrite(bytes, 1, count, printer->file);
    }
}

/* What the current sample has ready. A failed write is found by files_flush. */
static int print_current(struct sample_printer *printer) {
    struct text_buffer *ready = &find(printer, printer->current)->text.ready;
    if (!printer->begun) {
        fputs(printer->current > 0 ? "---------------\n" : "", printer->file);
        print_bytes(printer, printer->prompt, printer->prompt_bytes);
        printer->begun = true;
    }
    print_bytes(printer, ready->bytes, ready->size);
    text_drop(ready, ready->size);
    return files_flush(printer->file, "the text");
}

/* The current sample is complete: the next one's turn. */
static void turn(struct sample_printer *printer) {
    struct printed_sample *sample = find(printer, printer->current++);
    fputc('\n', printer->file);
    printer->begun = false;
    sample_text_free(&sample->text);
    sample->text.stopped = sample->complete = false;
}

static int add_token(void *context, int64_t number, int32_t token) {
    struct sample_printer *printer = context;
    struct printed_sample *sample = find(printer, number);
    size_t count = 0;
    const char *bytes = tokenizer_bytes(printer->tokenizer, (uint32_t)token, &count);
    if (!bytes) {
        return error_set("token %" PRId32 " has no text", token);
    }
    if (sample_text_add(&sample->text, bytes, count) || (number == printer->current && print_current(printer))) {
        return -1;
    }
    return sample->text.stopped;
}

static int end_sample(void *context, int64_t number) {
    struct sample_printer *printer = context;
    if (sample_text_end(&find(printer, number)->text)) {
        return -1;
    }
    find(printer, number)->complete = true;
    while (find(printer, printer->current)->complete) {
        if (print_current(printer)) {
            return -1;
        }
        turn(printer);
    }
    return files_flush(printer->file, "the text");
}

struct sample_sink sample_printer_sink(struct sample_printer *printer) {
    return (struct sample_sink){.token = add_token, .end = end_sample, .context = printer};
}
