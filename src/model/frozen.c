#include "src/model/frozen.h"
#include "runtime/device/compute.h"
#include "runtime/system/error.h"
#include <regex.h>
#include <stdbool.h>
#include <string.h>

enum { MOST_PATTERN_BYTES = 1000 };

static bool has_back_reference(const char *pattern) {
    for (const char *at = strchr(pattern, '\\'); at && at[1]; at = strchr(at + 2, '\\')) {
        if (at[1] >= '0' && at[1] <= '9') {
            return true;
        }
    }
    return false;
}

/* Numbers of repetitions would multiply when they are nested, and a few back references take minutes. Names of
 * parameters need neither. */
static int compile(const char *pattern, regex_t *compiled) {
    char reason[128];
    if (strlen(pattern) > MOST_PATTERN_BYTES || strchr(pattern, '{') || has_back_reference(pattern)) {
        return error_set("freeze: a pattern has at most %d bytes, no braces, and no references such as \\1",
                         MOST_PATTERN_BYTES);
    }
    const int code = regcomp(compiled, pattern, REG_EXTENDED | REG_NOSUB);
    if (code == 0) {
        return 0;
    }
    regerror(code, compiled, reason, sizeof reason);
    return error_set("freeze = %s is no regular expression: %s", pattern, reason);
}

/* A layer is frozen if its weight is, with its bias and what is joined to them, which follow in the table. Its
 * weights are untrained then. */
static void mark_linear(struct parameters *parameters, struct linear *linear) {
    struct parameter *end = parameters->table + parameters->count, *first = parameters->table, *next;
    while (first->home != &linear->weight_at) {
        first++;
    }
    linear->frozen = first->frozen;
    for (next = first + 1; next < end && (next->home == &linear->bias_at || next->joined); next++) {
        linear->frozen &= next->frozen;
    }
    for (; first < next; first++) {
        first->untrained = linear->frozen && first->narrow;
    }
}

/* Embeddings, and the head's weights. */
static bool is_table(const struct parameters *parameters, const struct parameter *parameter) {
    return parameter->home == &parameters->token_embedding || parameter->home == &parameters->position_embedding ||
           parameter->home == &parameters->head;
}

int frozen_mark(struct parameters *parameters, const char *pattern) {
    const int64_t top = parameters->table[parameters->count - 1].sublayer;
    regex_t compiled;
    size_t frozen = 0;
    if (!pattern || !*pattern) {
        return 0;
    }
    if (compile(pattern, &compiled)) {
        return -1;
    }
    for (size_t i = 0; i < parameters->count; i++) {
        struct parameter *parameter = &parameters->table[i];
        parameter->frozen = regexec(&compiled, parameter->name, 0, NULL, 0) == 0;
        frozen += parameter->frozen;
        parameter->untrained = parameter->frozen && is_table(parameters, parameter);
    }
    regfree(&compiled);
    if (frozen == 0 || frozen == parameters->count) {
        return error_set("freeze = %s matches %s: %s", pattern, frozen ? "all parameters" : "no parameter",
                         frozen ? "nothing would be trained"
                                : "names are like transformer.wte.weight and transformer.h.0.attn.c_attn.weight");
    }
    for (int64_t i = 0; i < top; i++) {
        mark_linear(parameters, &parameters->sublayers[i].in);
        mark_linear(parameters, &parameters->sublayers[i].out);
    }
    parameters_place(parameters);
    return 0;
}

int frozen_check(const struct model_config *config, const char *pattern) {
    struct parameters parameters;
    parameters_create(config, &parameters);
    const int status = frozen_mark(&parameters, pattern);
    parameters_release(&parameters);
    return status;
}

uint64_t frozen_elements(const struct parameters *parameters) {
    uint64_t elements = 0;
    for (size_t i = 0; i < parameters->count; i++) {
        elements += parameters->table[i].frozen ? parameters->table[i].elements : 0;
    }
    return elements;
}

void frozen_clear(struct compute *compute, const struct parameters *parameters, int64_t sublayer) {
    uint64_t first = 0, end = 0; /* of a run of neighbours in the arena */
    for (size_t i = 0; i <= parameters->count; i++) {
        const struct parameter *parameter =
            i < parameters->count ? &parameters->table[parameters->in_arena[i]] : NULL;
        const bool is_cleared = parameter && parameter->frozen && !parameter->untrained &&
                                (sublayer == FROZEN_ALL || parameter->sublayer == sublayer);
        if (!is_cleared && end > first) {
            buffer_zero(compute, parameters->gradients, first * sizeof(float), (end - first) * sizeof(float));
        }
        if (is_cleared) {
            first = end > first ? first : parameter->offset;
        }
        end = is_cleared ? parameter->offset + parameter->elements : first;
    }
}
