/* hc_eval: word counts against cases worked by hand; a small checkpoint's metrics against the plain
 * model in double precision, on documents of all lengths; the same metrics for any batch size and number of ranks;
 * training's val_loss; and input that it must refuse. */
#include "runtime/files/json_file.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/random.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/export.h"
#include "src/evaluation/score_documents.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/reference_model.h"
#include "tests/support/runs.h"
#include "tests/support/small_model.h"
#include <zlib.h>

enum { CONTEXT = 16, BYTES = 256, VOCABULARY = 300, MOST_BYTES = 4096, USAGE = 2 };

static const double TOLERANCE = 1e-5; /* relative */

static const char eval_program[] = HC_PROGRAMS "/hc_eval", train_program[] = HC_PROGRAMS "/hc_train";

#define CHECKPOINT                 scratch_path("run/ckpt-20")
#define CHECKPOINT_OPTIONS         "--checkpoint", CHECKPOINT, "--device", "pocl"
#define EVAL(...)                  CHILD_RUN(eval_program, CHECKPOINT_OPTIONS, __VA_ARGS__)
#define REFUSED(status, text, ...) assert_failed(EVAL(__VA_ARGS__), status, text)

/* ---- words */

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

/* ---- the plain model */

static struct compute *compute;
static struct gpt gpt;
static double *weights;

static void load_model(void) {
    struct model_config config;
    const struct compute_options options = {.device = "pocl"};
    small_model_require(config_file_read(CHECKPOINT, &config));
    small_model_require(gemm_compute_open(&compute, &options));
    const struct gpt_options shape = {.batch = 1, .sequence = config.block_size, .mode = GPT_INFERENCE};
    small_model_require(gpt_plan(compute, &config, &shape, &gpt));
    small_model_require(gpt_create(&gpt));
    small_model_require(checkpoint_load_weights(CHECKPOINT, &gpt));
    const size_t count = gpt.parameters.elements;
    float *values = malloc(count * sizeof *values);
    weights = malloc(count * sizeof *weights);
    small_model_require(buffer_read(compute, gpt.parameters.weights, 0, values, count * sizeof *values));
    for (size_t i = 0; i < count; i++) {
        weights[i] = (double)values[i];
    }
    free(values);
}

/* -log p of each token behind x [length], over the first `vocabulary` tokens. */
static void plain_losses(const int32_t *tokens, int64_t length, size_t vocabulary, double *losses) {
    double *logits = malloc((size_t)length * VOCABULARY * sizeof *logits);
    const struct reference_model model = {.config = &gpt.config,
                                          .parameters = &gpt.parameters,
                                          .values = weights,
                                          .shape = {1, length},
                                          .x = tokens,
                                          .y = tokens + 1};
    reference_model_loss(&model, logits);
    for (int64_t i = 0; i < length; i++) {
        double sum = 0.0;
        for (size_t k = 0; k < vocabulary; k++) {
            sum += exp(logits[(size_t)i * VOCABULARY + k]);
        }
        losses[i] = log(sum) - logits[i * VOCABULARY + tokens[i + 1]];
    }
    free(logits);
}

/* A document as lm-evaluation-harness describes it: windows of new tokens, each read with as many tokens before its
 * last one as the context holds, behind the prefix. */
static double plain_likelihood(const char *text, size_t bytes) {
    int32_t tokens[MOST_BYTES + 1] = {'\n'};
    double losses[CONTEXT], sum = 0.0;
    for (size_t i = 0; i < bytes; i++) {
        tokens[i + 1] = (unsigned char)text[i];
    }
    for (size_t predicted = 0; predicted < bytes;) {
        const size_t count = bytes - predicted < CONTEXT ? bytes - predicted : CONTEXT, end = predicted + count;
        const size_t begin = end > CONTEXT ? end - CONTEXT : 0;
        plain_losses(tokens + begin, (int64_t)(end - begin), BYTES, losses);
        for (size_t i = end - begin - count; i < end - begin; i++) {
            sum -= losses[i];
        }
        predicted = end;
    }
    return sum;
}

