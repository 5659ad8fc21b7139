/* The metrics of hc_eval: word counts against cases worked by hand, and metrics without a divisor. */
#include "src/evaluation/score_documents.h"
#include "tests/support/test.h"
#include <jansson.h>
#include <math.h>

UNIT_TEST(test_words_are_counted_as_python_does) {
    static const struct {
        const char *text;
        size_t bytes;
        uint64_t words;
    } cases[] = {
#define WORDS(text, words) {text, sizeof text - 1, words}
        WORDS("", 1),
        WORDS("a", 1),
        WORDS(" ", 2),
        WORDS("a b", 2),
        WORDS(" a b ", 4),
        WORDS("\n\na\r\n\tb", 3),
        WORDS("a\x1c"
              "b\x1d\x1e"
              "c\x1f"
              "d",
              4),
        WORDS("a\x1b"
              "b\x7f"
              "c\0d",
              1),
        WORDS("a\xc2\x85"
              "b\xc2\xa0"
              "c",
              3), /* U+0085, U+00A0 */
        WORDS("a\xe1\x9a\x80"
              "b\xe2\x80\x83"
              "c\xe3\x80\x80"
              "d",
              4), /* U+1680, U+2003, U+3000 */
        WORDS("a\xe2\x80\xa8"
              "b\xe2\x80\xaf"
              "c\xe2\x81\x9f"
              "d",
              4), /* U+2028, U+202F, U+205F */
        WORDS("a\xe2\x80\x8b"
              "b\xe1\xa0\x8e"
              "c\xef\xbb\xbf"
              "d",
              1), /* U+200B, U+180E, U+FEFF are none */
#undef WORDS
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(perplexity_words(cases[i].text, cases[i].bytes), cases[i].words);
    }
}

UNIT_TEST(test_metrics_without_a_divisor_are_none) {
    const struct perplexity_sums nothing = {.words = 1}, unlikely = {1000, 1, 4000, -1e4, 1};
    json_t *json = json_object();
    struct perplexity_metric metrics[PERPLEXITY_METRICS];
    perplexity_metrics(&nothing, metrics);
    assert_true(isnan(metrics[METRIC_BYTE_PERPLEXITY].value) && isnan(metrics[METRIC_LOSS].value));
    assert_true(metrics[METRIC_WORD_PERPLEXITY].value == 1.0);
    perplexity_metrics(&unlikely, metrics);
    assert_true(metrics[METRIC_BITS_PER_BYTE].value > 3.60 && metrics[METRIC_BITS_PER_BYTE].value < 3.61);
    perplexity_put(&unlikely, json);
    assert_true(json_is_null(json_object_get(json, "word_perplexity"))); /* exp(10000) */
    assert_true(json_is_real(json_object_get(json, "token_perplexity")));
    json_decref(json);
}

UNIT_TEST_MAIN(NULL, NULL)
