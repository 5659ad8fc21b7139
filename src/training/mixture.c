#include "src/training/mixture.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is given */

static int fail_syntax(const char *text, const char *part, size_t length) {
    return error_set(
        "data_dir: there is no %s, and as a mixture FOLDER:WEIGHT,FOLDER:WEIGHT,... its part '%.*s' has "
        "no weight above 0 behind a colon, or no folder before it",
        text, (int)(length < 200 ? length : 200), part);
}

/* Adds the folder and the weight of "FOLDER:WEIGHT". */
static int add_part(const char *text, const char *part, size_t length, struct mixture *mixture) {
    char *copy = memory_string_part(part, length), *colon = strrchr(copy, ':'), *end = NULL;
    const char *digits = colon ? colon + 1 : "";
    const double weight = strtod(digits, &end);
    const bool is_number = *digits && digits[strspn(digits, "0123456789+-.eE")] == '\0' && *end == '\0';
    if (!colon || colon == copy || !is_number || !(weight > 0.0) || !isfinite(weight)) {
        free(copy);
        return fail_syntax(text, part, length);
    }
    *colon = '\0';
    mixture->parts[mixture->count++] = (struct mixture_part){.folder = copy, .share = weight};
    return 0;
}

static int add_parts(const char *text, struct mixture *mixture) {
    const char *part = text;
    double total = 0.0;
    for (size_t length; part; part = part[length] ? part + length + 1 : NULL) {
        length = strcspn(part, ",");
        if (mixture->count == MIXTURE_MOST) {
            return error_set("data_dir: a mixture has at most %d folders", MIXTURE_MOST);
        }
        if (add_part(text, part, length, mixture)) {
            return -1;
        }
    }
    for (size_t i = 0; i < mixture->count; i++) {
        total += mixture->parts[i].share;
    }
    for (size_t i = 0; i < mixture->count; i++) {
        mixture->parts[i].share /= total;
    }
    return isfinite(total) ? 0
                           : error_set("data_dir: the weights of the mixture add up to more than a number holds");
}

int mixture_parse(const char *text, struct mixture *mixture) {
    *mixture = (struct mixture){.parts = memory_zeroed(MIXTURE_MOST, sizeof *mixture->parts)};
    if (files_exist(text) || !strchr(text, ':')) {
        mixture->parts[0] = (struct mixture_part){.folder = memory_string(text), .share = 1.0};
        mixture->count = 1;
        return 0;
    }
    if (add_parts(text, mixture)) {
        mixture_close(mixture);
        return -1;
    }
    return 0;
}

/* ---- folders */

static bool have_one_vocabulary(const struct data_set *a, const struct data_set *b) {
    return a->vocab_size == b->vocab_size && strcmp(a->tokenizer, b->tokenizer) == 0 &&
           a->tokenizer_json_bytes == b->tokenizer_json_bytes &&
           (!a->tokenizer_json || memcmp(a->tokenizer_json, b->tokenizer_json, a->tokenizer_json_bytes) == 0);
}

static int open_part(struct mixture *mixture, size_t index, bool needs_val) {
    const struct mixture_part *first = mixture->parts;
    struct mixture_part *part = &mixture->parts[index];
    if (data_set_open(part->folder, needs_val, &part->data)) {
        return -1;
    }
    return have_one_vocabulary(&first->data, &part->data)
               ? 0
               : error_set("%s has %" PRId64 " tokens of the tokenizer \"%s\", and %s has %" PRId64
                           " of \"%s\": a mixture has one vocabulary, so prepare both with the same --tokenizer",
                           first->folder, first->data.vocab_size, first->data.tokenizer, part->folder,
                           part->data.vocab_size, part->data.tokenizer);
}

int mixture_open(const char *text, bool needs_val, struct mixture *mixture) {
    if (mixture_parse(text, mixture)) {
        return -1;
    }
    for (size_t i = 0; i < mixture->count; i++) {
        if (open_part(mixture, i, needs_val)) {
            mixture_close(mixture);
            return -1;
        }
    }
    return 0;
}

int mixture_read_meta(const char *text, struct data_set *data) {
    struct mixture mixture;
    if (mixture_parse(text, &mixture)) {
        return -1;
    }
    const int status = data_set_read_meta(mixture.parts->folder, data);
    mixture_close(&mixture);
    return status;
}

int mixture_check(const struct mixture *mixture) {
    for (size_t i = 0; i < mixture->count; i++) {
        if (data_set_check(&mixture->parts[i].data)) {
            return -1;
        }
    }
    return 0;
}

void mixture_close(struct mixture *mixture) {
    for (size_t i = 0; i < mixture->count; i++) {
        data_set_close(&mixture->parts[i].data);
        free(mixture->parts[i].folder);
    }
    free(mixture->parts);
    *mixture = (struct mixture){0};
}