/* What the program relies on for short windows. */
UNIT_TEST(test_memory_for_long_sequences_is_used_for_short_ones) {
    int32_t x[4 * CONTEXT] = {0};
    assert_int_equal(gpt_batch_capacity(&gpt, CONTEXT), 1);
    for (int64_t sequence = 1; sequence <= CONTEXT; sequence++) {
        const int64_t room = gpt_batch_capacity(&gpt, sequence);
        assert_true(room >= 1 && room * sequence <= CONTEXT);
        assert_int_equal(gpt_set_batch(&gpt, (struct token_shape){room, sequence}, x, NULL), 0);
        assert_int_equal(gpt_set_batch(&gpt, (struct token_shape){room + 1, sequence}, x, NULL), -1);
    }
}

/* ---- documents */

/* One of the results in a file. */
static double metric(const char *file, const char *name) {
    json_t *json = NULL;
    small_model_require(json_file_read(scratch_path(file), 1 << 20, &json));
    const double value = number_in(json, name);
    json_decref(json);
    return value;
}

static void assert_near(const char *name, double found, double expected, double tolerance) {
    if (!(fabs(found - expected) <= tolerance * fabs(expected))) {
        fail_msg("%s: %.17g, expected %.17g", name, found, expected);
    }
}

static const size_t lengths[] = {1, CONTEXT - 1, CONTEXT, CONTEXT + 1, 2 * CONTEXT, 2 * CONTEXT + 1, 100, 0, 777};
enum { DOCUMENTS = COUNT(lengths) };

/* Letters and spaces, each document others. */
static void make_document(size_t index, char *text) {
    for (size_t i = 0; i < lengths[index]; i++) {
        text[i] = "etaoin shrdlu "[random_below(random_key(index, "document"), i, 14)];
    }
    text[lengths[index]] = '\0';
}

static size_t make_lines(char *lines, size_t room) {
    size_t size = 0;
    char text[MOST_BYTES];
    for (size_t i = 0; i < DOCUMENTS; i++) {
        make_document(i, text);
        size += (size_t)snprintf(lines + size, room - size, "%s{\"id\": %zu, \"text\": \"%s\"}\n",
                                 i == 3 ? "\n" : "", i, text);
    }
    return size;
}

static void check_line(const json_t *line, size_t index, struct perplexity_sums *total) {
    char text[MOST_BYTES];
    make_document(index, text);
    const struct perplexity_sums sums = {lengths[index], perplexity_words(text, lengths[index]), lengths[index],
                                         plain_likelihood(text, lengths[index]), 1};
    assert_true(number_in(line, "document") == (double)(index + 1));
    assert_true(number_in(line, "line") == (double)(index + 1 + (index >= 3))); /* one is blank */
    assert_true(number_in(line, "tokens") == (double)sums.tokens && number_in(line, "bytes") == (double)sums.bytes);
    assert_true(number_in(line, "words") == (double)sums.words);
    assert_near("log_likelihood", number_in(line, "log_likelihood"), sums.log_likelihood, TOLERANCE);
    if (sums.tokens > 0) {
        assert_near("loss", number_in(line, "loss"), -sums.log_likelihood / (double)sums.tokens, TOLERANCE);
    } else {
        assert_true(json_is_null(json_object_get(line, "loss")));
    }
    perplexity_add(total, &sums);
}

UNIT_TEST(test_documents_have_the_metrics_of_the_plain_model) {
    char lines[4 * MOST_BYTES];
    const char *source = scratch_write("documents.jsonl", lines, make_lines(lines, sizeof lines));
    assert_done(EVAL("--json", scratch_path("metrics.json"), "--per-document", scratch_path("each.jsonl"), source));
    size_t index = 0;
    char *each = scratch_text(scratch_path("each.jsonl"), NULL);
    struct perplexity_sums total = {0};
    for (char *line = each, *end; (end = strchr(line, '\n')); line = end + 1, index++) {
        json_t *json = json_loadb(line, (size_t)(end - line), 0, NULL);
        assert_non_null(json);
        assert_string_equal(json_string_value(json_object_get(json, "source")), source);
        check_line(json, index, &total);
        json_decref(json);
    }
    assert_int_equal(index, DOCUMENTS);
    assert_true(metric("metrics.json", "documents") == DOCUMENTS && metric("metrics.json", "vocabulary") == BYTES);
    assert_true(metric("metrics.json", "words") == (double)total.words);
    const double likelihood = total.log_likelihood;
    assert_near("log_likelihood", metric("metrics.json", "log_likelihood"), likelihood, TOLERANCE);
    assert_near("word_perplexity", metric("metrics.json", "word_perplexity"),
                exp(-likelihood / (double)total.words), 1e-4);
    assert_near("byte_perplexity", metric("metrics.json", "byte_perplexity"),
                exp(-likelihood / (double)total.bytes), TOLERANCE);
    assert_near("bits_per_byte", metric("metrics.json", "bits_per_byte"),
                -likelihood / (double)total.bytes / log(2), TOLERANCE);
    assert_near("token_perplexity", metric("metrics.json", "token_perplexity"),
                exp(-likelihood / (double)total.tokens), TOLERANCE);
}

