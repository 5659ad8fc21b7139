/* sample: choices of tokens against a plain one that sorts everything; texts against a loop of whole passes; stop
 * texts and whole characters. */
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "src/sampling/sample.h"
#include "src/sampling/sample_print.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct compute *compute;

/* ---- choices */

static struct choice_settings settings_of(double temperature, int64_t top_k, double top_p) {
    return (struct choice_settings){temperature, top_k, top_p, 0.0};
}

static int32_t choose(const float *logits, size_t count, struct choice_settings settings, double uniform) {
    struct choice_scratch scratch;
    int32_t token = -1;
    choice_scratch_create(count, &scratch);
    require(sample_choose(logits, &settings, uniform, &scratch, &token));
    choice_scratch_free(&scratch);
    return token;
}

/* Probabilities 0.1, 0.2, 0.4, 0.3 of tokens 0 .. 3, but for a constant. */
static const float four[] = {-0.3025851f, 0.3905621f, 1.0837093f, 0.7960273f};

UNIT_TEST(all_tokens_have_their_probability) {
    const struct choice_settings all = settings_of(1.0, 0, 1.0);
    const double uniforms[] = {0.0, 0.099, 0.101, 0.299, 0.301, 0.699, 0.701, 0.9999999};
    const int32_t expected[] = {0, 0, 1, 1, 2, 2, 3, 3};
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(choose(four, 4, all, uniforms[i]), expected[i]);
        assert_int_equal(choose(four, 4, settings_of(1.0, 4, 1.0), uniforms[i]), expected[i]);
    }
    /* at temperature 1/2 probabilities are squares: 1, 4, 16, 9 of 30 */
    assert_int_equal(choose(four, 4, settings_of(0.5, 0, 1.0), 0.99 / 30.0), 0);
    assert_int_equal(choose(four, 4, settings_of(0.5, 0, 1.0), 1.01 / 30.0), 1);
    assert_int_equal(choose(four, 4, settings_of(0.5, 0, 1.0), 20.9 / 30.0), 2);
    assert_int_equal(choose(four, 4, settings_of(0.5, 0, 1.0), 21.1 / 30.0), 3);
}

UNIT_TEST(min_p_keeps_what_is_likely_beside_the_likeliest) {
    for (int i = 0; i < 100; i++) {
        const double uniform = i / 100.0;
        assert_int_equal(choose(four, 4, (struct choice_settings){1.0, 0, 1.0, 1.0}, uniform), 2);
        assert_int_equal(choose(four, 4, (struct choice_settings){1.0, 0, 1.0, 0.76}, uniform), 2);
        assert_int_equal(choose(four, 4, (struct choice_settings){1.0, 0, 1.0, 0.74}, uniform),
                         uniform < 4.0 / 7.0 ? 2 : 3);
        /* at temperature 1/2 token 3 has 9/16 of token 2's probability, which top_k and top_p do not change */
        assert_int_equal(choose(four, 4, (struct choice_settings){0.5, 3, 0.99, 0.57}, uniform), 2);
        assert_int_equal(choose(four, 4, (struct choice_settings){0.5, 3, 0.99, 0.56}, uniform),
                         uniform < 16.0 / 25.0 ? 2 : 3);
        assert_int_equal(choose(four, 4, (struct choice_settings){1.0, 0, 0.39, 0.1}, uniform), 2);
    }
}

UNIT_TEST(the_repetition_penalty_changes_present_tokens) {
    float logits[] = {2.0f, -2.0f, 0.0f, 2.0f, -2.0f};
    const float expected[] = {1.0f, -4.0f, 0.0f, 2.0f, -2.0f};
    const bool present[] = {true, true, true, false, false};
    sample_penalize(logits, present, 5, 2.0);
    assert_memory_equal(logits, expected, sizeof logits);
}

