#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/model/frozen.h"
#include "runtime/device/compute.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <pcre2.h>
#include <stdbool.h>
#include <string.h>

/* A name has less than 100 bytes, so that patterns which stay below the limit need at most milliseconds for one. */
enum { MOST_PATTERN_BYTES = 1000, MATCH_LIMIT = 10000 };

static int set_error(const char *pattern, const char *what, int code) {
    char reason[256] = "";
    pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
    return error_set("freeze = %s %s: %s", pattern, what, reason);
}

/* A layer is frozen if its weight is, with its bias and what is joined to them, which follow in the table. Its
 * weights have no gradient then. */
static void mark_linear(struct parameters *parameters, struct linear *linear) {
    struct parameter *end = parameters->table + parameters->count, *first = parameters->table, *next;
    while (first->offset_copy != &linear->weight_at) {
        first++;
    }
    linear->frozen = first->frozen;
    for (next = first + 1; next < end && (next->offset_copy == &linear->bias_at || next->joined); next++) {
        linear->frozen &= next->frozen;
    }
    for (; first < next; first++) {
        first->without_gradient = linear->frozen && first->lowp_only;
    }
}

/* Embeddings, and the head's weights. */
static bool is_table(const struct parameters *parameters, const struct parameter *parameter) {
    return parameter->offset_copy == &parameters->token_embedding ||
           parameter->offset_copy == &parameters->position_embedding || parameter->offset_copy == &parameters->head;
}

/* Marks the parameters that the pattern matches. Returns how many; -1 with an error. */
static int64_t mark_matches(struct parameters *parameters, const char *pattern) {
    int error = 0;
    int64_t frozen = 0;
    PCRE2_SIZE at;
    if (strlen(pattern) > MOST_PATTERN_BYTES) {
        return error_set("freeze: a pattern has at most %d bytes", MOST_PATTERN_BYTES);
    }
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, 0, &error, &at, NULL);
    if (!code) {
        return set_error(pattern, "is not a valid regular expression", error);
    }
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    if (!context || !data) {
        memory_refused(0);
    }
    pcre2_set_match_limit(context, MATCH_LIMIT);
    for (size_t i = 0; i < parameters->count && frozen >= 0; i++) {
        struct parameter *parameter = &parameters->table[i];
        const int result =
            pcre2_match(code, (PCRE2_SPTR)parameter->name, strlen(parameter->name), 0, 0, data, context);
        if (result < 0 && result != PCRE2_ERROR_NOMATCH) { /* the limit does not suffice */
            set_error(pattern, "cannot be compared with names, a simpler expression is needed", result);
            frozen = error_prefix("%s", parameter->name);
        } else if (result >= 0) {
            parameter->frozen = true;
            parameter->without_gradient = is_table(parameters, parameter);
            frozen++;
        }
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_code_free(code);
    return frozen;
}

int frozen_mark(struct parameters *parameters, const char *pattern) {
    const int64_t top = parameters->table[parameters->count - 1].sublayer;
    if (!pattern || !*pattern) {
        return 0;
    }
    const int64_t frozen = mark_matches(parameters, pattern);
    if (frozen < 0) {
        return -1;
    }
    if (frozen == 0 || frozen == (int64_t)parameters->count) {
        return error_set("freeze = %s matches %s: %s", pattern, frozen ? "all parameters" : "no parameter",
                         frozen ? "nothing would be trained"
                                : "names are like transformer.wte.weight and transformer.h.0.attn.c_attn.weight");
    }
    for (int64_t i = 0; i < top; i++) {
        mark_linear(parameters, &parameters->sublayers[i].in);
        mark_linear(parameters, &parameters->sublayers[i].out);
    }
    parameters_lay_out(parameters);
    return 0;
}

int frozen_create(const struct model_config *config, const char *pattern, struct parameters *parameters) {
    parameters_create(config, parameters);
    const int status = frozen_mark(parameters, pattern);
    if (status) {
        parameters_release(parameters);
    }
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
        const bool is_cleared = parameter && parameter->frozen && !parameter->without_gradient &&
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
