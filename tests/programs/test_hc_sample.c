/* hc_sample, the program: what it prints for byte and GPT-2 models, prompts from everywhere, and what it refuses.
 */
#include "runtime/system/utf8.h"
#include "src/checkpoint/checkpoint.h"
#include "src/text/tokenizer.h"
#include "tests/support/runs.h"
#include "tests/support/small_model.h"

#define LLAMA3 HC_TEST_DATA "/text/tokenizers/llama3.json"

static const char sample_program[] = HC_PROGRAMS "/hc_sample";
static struct compute *compute;

/* A checkpoint with random weights in the scratch folder; with a type of bf16 matrices have no more digits. */
static void make_checkpoint(const char *name, int64_t vocabulary, const char *tokenizer, enum element_type type) {
    struct model_config config = small_model_config("shc", 3);
    struct small_model model;
    const struct training_state state = {.iteration = 1};
    config.block_size = 16;
    config.vocab_size = vocabulary;
    snprintf(config.tokenizer, sizeof config.tokenizer, "%s", tokenizer);
    const struct gpt_options options = {
        .batch = 1, .sequence = 16, .mode = GPT_TRAINING, .type = type, .optimizer = {.master = (int)type}};
    small_model_create_planned(&model, compute, &config, &options);
    small_model_randomise(&model, 3);
    small_model_require(
        checkpoint_save(scratch_path(name), &model.gpt, &(const struct checkpoint_content){.state = &state}));
    small_model_release(&model);
}

/* A vocabulary of all bytes, byte b being token b, and " w" as token 256. */
static void write_ranks(void) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    FILE *file = fopen(scratch_path("ranks"), "w");
    assert_non_null(file);
    for (int byte = 0; byte < 256; byte++) {
        fprintf(file, "%c%c== %d\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
    }
    fprintf(file, "IHc= 256\n");
    assert_int_equal(fclose(file), 0);
}

static int begin(void **state) {
    if (small_model_begin(state, &compute)) {
        return -1;
    }
    make_checkpoint("bytes", 256, "byte", ELEMENT_FP32);
    make_checkpoint("ended", 256, "byte", ELEMENT_FP32);
    make_checkpoint("short", 256, "byte", ELEMENT_BF16);
    make_checkpoint("unnamed", 257, "", ELEMENT_FP32);
    make_checkpoint("gpt2", 300, "gpt2", ELEMENT_FP32); /* ids from 258 on are no tokens */
    make_checkpoint("llama3", 410, "file", ELEMENT_FP32);
    make_checkpoint("small_gpt2", 257, "gpt2", ELEMENT_FP32);
    compute_close(compute);
    write_ranks();
    unsetenv("HCTRAIN_VOCAB_FILE");
    return 0;
}

/* ---- what comes out */

static size_t printed_bytes;

/* The output of the last call of SAMPLE, NUL-terminated. */
static char *printed(void) {
    return scratch_text(scratch_path("out"), &printed_bytes);
}