UNIT_TEST(of_equal_logits_the_smaller_tokens_count_as_likelier) {
    const float equal[] = {1.0f, 2.0f, 2.0f, 1.0f, 2.0f, 2.0f};
    assert_int_equal(choose(equal, 6, settings_of(0.0, 0, 1.0), 0.9), 1);
    assert_int_equal(choose(equal, 6, settings_of(0.0, 3, 0.5), 0.9), 1);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(choose(equal, 6, settings_of(1.0, 2, 1.0), i / 100.0), i < 50 ? 1 : 2);
    }
    assert_int_equal(choose(equal, 6, settings_of(1.0, 3, 1.0), 0.99), 4);
    assert_int_equal(choose(equal, 6, settings_of(1.0, 5, 1.0), 0.9999), 0);
}

static const float *sorted_logits;

static int by_logit(const void *a, const void *b) {
    const int32_t first = *(const int32_t *)a, second = *(const int32_t *)b;
    const float difference = sorted_logits[second] - sorted_logits[first];
    return difference > 0.0f ? 1 : difference < 0.0f ? -1 : first - second;
}

/* Sorts all, cuts after top_k, cuts what is left after top_p, draws from the rest. Where nothing is cut, tokens
 * stay in their order. */
static int32_t choose_plainly(const float *logits, size_t count, struct choice_settings settings, double uniform) {
    FREED int32_t *order = malloc(count * sizeof *order);
    FREED double *weights = malloc(count * sizeof *weights);
    double total = 0.0, sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        order[i] = (int32_t)i;
    }
    size_t kept = settings.top_k > 0 && (size_t)settings.top_k < count ? (size_t)settings.top_k : count, fewest = 0;
    if (kept < count || settings.top_p < 1.0) {
        sorted_logits = logits;
        qsort(order, count, sizeof *order, by_logit);
    }
    for (size_t i = 0; i < kept; i++) {
        weights[i] = exp(((double)logits[order[i]] - (double)logits[order[0]]) / settings.temperature);
        total += weights[i];
    }
    for (; fewest < kept && (fewest == 0 || sum < settings.top_p * total); fewest++) {
        sum += weights[fewest];
    }
    size_t at = 0;
    for (double passed = weights[0]; at + 1 < fewest && passed <= uniform * sum; passed += weights[++at]) {
    }
    const int32_t token = order[at];
    return token;
}

UNIT_TEST(choices_are_those_of_a_plain_one) {
    static const struct choice_settings cases[] = {{1.0, 200, 1.0, 0.0},   {0.8, 0, 0.9, 0.0}, {1.3, 0, 0.999, 0.0},
                                                   {1.0, 50, 0.5, 0.0},    {2.0, 1, 0.9, 0.0}, {0.1, 0, 0.95, 0.0},
                                                   {1.0, 50256, 1.0, 0.0}, {1.0, 2, 1.0, 0.0}, {1.0, 0, 0.0, 0.0},
                                                   {1.0, 3, 0.45, 0.0}};
    const size_t counts[] = {1, 2, 3, 256, 50257};
    FREED float *logits = malloc(50257 * sizeof *logits);
    for (size_t c = 0; c < COUNT(counts); c++) {
        random_normal(random_key(c, "logits"), 0, counts[c], 0.0, 3.0, logits);
        logits[counts[c] / 2] = logits[0]; /* a tie */
        for (size_t i = 0; i < COUNT(cases); i++) {
            for (uint64_t draw = 0; draw < 20; draw++) {
                const double uniform = random_uniform(random_key(5, "uniform"), draw);
                const int32_t expected = choose_plainly(logits, counts[c], cases[i], uniform);
                assert_int_equal(choose(logits, counts[c], cases[i], uniform), expected);
            }
        }
    }
}