static double scored_tokens(const char *checkpoint, const char *padding) {
    assert_done(CHILD_RUN(eval_program, "--checkpoint", scratch_path(checkpoint), "--device", "pocl",
                          "--score-padding", padding, "--json", scratch_path("padding.json"),
                          scratch_write("short.txt", "a b", 3)));
    return metric("padding.json", "vocabulary");
}

/* Those of a model of Hugging Face's are all that it has, as in lm-evaluation-harness. */
UNIT_TEST(test_padding_is_scored_in_folders_of_others) {
    struct model_config config = small_model_config("rc", 1);
    config.vocab_size = VOCABULARY;
    memcpy(config.tokenizer, "byte", 5);
    random_checkpoint_write("plain", &config);
    require(export_run(&(struct export_settings){(char *)scratch_path("plain"), (char *)scratch_path("hf"),
                                                 EXPORT_HUGGING_FACE, 0}));
    assert_true(scored_tokens("plain", "auto") == BYTES && scored_tokens("plain", "yes") == VOCABULARY);
    assert_true(scored_tokens("hf", "auto") == VOCABULARY && scored_tokens("hf", "no") == BYTES);
}

static double likelihood_of(const char *file) {
    return metric(file, "log_likelihood");
}

UNIT_TEST(test_batches_change_rounding_only) {
    const double expected = likelihood_of("metrics.json");
    static const char *const sizes[] = {"1", "3", "64"};
    for (size_t i = 0; i < 3; i++) {
        assert_done(EVAL("--batch-size", sizes[i], "--json", scratch_path("batches.json"),
                         scratch_path("documents.jsonl")));
        assert_near("log_likelihood", likelihood_of("batches.json"), expected, 1e-6);
    }
}

/* What bf16 rounds is small, and rounding embeddings as well changes it a little. */
UNIT_TEST(test_weights_in_bf16_alone_change_rounding_only) {
    static const char *const masters[] = {"fp32", "bf16"};
    double found[COUNT(masters)];
    for (size_t i = 0; i < COUNT(masters); i++) {
        assert_done(EVAL("--dtype", "bf16", "--master", masters[i], "--json", scratch_path("masters.json"),
                         scratch_path("documents.jsonl")));
        found[i] = likelihood_of("masters.json");
    }
    assert_near("log_likelihood", found[0], likelihood_of("metrics.json"), 1e-3);
    assert_near("log_likelihood", found[1], found[0], 1e-3);
    assert_true(found[1] > found[0] || found[1] < found[0]);
}

/* Text files, a compressed one, a field of another name, a limit: the same documents. */
UNIT_TEST(test_forms_of_input_are_alike) {
    char text[MOST_BYTES], line[2 * MOST_BYTES];
    make_document(6, text);
    const char *first = scratch_write("first.txt", text, lengths[6]);
    assert_done(EVAL("--json", scratch_path("forms.json"), first));
    const double expected = likelihood_of("forms.json");
    assert_near("log_likelihood", expected, plain_likelihood(text, lengths[6]), TOLERANCE);
    gzFile file = gzopen(scratch_path("lines.ndjson.gz"), "wb");
    snprintf(line, sizeof line, "{\"body\": \"%s\"}\n{\"body\": \"not this one\"}\n", text);
    assert_true(gzputs(file, line) > 0);
    assert_int_equal(gzclose(file), Z_OK);
    assert_done(EVAL("--field", "body", "--limit", "1", "--json", scratch_path("forms.json"),
                     scratch_path("lines.ndjson.gz")));
    assert_true(likelihood_of("forms.json") == expected);
    const char *empty = scratch_write("empty.txt", "", 0); /* a document, too */
    assert_done(EVAL("--documents", "files", "--json", scratch_path("forms.json"), first, empty, first));
    assert_true(metric("forms.json", "documents") == 3);
    assert_near("log_likelihood", likelihood_of("forms.json"), 2.0 * expected, 1e-6);
}

