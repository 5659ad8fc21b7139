#include "src/evaluation/perplexity.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/utf8.h"
#include "src/text/text_buffer.h"
#include <math.h>
#include <string.h>

static const double LOG_2 = 0.693147180559945309417;

uint64_t perplexity_words(const char *text, size_t bytes) {
    uint64_t words = 1;
    bool in_space = false;
    for (size_t at = 0, length; at < bytes; at += length) {
        uint32_t character = 0;
        length = utf8_decode(text + at, bytes - at, &character);
        length += length == 0; /* what is no UTF-8 is no white space either */
        const bool space = text_is_space(character);
        words += space && !in_space;
        in_space = space;
    }
    return words;
}

void perplexity_add(struct perplexity_sums *total, const struct perplexity_sums *more) {
    total->tokens += more->tokens;
    total->words += more->words;
    total->bytes += more->bytes;
    total->log_likelihood += more->log_likelihood;
}

static double loss_per(const struct perplexity_sums *sums, uint64_t count) {
    return count > 0 ? -sums->log_likelihood / (double)count : (double)NAN;
}

int perplexity_check_loss(double loss) {
    return isfinite(loss)
               ? 0
               : error_set(
                     "the loss is %g: numbers of the model are out of range; take an earlier checkpoint of its "
                     "run, or --dtype fp32",
                     loss);
}

void perplexity_metrics(const struct perplexity_sums *sums, struct perplexity_metric metrics[PERPLEXITY_METRICS]) {
    const double loss = loss_per(sums, sums->tokens), loss_per_byte = loss_per(sums, sums->bytes);
    const struct perplexity_metric all[PERPLEXITY_METRICS] = {
        [METRIC_TOKENS] = {"tokens", 0, (double)sums->tokens},
        [METRIC_WORDS] = {"words", 0, (double)sums->words},
        [METRIC_BYTES] = {"bytes", 0, (double)sums->bytes},
        [METRIC_LOG_LIKELIHOOD] = {"log_likelihood", 4, sums->log_likelihood},
        [METRIC_WORD_PERPLEXITY] = {"word_perplexity", 4, exp(loss_per(sums, sums->words))},
        [METRIC_BYTE_PERPLEXITY] = {"byte_perplexity", 6, exp(loss_per_byte)},
        [METRIC_BITS_PER_BYTE] = {"bits_per_byte", 6, loss_per_byte / LOG_2},
        [METRIC_TOKEN_PERPLEXITY] = {"token_perplexity", 4, exp(loss)},
        [METRIC_LOSS] = {"loss", 6, loss},
    };
    memcpy(metrics, all, sizeof all);
}

void perplexity_put(const struct perplexity_sums *sums, json_t *object) {
    struct perplexity_metric metrics[PERPLEXITY_METRICS];
    perplexity_metrics(sums, metrics);
    for (size_t i = 0; i < PERPLEXITY_METRICS; i++) {
        json_object_set_new(object, metrics[i].name,
                            i <= METRIC_BYTES ? json_integer((json_int_t)metrics[i].value)
                                              : json_file_real(metrics[i].value));
    }
}
