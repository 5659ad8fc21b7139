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

/* A regular expression with what matching needs. */
struct matcher {
    pcre2_code *code;
    pcre2_match_context *context;
    pcre2_match_data *data;
};

static void matcher_release(struct matcher *matcher) {
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    pcre2_code_free(matcher->code);
}

static int set_error(const char *pattern, const char *what, int code) {
    char reason[256] = "";
    pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
    return error_set("freeze = %s %s: %s", pattern, what, reason);
}

static int matcher_create(const char *pattern, struct matcher *matcher) {
    int code;
    PCRE2_SIZE at;
    if (strlen(pattern) > MOST_PATTERN_BYTES) {
        return error_set("freeze: a pattern has at most %d bytes", MOST_PATTERN_BYTES);
    }
    *matcher =
        (struct matcher){.code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, 0, &code, &at, NULL)};
    if (!matcher->code) {
        return set_error(pattern, "is not a valid regular expression", code);
    }
    matcher->context = pcre2_match_context_create(NULL);
    matcher->data = pcre2_match_data_create(1, NULL);
    if (!matcher->context || !matcher->data) {
        memory_refused(0);
    }
    pcre2_set_match_limit(matcher->context, MATCH_LIMIT);
    return 0;
}

/* 1 or 0; -1 with an error if the limit does not suffice to find out. */
static int matches(const struct matcher *matcher, const char *pattern, const char *name) {
    const int result =
        pcre2_match(matcher->code, (PCRE2_SPTR)name, strlen(name), 0, 0, matcher->data, matcher->context);
    if (result >= 0 || result == PCRE2_ERROR_NOMATCH) {
        return result >= 0;
    }
    set_error(pattern, "cannot be compared with names, a simpler expression is needed", result);
    return error_prefix("%s", name);
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

/* How many parameters the pattern matches, which become frozen; -1 with an error. */
static int64_t mark_matches(struct parameters *parameters, const char *pattern) {
    struct matcher matcher;
    int64_t frozen = 0;
    int found = 0;
    if (matcher_create(pattern, &matcher)) {
        return -1;
    }
    for (size_t i = 0; i < parameters->count && found >= 0; i++) {
        struct parameter *parameter = &parameters->table[i];
        found = matches(&matcher, pattern, parameter->name);
        parameter->frozen = found > 0;
        frozen += parameter->frozen;
        parameter->without_gradient = parameter->frozen && is_table(parameters, parameter);
    }
    matcher_release(&matcher);
    return found < 0 ? -1 : frozen;
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