UNIT_TEST(logits_that_are_no_numbers_are_refused) {
    const struct choice_settings cases[] = {
        {0.0, 0, 1.0, 0.0}, {1.0, 0, 1.0, 0.0}, {1.0, 2, 1.0, 0.0}, {1.0, 0, 0.5, 0.0}, {1.0, 0, 1.0, 0.1}};
    struct choice_scratch scratch;
    int32_t token;
    choice_scratch_create(3, &scratch);
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_error(sample_choose((float[]){0.0f, NAN, 1.0f}, &cases[i], 0.5, &scratch, &token),
                     "the logit of token 1 is not a number");
        assert_error(sample_choose((float[]){0.0f, 0.0f, INFINITY}, &cases[i], 0.5, &scratch, &token),
                     "the logit of token 2 is infinite");
        assert_error(sample_choose((float[]){-INFINITY, -INFINITY, -INFINITY}, &cases[i], 0.5, &scratch, &token),
                     "no token has a probability");
        for (int step = 0; step < 100; step++) {
            assert_int_equal(sample_choose((float[]){-INFINITY, 3.0f, -INFINITY}, &cases[i], step / 100.0, &scratch,
                                           &token),
                             0);
            assert_int_equal(token, 1);
        }
    }
    choice_scratch_free(&scratch);
}

/* ---- text */

/* What is ready after each of the parts, joined with '|', and after the end. */
static void assert_text(struct option_texts stops, bool utf8, const char *const *parts, const char *expected) {
    struct sample_text text = {.stops = stops.count ? &stops : NULL, .utf8 = utf8};
    struct text_buffer all = {0};
    for (; *parts; parts++) {
        sample_text_add(&text, *parts, strlen(*parts));
        text_append(&all, text.ready.bytes, text.ready.size);
        text_append(&all, "|", 1);
        text_drop(&text.ready, text.ready.size);
    }
    sample_text_end(&text);
    text_append(&all, text.ready.bytes, text.ready.size);
    text_append(&all, "", 1);
    assert_string_equal(all.bytes, expected);
    text_free(&all);
    sample_text_free(&text);
}

#define ASSERT_TEXT(stop, utf8, expected, ...)                                                                     \
    assert_text((struct option_texts){(char *[]){stop}, (stop) != NULL}, utf8,                                     \
                (const char *const[]){__VA_ARGS__, NULL}, expected)

UNIT_TEST(text_ends_before_the_stop) {
    ASSERT_TEXT(NULL, false, "ab|c|", "ab", "c");
    ASSERT_TEXT("", false, "ab|c|", "ab", "c");
    ASSERT_TEXT("END", false, "a|b||||", "a", "bE", "N", "D", "x");
    ASSERT_TEXT("END", false, "a|bENd|", "a", "bENd");
    ASSERT_TEXT("END", false, "a||ENEN||", "a", "EN", "ENEN", "D");
    ASSERT_TEXT("aab", false, "|a|a||", "aa", "a", "a", "bc");
    ASSERT_TEXT("END", false, "|EN", "EN");
}

/* What ends a text does not depend on how the text is divided into tokens. */
UNIT_TEST(the_first_complete_stop_ends_the_text) {
    const struct option_texts stops = {(char *[]){"bcde", "", "d", "xy", "wxy"}, 5};
#define ASSERT_ENDS(expected, ...) assert_text(stops, true, (const char *const[]){__VA_ARGS__, NULL}, expected)
    ASSERT_ENDS("abc|", "abcdefg");
    ASSERT_ENDS("a||bc||", "ab", "c", "d", "e");
    ASSERT_ENDS("a|bf|", "ab", "f");
    ASSERT_ENDS("v|", "vwxyz");
    ASSERT_ENDS("v|||", "vw", "x", "y");
#undef ASSERT_ENDS
}

UNIT_TEST(characters_are_whole) {
    ASSERT_TEXT(NULL, true, "a|\xc3\xa9|", "a\xc3", "\xa9");
    ASSERT_TEXT(NULL, true,
                "|||\xf0\x9f\x98\x80"
                "b|",
                "\xf0", "\x9f", "\x98",
                "\x80"
                "b");
    ASSERT_TEXT(NULL, true, "a|\xef\xbf\xbd", "a\xe2"); /* the text ends inside of one */
    ASSERT_TEXT(NULL, true,
                "\xef\xbf\xbd"
                "a|\xef\xbf\xbd|",
                "\xff"
                "a",
                "\x80"); /* never one */
    ASSERT_TEXT(NULL, true,
                "|\xef\xbf\xbd"
                "b|",
                "\xe2", "b");
    ASSERT_TEXT(NULL, false, "a\xc3|\xa9|\xff|", "a\xc3", "\xa9", "\xff"); /* bytes as they are */
    ASSERT_TEXT("\xc3\xa9!", true, "a|||", "a", "\xc3\xa9", "!");
    ASSERT_TEXT("\xc3\xa9!", true, "a||\xc3\xa9?|", "a", "\xc3\xa9", "?");
}