#define SAMPLE_STATUS(checkpoint, ...)                                                                             \
    CHILD_RUN_WRITING(scratch_path("out"), sample_program, "--device", "pocl", "--checkpoint",                     \
                      scratch_path(checkpoint), ##__VA_ARGS__)

static char *done(int status) {
    assert_done(status);
    return printed();
}

/* The text of a successful run. */
#define SAMPLE(checkpoint, ...) done(SAMPLE_STATUS(checkpoint, ##__VA_ARGS__))

UNIT_TEST(bytes_come_as_they_are) {
    char *text = SAMPLE("bytes", "--prompt", "ab", "--max-new-tokens", "50");
    assert_int_equal(printed_bytes, 2 + 50 + 1);
    assert_memory_equal(text, "ab", 2);
    assert_int_equal(text[printed_bytes - 1], '\n');
    char *again = SAMPLE("bytes", "--prompt", "ab", "--max-new-tokens", "50");
    assert_memory_equal(text, again, 53);
    again = SAMPLE("bytes", "--prompt", "ab", "--max-new-tokens", "50", "--seed", "2");
    assert_memory_not_equal(text, again, 53);
    SAMPLE("bytes", "--max-new-tokens", "0");
    assert_int_equal(printed_bytes, 1);
}

UNIT_TEST(weights_in_bf16_alone_give_the_same_text) {
    char *text = SAMPLE("short", "--dtype", "bf16", "--prompt", "ab", "--max-new-tokens", "50");
    char *narrow =
        SAMPLE("short", "--dtype", "bf16", "--master", "bf16", "--prompt", "ab", "--max-new-tokens", "50");
    assert_string_equal(text, narrow);
}

/* The same texts, one after the other, however many are written side by side; the first is that of one alone. */
UNIT_TEST(samples_come_one_after_the_other) {
    char *one = SAMPLE("bytes", "--prompt", "ab", "--max-new-tokens", "40");
    char *five =
        SAMPLE("bytes", "--prompt", "ab", "--max-new-tokens", "40", "--num-samples", "5", "--batch-size", "2");
    const size_t line = strlen("---------------\n");
    assert_int_equal(printed_bytes, 5 * 43 + 4 * line);
    assert_memory_equal(five, one, 43);
    for (size_t i = 1; i < 5; i++) {
        const char *at = five + i * (43 + line);
        assert_memory_equal(at - line, "---------------\nab", line + 2);
        assert_memory_not_equal(at, five, 43);
    }
    static const char *const sizes[] = {"1", "4", "16"};
    for (size_t i = 0; i < 3; i++) {
        char *other = SAMPLE("bytes", "--prompt", "ab", "--max-new-tokens", "40", "--num-samples", "5",
                             "--batch-size", sizes[i]);
        assert_int_equal(printed_bytes, 5 * 43 + 4 * line);
        assert_memory_equal(other, five, printed_bytes);
    }
}

UNIT_TEST(a_stop_text_ends_samples) {
    char *whole = SAMPLE("bytes", "--prompt", "ab", "--max-new-tokens", "40");
    char stop[3] = "";
    size_t at = 5;
    while (whole[at] == 0 || whole[at + 1] == 0) { /* no NUL in arguments */
        at++;
    }
    memcpy(stop, whole + at, 2);
    const char *first = memmem(whole + 2, 40, stop, 2);
    char *text = SAMPLE("bytes", "--prompt", "ab", "--max-new-tokens", "40", "--stop", stop);
    assert_int_equal(printed_bytes, first - whole + 1);
    assert_memory_equal(text, whole, printed_bytes - 1);
}

/* Text is written as it is made: who reads a pipe gets it at once, and may close it before the end. */
UNIT_TEST(a_closed_pipe_ends_the_text_quietly) {
    char command[1024];
    snprintf(command, sizeof command,
             "'%s' --device pocl --checkpoint '%s' --prompt ab --max-new-tokens 1000000000 2>'%s' | head -c 50",
             sample_program, scratch_path("bytes"), scratch_path("errors"));
    char *text = done(CHILD_RUN_WRITING(scratch_path("out"), "/bin/sh", "-c", command));
    assert_int_equal(printed_bytes, 50);
    assert_memory_equal(text, "ab", 2);
    scratch_text(scratch_path("errors"), &printed_bytes);
    assert_int_equal(printed_bytes, 0);
}

UNIT_TEST(prompts_come_from_files) {
    char *expected = SAMPLE("bytes", "--prompt", "ab\nc", "--max-new-tokens", "20");
    char *text = SAMPLE("bytes", "--prompt-file", scratch_put("prompt", "ab\nc"), "--max-new-tokens", "20");
    assert_string_equal(text, expected);
    char command[1024];
    snprintf(command, sizeof command,
             "printf 'ab\\nc' | '%s' --device pocl --checkpoint '%s' --max-new-tokens 20 --prompt-file -",
             sample_program, scratch_path("bytes"));
    text = done(CHILD_RUN_WRITING(scratch_path("out"), "/bin/sh", "-c", command));
    assert_string_equal(text, expected);
    SAMPLE("bytes", "--prompt-file", scratch_write("zeros", "\0\0\0", 3), "--max-new-tokens", "2");
    assert_int_equal(printed_bytes, 3 + 2 + 1);
}

/* Stopped while it writes: what there is stays, and ends as a text does. */
RUN_TEST(an_interrupted_text_is_ended) {
    start_with(&(struct child_setup){.output = scratch_path("out")},
               (const char *const[]){sample_program, "--device", "pocl", "--checkpoint", scratch_path("bytes"),
                                     "--prompt", "ab", "--max-new-tokens", "1000000000", NULL});
    printed_bytes = 0;
    for (int i = 0; i < 6000 && printed_bytes < 100; i++) {
        wait_ms(10);
        printed();
    }
    assert_int_equal(interrupt(), INTERRUPTED);
    const char *text = printed();
    assert_true(printed_bytes > 100);
    assert_memory_equal(text, "ab", 2);
    assert_int_equal(text[printed_bytes - 1], '\n');
}

/* ---- GPT-2's tokens */

UNIT_TEST(text_is_utf8) {
    char *text = SAMPLE("gpt2", "--vocab-file", scratch_path("ranks"), "--prompt", "\xc3\xa9 w", "--max-new-tokens",
                        "200", "--temperature", "3");
    assert_memory_equal(text, "\xc3\xa9 w", 4);
    assert_int_equal(utf8_prefix(text, printed_bytes), printed_bytes);
    assert_true(printed_bytes > 100);
    setenv("HCTRAIN_VOCAB_FILE", scratch_path("ranks"), 1);
    char *other = SAMPLE("gpt2", "--prompt", "\xc3\xa9 w", "--max-new-tokens", "200", "--temperature", "3");
    unsetenv("HCTRAIN_VOCAB_FILE");
    assert_string_equal(other, text);
}

/* With 258 tokens to choose from, the end of text comes soon. */
UNIT_TEST(the_end_of_text_ends_samples) {
    char *text =
        SAMPLE("gpt2", "--vocab-file", scratch_path("ranks"), "--max-new-tokens", "20000", "--temperature", "100");
    assert_true(printed_bytes < 15000);
    assert_null(strstr(text, "endoftext"));
}

/* Llama 3's begins with <|begin_of_text|>, also without a prompt; a prompt may have it already. */
UNIT_TEST(a_text_begins_as_its_tokenizer_says) {
    static const char beginning[] = "<|begin_of_text|>";
    char *text[4];
#define BEGIN(...)                                                                                                 \
    SAMPLE("llama3", "--tokenizer", LLAMA3, "--temperature", "0", "--max-new-tokens", "12", __VA_ARGS__)
    text[0] = BEGIN("--prompt", "");
    text[1] = BEGIN("--special-tokens", "parse", "--prompt", beginning);
    text[2] = BEGIN("--prompt", "ab");
    text[3] = BEGIN("--special-tokens", "parse", "--prompt", "<|begin_of_text|>ab");
    assert_string_equal(text[0], text[1] + strlen(beginning));
    assert_string_equal(text[2], text[3] + strlen(beginning));
    assert_string_not_equal(text[0], text[2] + strlen("ab"));
}

/* The second of two tokens that config.json names. */
UNIT_TEST(tokens_of_the_model_end_samples) {
    size_t bytes;
    char *whole = SAMPLE("bytes", "--prompt", "ab", "--max-new-tokens", "40");
    const unsigned char end = (unsigned char)whole[12];
    const char *first = memchr(whole + 2, end, 40);
    char *config = scratch_text(scratch_path("ended/config.json"), &bytes);
    char *changed = scratch_format("{\"eos_token_id\": [-7, %d],%s", end, config + 1);
    scratch_put("ended/config.json", changed);
    SAMPLE("ended", "--prompt", "ab", "--max-new-tokens", "40");
    assert_int_equal(printed_bytes, first - whole + 1);
}

UNIT_TEST(what_cannot_be_is_refused) {
    const char *none = scratch_path("none"), *ranks = scratch_path("ranks"), *bad = scratch_put("bad", "x\n");
    const struct {
        int status;
        const char *text, *checkpoint, *options[4];
    } rows[] = {
        {FAILED, "data/gpt2/vocabulary.sh gets it", "gpt2", {NULL}},
        {FAILED, "/none does not exist: data/gpt2/vocabulary.sh", "gpt2", {"--vocab-file", none}},
        {FAILED, "bad:1", "gpt2", {"--vocab-file", bad}},
        {FAILED, "the model has 257 tokens and the tokenizer 'gpt2' 258", "small_gpt2", {"--vocab-file", ranks}},
        {FAILED, "does not say which tokenizer its 257 tokens are of: give --tokenizer byte", "unnamed", {NULL}},
        {FAILED,
         "the prompt: byte 1 of the text is not UTF-8",
         "gpt2",
         {"--vocab-file", ranks, "--prompt", "a\xff"}},
        {WRONG_USAGE, "are two prompts", "bytes", {"--prompt", "a", "--prompt-file", "b"}},
        {FAILED, "cannot open ", "bytes", {"--prompt-file", none}},
        {FAILED, "cannot read ", "bytes", {"--prompt-file", scratch_path("")}},
        {WRONG_USAGE, "top-p", "bytes", {"--top-p", "1.5"}},
        {WRONG_USAGE, "min-p", "bytes", {"--min-p", "-0.1"}},
        {WRONG_USAGE, "repetition-penalty", "bytes", {"--repetition-penalty", "0"}},
        {WRONG_USAGE, "num-samples", "bytes", {"--num-samples", "0"}},
        {WRONG_USAGE, "batch-size", "bytes", {"--batch-size", "17"}},
        {FAILED, "'words' is not there", "bytes", {"--tokenizer", "words"}},
        {FAILED, "master = bf16 needs dtype = bf16", "short", {"--dtype", "fp32", "--master", "bf16"}},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *const *more = rows[i].options;
        assert_failed(SAMPLE_STATUS(rows[i].checkpoint, more[0], more[1], more[2], more[3]), rows[i].status,
                      rows[i].text);
    }
    SAMPLE("unnamed", "--tokenizer", "byte", "--max-new-tokens", "2");
    assert_int_equal(printed_bytes, 3);
}

DEVICE_TEST_MAIN(begin, scratch_end)