/* As for texts that were cleaned up before they are scored. */
UNIT_TEST(test_words_and_bytes_may_be_those_of_another_field) {
    static const char line[] = "{\"text\": \"a b\", \"page\": \" a @-@ b\\n\"}\n";
    const char *source = scratch_write("fields.jsonl", line, sizeof line - 1);
    assert_done(EVAL("--count-field", "page", "--json", scratch_path("fields.json"), source));
    assert_true(metric("fields.json", "tokens") == 3 && metric("fields.json", "words") == 5 &&
                metric("fields.json", "bytes") == 9);
    assert_near("log_likelihood", metric("fields.json", "log_likelihood"), plain_likelihood("a b", 3), TOLERANCE);
    REFUSED(FAILED, "no field 'url'; there is 'text', 'page' (choose with --count-field)", "--count-field", "url",
            source);
}

UNIT_TEST(test_what_is_not_utf8_can_be_replaced) {
    static const char broken[] = "one\ntwo \xff three", mended[] = "one\ntwo \xef\xbf\xbd three";
    const char *source = scratch_write("broken.txt", broken, sizeof broken - 1);
    REFUSED(FAILED, "broken.txt:2: not UTF-8 (byte 0xff)", source);
    assert_done(EVAL("--invalid", "replace", "--json", scratch_path("mended.json"), source));
    assert_near("log_likelihood", likelihood_of("mended.json"), plain_likelihood(mended, sizeof mended - 1),
                TOLERANCE);
    static const char line[] = "{\"text\": \"two \xff three\"}\n";
    source = scratch_write("broken.jsonl", line, sizeof line - 1);
    REFUSED(FAILED, "broken.jsonl:1: not UTF-8", source);
    assert_done(EVAL("--invalid", "replace", source));
}

/* ---- token files */

static double whole_split_of_the_plain_model(size_t *predicted) {
    size_t bytes;
    const char *data = scratch_text(scratch_path("data/val.bin"), &bytes);
    const size_t count = bytes / 2 - 1;
    int32_t tokens[CONTEXT + 1];
    double losses[CONTEXT], sum = 0.0;
    for (size_t at = 0; at < count; at += CONTEXT) {
        const size_t length = count - at < CONTEXT ? count - at : CONTEXT;
        for (size_t i = 0; i <= length; i++) {
            tokens[i] = (unsigned char)data[2 * (at + i)];
        }
        plain_losses(tokens, (int64_t)length, VOCABULARY, losses);
        for (size_t i = 0; i < length; i++) {
            sum += losses[i];
        }
    }
    *predicted = count;
    return sum / (double)count;
}

UNIT_TEST(test_a_split_has_the_loss_of_the_plain_model) {
    size_t predicted;
    const double expected = whole_split_of_the_plain_model(&predicted);
    const char *output = scratch_path("split.txt");
    assert_done(CHILD_RUN_WRITING(output, eval_program, "--checkpoint", CHECKPOINT, "--device", "pocl", "--data",
                                  scratch_path("data"), "--json", scratch_path("split.json")));
    assert_non_null(
        strstr(scratch_text(output, NULL), "split             val.bin, the whole file\nloss (nats/token) "));
    assert_true(metric("split.json", "tokens") == (double)predicted);
    assert_near("loss", metric("split.json", "loss"), expected, TOLERANCE);
    assert_near("perplexity", metric("split.json", "perplexity"), exp(expected), TOLERANCE);
}

/* Writes "broken": the checkpoint with this number in place of all weights. */
static void break_checkpoint(float number) {
    size_t bytes;
    uint64_t header;
    require(files_make_folder(scratch_path("broken")));
    const char *config = scratch_text(scratch_path("run/ckpt-20/config.json"), &bytes);
    scratch_write("broken/config.json", config, bytes);
    char *tensors = scratch_text(scratch_path("run/ckpt-20/model.safetensors"), &bytes);
    memcpy(&header, tensors, sizeof header);
    const size_t at = sizeof header + (size_t)header;
    for (size_t i = at; i + sizeof number <= bytes; i += sizeof number) {
        memcpy(tensors + i, &number, sizeof number);
    }
    scratch_write("broken/model.safetensors", tensors, bytes);
}