/* ---- whole samples */

enum { LENGTH = 12, VOCABULARY = 33, NEW = 40, SAMPLES = 5 };

struct samples {
    int32_t tokens[SAMPLES][NEW + 1];
    size_t count[SAMPLES];
    int ended[SAMPLES];
    int32_t stop; /* a token after which a sample is complete; -1: none */
    bool fail;
};

static int keep_token(void *context, int64_t sample, int32_t token) {
    struct samples *samples = context;
    assert_in_range(sample, 0, SAMPLES - 1);
    assert_in_range(samples->count[sample], 0, NEW - 1);
    assert_false(samples->ended[sample]);
    samples->tokens[sample][samples->count[sample]++] = token;
    return samples->fail ? error_set("no more") : token == samples->stop;
}

static int keep_end(void *context, int64_t sample) {
    struct samples *samples = context;
    samples->ended[sample]++;
    return 0;
}

struct world {
    struct small_model whole; /* for passes over whole contexts */
    struct sample_settings settings;
};

static void world_create(struct world *world) {
    struct model_config config = small_model_config("shc", 3);
    config.block_size = LENGTH;
    small_model_create(&world->whole, compute, &config, 1);
    small_model_randomise(&world->whole, 3);
    world->settings = (struct sample_settings){.choice = settings_of(0.7, 20, 0.95),
                                               .samples = SAMPLES,
                                               .count = NEW,
                                               .vocabulary = VOCABULARY - 2,
                                               .repetition_penalty = 1.5,
                                               .seed = 11};
}

static int run(struct world *world, int64_t batch, const int32_t *prompt, size_t count, struct samples *samples) {
    const struct gpt_options options = {.batch = batch, .sequence = LENGTH, .mode = GPT_GENERATION};
    const struct sample_sink sink = {keep_token, keep_end, samples};
    struct gpt gpt;
    require(gpt_plan(compute, &world->whole.gpt.config, &options, &gpt));
    require(gpt_create(&gpt));
    buffer_copy(compute, world->whole.gpt.parameters.weights, 0, gpt.parameters.weights, 0,
                gpt.parameters.elements * sizeof(float));
    const int status = sample_run(&gpt, &world->settings, prompt, count, &sink);
    gpt_release(&gpt);
    return status;
}

/* The next token after a context, by a pass over all of it. */
static int32_t next_plainly(struct world *world, const int32_t *context, size_t length, const bool *present,
                            int64_t sample, int64_t index) {
    struct gpt *gpt = &world->whole.gpt;
    float logits[VOCABULARY];
    require(gpt_set_batch(gpt, (struct token_shape){1, (int64_t)length}, context, NULL));
    small_model_forward(&world->whole, (struct gpt_pass){.dropout = false});
    require(gpt_read_logits(gpt, length - 1, 1, logits));
    for (size_t token = 0; token < VOCABULARY; token++) {
        const float penalized = logits[token] < 0.0f ? logits[token] * 1.5f : logits[token] / 1.5f;
        logits[token] = present[token] ? penalized : logits[token];
    }
    const double uniform =
        random_uniform(random_key(world->settings.seed, "sample"), (uint64_t)sample << 32 | (uint64_t)index);
    return choose(logits, world->settings.vocabulary, world->settings.choice, uniform);
}

