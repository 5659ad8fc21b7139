/* hc_eval: word counts against cases worked by hand; the same metrics for any batch size and number of ranks, and
 * for all forms of input; training's val_loss; and input that it must refuse. check_scores.py computes the metrics.
 */
#include "runtime/files/json_file.h"
#include "runtime/system/random.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/export.h"
#include "src/evaluation/score_documents.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/runs.h"
#include "tests/support/small_model.h"
#include <zlib.h>

enum { CONTEXT = 16, BYTES = 256, VOCABULARY = 300, MOST_BYTES = 4096, USAGE = WRONG_USAGE };

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

/* ---- documents */

/* One of the results in a file. */
static double metric(const char *file, const char *name) {
    json_t *json = NULL;
    require(json_file_read(scratch_path(file), 1 << 20, &json));
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

static void make_lines(char *lines, size_t room) {
    size_t size = 0;
    char text[MOST_BYTES];
    for (size_t i = 0; i < DOCUMENTS; i++) {
        make_document(i, text);
        size += (size_t)snprintf(lines + size, room - size, "%s{\"id\": %zu, \"text\": \"%s\"}\n",
                                 i == 3 ? "\n" : "", i, text);
    }
}

static double scored_tokens(const char *checkpoint, const char *padding) {
    assert_done(CHILD_RUN(eval_program, "--checkpoint", scratch_path(checkpoint), "--device", "pocl",
                          "--score-padding", padding, "--json", scratch_path("padding.json"),
                          scratch_put("short.txt", "a b")));
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

static double likelihood_of_text(const char *text) {
    assert_done(EVAL("--json", scratch_path("text.json"), scratch_put("text.txt", text)));
    return likelihood_of("text.json");
}

UNIT_TEST(test_batches_change_rounding_only) {
    char lines[4 * MOST_BYTES];
    make_lines(lines, sizeof lines);
    assert_done(EVAL("--json", scratch_path("metrics.json"), scratch_put("documents.jsonl", lines)));
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
    gzFile file = gzopen(scratch_path("lines.ndjson.gz"), "wb");
    snprintf(line, sizeof line, "{\"body\": \"%s\"}\n{\"body\": \"not this one\"}\n", text);
    assert_true(gzputs(file, line) > 0);
    assert_int_equal(gzclose(file), Z_OK);
    assert_done(EVAL("--field", "body", "--limit", "1", "--json", scratch_path("forms.json"),
                     scratch_path("lines.ndjson.gz")));
    assert_true(likelihood_of("forms.json") == expected);
    const char *empty = scratch_put("empty.txt", ""); /* a document, too */
    assert_done(EVAL("--documents", "files", "--json", scratch_path("forms.json"), first, empty, first));
    assert_true(metric("forms.json", "documents") == 3);
    assert_near("log_likelihood", likelihood_of("forms.json"), 2.0 * expected, 1e-6);
}

/* As for texts that were cleaned up before they are scored. */
UNIT_TEST(test_words_and_bytes_may_be_those_of_another_field) {
    static const char line[] = "{\"text\": \"a b\", \"page\": \" a @-@ b\\n\"}\n";
    const char *source = scratch_put("fields.jsonl", line);
    assert_done(EVAL("--count-field", "page", "--json", scratch_path("fields.json"), source));
    assert_true(metric("fields.json", "tokens") == 3 && metric("fields.json", "words") == 5 &&
                metric("fields.json", "bytes") == 9);
    assert_near("log_likelihood", likelihood_of("fields.json"), likelihood_of_text("a b"), 1e-6);
    REFUSED(FAILED, "no field 'url'; there is 'text', 'page' (choose with --count-field)", "--count-field", "url",
            source);
}

UNIT_TEST(test_what_is_not_utf8_can_be_replaced) {
    static const char broken[] = "one\ntwo \xff three", mended[] = "one\ntwo \xef\xbf\xbd three";
    const char *source = scratch_put("broken.txt", broken);
    REFUSED(FAILED, "broken.txt:2: not UTF-8 (byte 0xff)", source);
    assert_done(EVAL("--invalid", "replace", "--json", scratch_path("mended.json"), source));
    assert_near("log_likelihood", likelihood_of("mended.json"), likelihood_of_text(mended), 1e-6);
    static const char line[] = "{\"text\": \"two \xff three\"}\n";
    source = scratch_put("broken.jsonl", line);
    REFUSED(FAILED, "broken.jsonl:1: not UTF-8", source);
    assert_done(EVAL("--invalid", "replace", source));
}

/* ---- token files */

/* Writes "broken": the checkpoint with this number in place of all weights. */
static void break_checkpoint(float number) {
    size_t bytes;
    uint64_t header;
    copy("run/ckpt-20/config.json", "broken/config.json");
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
    const char *results = scratch_path("broken.json"), *document = scratch_put("text.txt", "some text");
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

/* ---- ranks */

#ifdef HC_MPIRUN
#define EVAL_ON(count, ...)                                                                                        \
    CHILD_RUN(HC_MPIRUN, "-np", count, eval_program, "--checkpoint", CHECKPOINT, "--device", "pocl", __VA_ARGS__)

/* Batches of one, so that every rank has some. On all tokens GEMMs are larger, and a BLAS may divide them among
 * the cores that a rank has in ways that round differently. */
UNIT_TEST(test_metrics_do_not_depend_on_the_number_of_ranks) {
    static const char *const counts[] = {"1", "2", "3"};
    double split_loss = 0.0;
    for (size_t i = 0; i < 3; i++) {
        assert_done(EVAL_ON(counts[i], "--batch-size", "1", "--per-document", scratch_path("ranks.jsonl"), "--json",
                            scratch_path("ranks.json"), scratch_path("documents.jsonl")));
        assert_done(EVAL_ON(counts[i], "--data", scratch_path("data"), "--json", scratch_path("split-ranks.json")));
        if (i == 0) {
            split_loss = metric("split-ranks.json", "loss");
            assert_int_equal(rename(scratch_path("ranks.jsonl"), scratch_path("ranks-alone.jsonl")), 0);
        } else {
            assert_near("loss", metric("split-ranks.json", "loss"), split_loss, 1e-7);
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
    const char *first = scratch_path("first.txt"), *data = scratch_path("data");
    assert_failed(CHILD_RUN(eval_program, first), USAGE, "--checkpoint is needed");
    assert_failed(CHILD_RUN(eval_program, "--checkpoint", "", first), USAGE, "--checkpoint: no text is given");
    REFUSED(USAGE, "nothing to score", "--limit", "1");
    REFUSED(USAGE, "--data: no text is given", "--data", "");
    REFUSED(USAGE, "token files and documents at once", "--data", data, first);
    REFUSED(USAGE, "--per-document is for documents", "--data", data, "--per-document", "each");
    REFUSED(USAGE, "--eval-iters is for token files", "--eval-iters", "3", first);
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
    static const struct {
        const char *text, *file, *content;
    } rows[] = {
        {"half.jsonl:3: not JSON", "half.jsonl", "{\"text\": \"good\"}\n\n{\"text\": \"good\"\n"},
        {"other.jsonl:1: field 'text' is not a string", "other.jsonl", "{\"text\": 5}\n"},
        {"other.jsonl:1: no field 'text'; there is 'body'", "other.jsonl", "{\"body\": \"a\"}\n"},
        {"list.jsonl:1: not a JSON object", "list.jsonl", "[1]\n"},
        {"empty.jsonl has no documents: it is empty, or has blank lines only", "empty.jsonl", "\n\n"},
        {"nowhere.txt", "nowhere.txt", NULL},
    };
    scratch_put("refused/each.jsonl", "old");
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (rows[i].content) {
            scratch_put(rows[i].file, rows[i].content);
        }
        UNWRITTEN(rows[i].text, scratch_path(rows[i].file));
    }
    UNWRITTEN("--documents", scratch_path("first.txt"), scratch_path("half.jsonl"));
}

/* Starts an evaluation whose results are to be in a folder of this name, which is empty. */
static void start_evaluation(const char *folder, const char *source) {
    assert_int_equal(files_make_folder(scratch_path(folder)), 0);
    start((const char *const[]){eval_program, CHECKPOINT_OPTIONS, "--json",
                                scratch_path(run_path(folder, "metrics.json")), source, NULL});
}

static void assert_interrupted(const char *folder) {
    assert_failed(interrupt(), INTERRUPTED, "interrupted, nothing written");
    assert_int_equal(scratch_entries(scratch_path(folder)), 0);
}

/* Interrupted as soon as it has begun its results. */
RUN_TEST(test_an_interrupted_evaluation_leaves_nothing) {
    enum { LONG = 1 << 21 };
    char *text = malloc(LONG);
    assert_non_null(text);
    memset(text, 'a', LONG);
    start_evaluation("stopped", scratch_write("long.txt", text, LONG));
    free(text);
    for (int waited = 0; scratch_entries(scratch_path("stopped")) == 0 && waited < 20000; waited += 5) {
        wait_ms(5);
    }
    assert_interrupted("stopped");
}

UNIT_TEST(test_a_truncated_file_is_refused) {
    size_t bytes;
    const char *whole = scratch_text(scratch_path("lines.ndjson.gz"), &bytes);
    scratch_write("cut.ndjson.gz", whole, bytes - 9);
    REFUSED(FAILED, "cut.ndjson.gz:", "--field", "body", scratch_path("cut.ndjson.gz"));
}

/* A pipe that nobody writes to: waiting for it ends, too. */
RUN_TEST(test_waiting_for_text_can_be_interrupted) {
    const char *pipe = scratch_path("pipe");
    assert_int_equal(mkfifo(pipe, 0666), 0);
    start_evaluation("waiting", pipe);
    const int writer = open(pipe, O_WRONLY); /* waits until it is opened for reading */
    assert_true(writer >= 0);
    wait_ms(200);
    assert_interrupted("waiting");
    close(writer);
}

UNIT_TEST(test_a_token_alone_is_refused) {
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
    if (corpus_begin(state)) {
        return -1;
    }
    assert_done(CHILD_RUN(train_program, "--config", scratch_path("tiny.conf"), "--data-dir", scratch_path("data"),
                          "--out-dir", scratch_path("run"), "--vocab-size", "300", "--eval-iters", "3",
                          "--eval-batches", "by_seed", "--seed", "5"));
    return 0;
}

UNIT_TEST_MAIN(begin, scratch_end)