/* A loss that is no number is an error, in every form of data, and leaves no file of results; so is a weight. */
UNIT_TEST(test_numbers_that_are_not_finite_are_an_error) {
    const char *results = scratch_path("broken.json"), *document = scratch_write("text.txt", "some text", 9);
    static const char loss[] = "the loss is nan: ";
    break_checkpoint(3e38f);
#define BROKEN(text, ...)                                                                                          \
    assert_failed(CHILD_RUN(eval_program, "--checkpoint", scratch_path("broken"), "--device", "pocl", "--json",    \
                            results, __VA_ARGS__),                                                                 \
                  FAILED, text)
    BROKEN(loss, "--data", scratch_path("data"));
    BROKEN(loss, "--data", scratch_path("data"), "--eval-iters", "1");
    BROKEN(loss, document);
    break_checkpoint(-INFINITY);
    BROKEN("broken/model.safetensors: element 0 of tensor 'transformer.wte.weight' is -inf: the file is damaged",
           document);
    assert_false(files_exist(results));
}

static void assert_places(const char *seed, const char *words) {
    const char *output = scratch_path("places.txt");
    assert_done(CHILD_RUN_WRITING(output, eval_program, "--checkpoint", CHECKPOINT, "--device", "pocl", "--data",
                                  scratch_path("data"), "--eval-iters", "1", "--seed", seed));
    assert_non_null(strstr(scratch_text(output, NULL), words));
}

UNIT_TEST(test_places_of_batches_are_named) {
    assert_places("-1", "split             val.bin, batches at fixed places\n");
    assert_places("5", "split             val.bin, batches of seed 5\n");
}

/* metrics.jsonl has nine digits. */
UNIT_TEST(test_batches_by_seed_are_those_of_training) {
    static const char *const splits[] = {"val", "train"};
    json_t *lines = metrics("run");
    const json_t *last = json_array_get(lines, json_array_size(lines) - 1);
    for (size_t i = 0; i < 2; i++) {
        assert_done(EVAL("--data", scratch_path("data"), "--split", splits[i], "--eval-iters", "3", "--batch-size",
                         "4", "--seed", "5", "--json", scratch_path("estimate.json")));
        assert_near(splits[i], metric("estimate.json", "loss"), number_in(last, i == 0 ? "val_loss" : "train_loss"),
                    1e-8);
    }
    json_decref(lines);
}

/* The model's tokens are the data's, also where its vocabulary is larger. */
UNIT_TEST(test_a_checkpoint_names_its_tokenizer) {
    assert_string_equal(gpt.config.tokenizer, "byte");
}

/* ---- ranks */

#ifdef HC_MPIRUN
#define EVAL_ON(count, ...)                                                                                        \
    CHILD_RUN(HC_MPIRUN, "-np", count, eval_program, "--checkpoint", CHECKPOINT, "--device", "pocl", __VA_ARGS__)

/* Batches of one, so that every rank has some. On all tokens products are larger, and a BLAS may divide them among
 * the cores that a rank has in ways that round differently. */
UNIT_TEST(test_metrics_do_not_depend_on_the_number_of_ranks) {
    static const char *const counts[] = {"1", "2", "3"};
    for (size_t i = 0; i < 3; i++) {
        assert_done(EVAL_ON(counts[i], "--batch-size", "1", "--per-document", scratch_path("ranks.jsonl"), "--json",
                            scratch_path("ranks.json"), scratch_path("documents.jsonl")));
        assert_done(EVAL_ON(counts[i], "--data", scratch_path("data"), "--json", scratch_path("split-ranks.json")));
        assert_near("loss", metric("split-ranks.json", "loss"), metric("split.json", "loss"), 1e-7);
        if (i == 0) {
            assert_int_equal(rename(scratch_path("ranks.jsonl"), scratch_path("ranks-alone.jsonl")), 0);
        } else {
            assert_same_file("ranks.jsonl", "ranks-alone.jsonl");
        }
    }
}