static void join(int32_t *context, size_t *length, int32_t token) {
    if (*length == LENGTH) {
        *length = LENGTH / 2;
        memmove(context, context + LENGTH / 2, *length * sizeof *context);
    }
    context[(*length)++] = token;
}

/* Prompts shorter and longer than the context, and texts that outgrow it several times. */
UNIT_TEST(samples_are_those_of_whole_passes) {
    static const size_t prompts[] = {1, LENGTH, 31};
    struct world world;
    world_create(&world);
    int32_t prompt[31];
    for (int32_t i = 0; i < 31; i++) {
        prompt[i] = i;
    }
    for (size_t i = 0; i < COUNT(prompts); i++) {
        struct samples samples = {.stop = -1};
        require(run(&world, 3, prompt, prompts[i], &samples));
        for (int64_t sample = 0; sample < SAMPLES; sample++) {
            int32_t context[LENGTH];
            bool present[VOCABULARY] = {false};
            size_t length = 0;
            for (size_t k = 0; k < prompts[i]; k++) {
                join(context, &length, prompt[k]);
                present[prompt[k]] = true;
            }
            assert_int_equal(samples.count[sample], NEW);
            assert_int_equal(samples.ended[sample], 1);
            for (int64_t index = 0; index < NEW; index++) {
                const int32_t token = next_plainly(&world, context, length, present, sample, index);
                assert_int_equal(samples.tokens[sample][index], token);
                join(context, &length, token);
                present[token] = true;
            }
        }
    }
    small_model_release(&world.whole);
}

/* The same texts whatever the number side by side, also where they end at different lengths. */
UNIT_TEST(samples_do_not_depend_on_the_batch) {
    const int32_t prompt[] = {1, 2, 3};
    struct world world;
    struct samples all = {.stop = -1}, first = {.stop = -1};
    world_create(&world);
    require(run(&world, SAMPLES, prompt, 3, &all));
    assert_memory_not_equal(all.tokens[0], all.tokens[1], NEW * sizeof(int32_t));
    first.stop = all.tokens[2][4];
    const int32_t end = all.tokens[1][9];
    world.settings.ends[0] = VOCABULARY;
    world.settings.ends[1] = end;
    world.settings.end_count = 2;
    require(run(&world, 1, prompt, 3, &first));
    assert_true(first.count[1] < NEW && first.count[2] <= 5);
    for (int64_t batch = 2; batch <= SAMPLES; batch++) {
        struct samples samples = {.stop = first.stop};
        require(run(&world, batch, prompt, 3, &samples));
        assert_memory_equal(&samples, &first, sizeof first);
    }
    for (size_t sample = 0; sample < SAMPLES; sample++) {
        size_t length = 0; /* up to the stop and with it, or up to the end and without it */
        while (length < NEW && all.tokens[sample][length] != end &&
               (length == 0 || all.tokens[sample][length - 1] != first.stop)) {
            length++;
        }
        assert_int_equal(first.count[sample], length);
        assert_int_equal(first.ended[sample], 1);
        assert_memory_equal(first.tokens[sample], all.tokens[sample], length * sizeof(int32_t));
    }
    small_model_release(&world.whole);
}

UNIT_TEST(samples_of_no_tokens_and_failures) {
    const int32_t prompt[] = {1}, wrong[] = {VOCABULARY};
    struct world world;
    struct samples samples = {.stop = -1, .fail = true};
    world_create(&world);
    assert_error(run(&world, 2, prompt, 1, &samples), "no more");
    assert_error(run(&world, 2, prompt, 0, &samples), "a prompt of 0 tokens");
    assert_error(run(&world, 2, wrong, 1, &samples), "is not a token of this model");
    samples = (struct samples){.stop = -1};
    world.settings.count = 0;
    assert_int_equal(run(&world, 2, prompt, 1, &samples), 0);
    for (size_t i = 0; i < SAMPLES; i++) {
        assert_int_equal(samples.count[i], 0);
        assert_int_equal(samples.ended[i], 1);
    }
    small_model_release(&world.whole);
}

SMALL_MODEL_TEST_MAIN(compute)