UNIT_TEST(test_an_error_of_rank_0_is_everybodys) {
    assert_failed(EVAL_ON("2", scratch_path("nowhere.txt")), FAILED, "nowhere.txt");
}
#endif

/* ---- what is refused */

UNIT_TEST(test_wrong_usage_is_explained) {
    assert_failed(CHILD_RUN(eval_program, scratch_path("first.txt")), USAGE, "--checkpoint is needed");
    REFUSED(USAGE, "nothing to score", "--limit", "1");
    REFUSED(USAGE, "--data: no text is given", "--data", "");
    assert_failed(CHILD_RUN(eval_program, "--checkpoint", "", scratch_path("first.txt")), USAGE,
                  "--checkpoint: no text is given");
    REFUSED(USAGE, "token files and documents at once", "--data", scratch_path("data"), scratch_path("first.txt"));
    REFUSED(USAGE, "--per-document is for documents", "--data", scratch_path("data"), "--per-document", "each");
    REFUSED(USAGE, "--eval-iters is for token files", "--eval-iters", "3", scratch_path("first.txt"));
}

/* Neither file of results appears, and one that is there stays. */
static void assert_unwritten(int status, const char *text) {
    assert_failed(status, FAILED, text);
    assert_false(files_exist(scratch_path("refused/metrics.json")));
    assert_int_equal(scratch_entries(scratch_path("refused")), 1);
    assert_string_equal(scratch_text(scratch_path("refused/each.jsonl"), NULL), "old");
}
#define UNWRITTEN(text, ...)                                                                                       \
    assert_unwritten(EVAL("--json", scratch_path("refused/metrics.json"), "--per-document",                        \
                          scratch_path("refused/each.jsonl"), __VA_ARGS__),                                        \
                     text)

UNIT_TEST(test_bad_documents_leave_nothing) {
    static const char lines[] = "{\"text\": \"good\"}\n\n{\"text\": \"good\"\n", other[] = "{\"text\": 5}\n",
                      list[] = "[1]\n";
    assert_int_equal(files_make_folder(scratch_path("refused")), 0);
    scratch_write("refused/each.jsonl", "old", 3);
    UNWRITTEN("half.jsonl:3: not JSON", scratch_write("half.jsonl", lines, sizeof lines - 1));
    UNWRITTEN("other.jsonl:1: field 'text' is not a string", scratch_write("other.jsonl", other, sizeof other - 1));
    UNWRITTEN("other.jsonl:1: no field 'body'; there is 'text'", "--field", "body", scratch_path("other.jsonl"));
    UNWRITTEN("list.jsonl:1: not a JSON object", scratch_write("list.jsonl", list, sizeof list - 1));
    UNWRITTEN("nowhere.txt", scratch_path("nowhere.txt"));
    UNWRITTEN("empty.jsonl has no documents: it is empty, or has blank lines only",
              scratch_write("empty.jsonl", "\n\n", 2));
    UNWRITTEN("--documents", scratch_path("first.txt"), scratch_path("half.jsonl"));
}

/* Interrupted as soon as it has begun its results. */
UNIT_TEST(test_an_interrupted_evaluation_leaves_nothing) {
    enum { LONG = 1 << 21 };
    char *text = malloc(LONG);
    assert_non_null(text);
    memset(text, 'a', LONG);
    const char *source = scratch_write("long.txt", text, LONG);
    free(text);
    assert_int_equal(files_make_folder(scratch_path("stopped")), 0);
    const pid_t child =
        child_start(CHILD_UNLIMITED,
                    (const char *const[]){eval_program, "--checkpoint", CHECKPOINT, "--device", "pocl", "--json",
                                          scratch_path("stopped/metrics.json"), source, NULL});
    for (int waited = 0; scratch_entries(scratch_path("stopped")) == 0 && waited < 20000; waited += 5) {
        wait_ms(5);
    }
    kill(child, SIGINT);
    assert_failed(child_finish_within(child, 60.0), 130, "interrupted, nothing written");
    assert_int_equal(scratch_entries(scratch_path("stopped")), 0);
}

UNIT_TEST(test_a_truncated_file_is_refused) {
    size_t bytes;
    const char *whole = scratch_text(scratch_path("lines.ndjson.gz"), &bytes);
    scratch_write("cut.ndjson.gz", whole, bytes - 9);
    REFUSED(FAILED, "cut.ndjson.gz:", "--field", "body", scratch_path("cut.ndjson.gz"));
}

/* A pipe that nobody writes to: waiting for it ends, too. */
UNIT_TEST(test_waiting_for_text_can_be_interrupted) {
    const char *pipe = scratch_path("pipe");
    assert_int_equal(mkfifo(pipe, 0666), 0);
    assert_int_equal(files_make_folder(scratch_path("waiting")), 0);
    const pid_t child =
        child_start(CHILD_UNLIMITED,
                    (const char *const[]){eval_program, "--checkpoint", CHECKPOINT, "--device", "pocl", "--json",
                                          scratch_path("waiting/metrics.json"), pipe, NULL});
    const int writer = open(pipe, O_WRONLY); /* waits until it is opened for reading */
    assert_true(writer >= 0);
    wait_ms(200);
    kill(child, SIGINT);
    assert_failed(child_finish_within(child, 20.0), 130, "interrupted, nothing written");
    assert_int_equal(scratch_entries(scratch_path("waiting")), 0);
    close(writer);
}

UNIT_TEST(test_a_token_alone_is_refused) {
    assert_int_equal(files_make_folder(scratch_path("one")), 0);
    scratch_write("one/val.bin", "a", 2);
    REFUSED(FAILED, "one/val.bin has nothing to predict: it has one token only", "--data", scratch_path("one"));
}

UNIT_TEST(test_bad_places_are_refused) {
    const char *source = scratch_path("first.txt");
    REFUSED(FAILED, "not a regular file", "--json", "/dev/null", source);
    REFUSED(FAILED, "no/such/metrics.json", "--json", scratch_path("no/such/metrics.json"), source);
    REFUSED(FAILED, "first.txt is an input of this command", "--json", source, source);
    REFUSED(FAILED, "name the same file", "--json", scratch_path("x"), "--per-document", scratch_path("x"), source);
    REFUSED(FAILED, "nowhere/val.bin does not exist: make it with hc_prepare", "--data", scratch_path("nowhere"));
    assert_failed(CHILD_RUN(eval_program, "--checkpoint", scratch_path("data"), source), FAILED,
                  "data/config.json");
}

/* The model's tokens decide what is needed. */
UNIT_TEST(test_tokenizers_are_looked_for) {
    char config[1024];
    static const char format[] =
        "{\"n_layer\": 1, \"n_head\": 2, \"n_embd\": 16, \"block_size\": 16, \"vocab_size\": %d, "
        "\"residual\": \"rc\", \"tokenizer\": \"%s\"}";
    const char *source = scratch_path("first.txt");
    assert_int_equal(files_make_folder(scratch_path("other")), 0);
#define REFUSED_TOKENS(text, tokens, name, ...)                                                                    \
    scratch_write("other/config.json", config, (size_t)snprintf(config, sizeof config, format, tokens, name));     \
    assert_failed(CHILD_RUN(eval_program, "--checkpoint", scratch_path("other"), __VA_ARGS__), FAILED, text)
    REFUSED_TOKENS("no-ranks does not exist: data/gpt2/vocabulary.sh gets it", 50304, "gpt2", "--vocab-file",
                   "no-ranks", source);
    REFUSED_TOKENS("no-ranks does not exist: data/gpt2/vocabulary.sh gets it", 50257, "", "--vocab-file",
                   "no-ranks", source);
    REFUSED_TOKENS("tokenizer 'words' is none of byte, gpt2 and file", 300, "words", source);
    REFUSED_TOKENS("the model has 200 tokens and the tokenizer 'byte' 256", 200, "byte", source);
}

static int begin(void **state) {
    if (scratch_begin(state) || corpus_make(HC_PROGRAMS)) {
        return -1;
    }
    assert_done(CHILD_RUN(train_program, "--config", scratch_path("tiny.conf"), "--data-dir", scratch_path("data"),
                          "--out-dir", scratch_path("run"), "--vocab-size", "300", "--eval-iters", "3",
                          "--eval-batches", "by_seed", "--seed", "5"));
    load_model();
    return 0;
}

static int end(void **state) {
    gpt_release(&gpt);
    compute_close(compute);
    free(weights);
    return scratch_end(state);
}

UNIT_TEST_MAIN(begin, end)
