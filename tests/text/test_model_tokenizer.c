/* A tokenizer.json on its way through the programs: beside the token files that it made, in the checkpoints of
 * models that are trained on them, in samples, evaluations and exports. */
#include "runtime/files/json_file.h"
#include "tests/support/runs.h"

#define QWEN2  HC_TEST_DATA "/text/tokenizers/qwen2.json"
#define LLAMA3 HC_TEST_DATA "/text/tokenizers/llama3.json"

#define PREPARE_TO(folder, ...) CHILD_RUN(HC_PROGRAMS "/hc_prepare", "--out", scratch_path(folder), ##__VA_ARGS__)
#define TRAIN_ON(data, ...)     "--data-dir", scratch_path(data), "--max-iters", "2", ##__VA_ARGS__
#define RUN(program, ...)                                                                                          \
    CHILD_RUN(HC_PROGRAMS "/" program, "--checkpoint", scratch_path("run/ckpt-2"), ##__VA_ARGS__)

static const char *text_file;

static void assert_copied(const char *folder, const char *expected) {
    size_t bytes, wanted;
    char *copy = scratch_text(scratch_path(scratch_format("%s/tokenizer.json", folder)), &bytes);
    const char *whole = scratch_text(expected, &wanted);
    assert_int_equal(bytes, wanted);
    assert_memory_equal(copy, whole, bytes);
}

static json_t *meta_of(const char *folder) {
    json_t *meta;
    assert_int_equal(json_file_read(scratch_path(scratch_format("%s/meta.json", folder)), 1 << 20, &meta), 0);
    return meta;
}

/* Other results replace it; without one, none is left. */
UNIT_TEST(test_prepared_folders) {
    assert_done(PREPARE_TO("replaced", "--tokenizer", LLAMA3, text_file));
    assert_copied("replaced", LLAMA3);
    assert_done(PREPARE_TO("replaced", "--tokenizer", QWEN2, "--end-of-text", "<|im_end|>", text_file));
    assert_copied("replaced", QWEN2);
    json_t *meta = meta_of("replaced");
    assert_string_equal(json_string_value(json_object_get(meta, "tokenizer")), "file");
    assert_string_equal(json_string_value(json_object_get(meta, "end_of_text")), "<|im_end|>");
    assert_int_equal(json_integer_value(json_object_get(meta, "vocab_size")), 406);
    assert_non_null(json_object_get(meta, "tokenizer_sha256"));
    json_decref(meta);
    assert_failed(PREPARE_TO("replaced", "--tokenizer", scratch_path("replaced/tokenizer.json"), text_file), FAILED,
                  "tokenizer.json");
    assert_done(PREPARE_TO("replaced", text_file));
    assert_false(files_exist(scratch_path("replaced/tokenizer.json")));
    assert_failed(PREPARE_TO("none", "--tokenizer", "words", text_file), FAILED, "'words' is not there");
}

/* A control token in a document is text, or with parse the token itself. */
static json_int_t train_tokens(const char *word) {
    static const char line[] = "{\"text\": \"<|im_end|>\"}\n";
    const char *source = scratch_put("line.jsonl", line);
    assert_done(
        PREPARE_TO("special", "--tokenizer", QWEN2, "--special-tokens", word, "--val-fraction", "0", source));
    json_t *meta = meta_of("special");
    const json_int_t tokens = json_integer_value(json_object_get(meta, "train_tokens"));
    json_decref(meta);
    return tokens;
}

UNIT_TEST(test_control_tokens) {
    assert_int_equal(train_tokens("parse"), 2); /* and the end of the text */
    assert_true(train_tokens("text") > 5);
}

UNIT_TEST(test_checkpoints) {
    assert_done(PREPARE_TO("data", "--tokenizer", QWEN2, text_file));
    assert_done(TRAIN("run", TRAIN_ON("data")));
    assert_copied("run/ckpt-2", QWEN2);
    assert_done(RUN("hc_sample", "--device", "pocl", "--prompt", "the <|im_start|>", "--max-new-tokens", "3"));
    assert_done(RUN("hc_eval", "--device", "pocl", text_file));
    assert_done(RUN("hc_export", "--format", "torch", "--out", scratch_path("export")));
    assert_copied("export", QWEN2);

    /* data of another tokenizer.json are refused */
    assert_done(PREPARE_TO("other", "--tokenizer", LLAMA3, text_file));
    assert_failed(TRAIN("tuned", TRAIN_ON("other", "--init-from", scratch_path("run/ckpt-2"))), FAILED,
                  "ckpt-2/tokenizer.json are not the same: prepare the text with the model's tokenizer");
    assert_done(TRAIN("tuned", TRAIN_ON("data", "--init-from", scratch_path("run/ckpt-2"))));
    assert_copied("tuned/ckpt-2", QWEN2);
    assert_int_equal(unlink(scratch_path("run/ckpt-2/tokenizer.json")), 0);
    assert_failed(RUN("hc_sample", "--prompt", "a"), FAILED, "ckpt-2/tokenizer.json");
    assert_done(
        RUN("hc_sample", "--device", "pocl", "--prompt", "a", "--max-new-tokens", "2", "--tokenizer", QWEN2));
}

/* Tokens that were added after training have no rows in the model, which only texts with them need. */
UNIT_TEST(test_added_after_training) {
    json_t *tokenizer;
    assert_int_equal(json_file_read(QWEN2, 1 << 20, &tokenizer), 0);
    for (int i = 0; i < 50; i++) { /* the model has 448 rows for 406 tokens */
        json_array_append_new(json_object_get(tokenizer, "added_tokens"),
                              json_pack("{s:i, s:o}", "id", 406 + i, "content", json_sprintf("[PAD%d]", i)));
    }
    const char *path = scratch_path("padded.json");
    assert_int_equal(json_file_write(path, tokenizer, 0), 0);
    assert_done(
        RUN("hc_sample", "--device", "pocl", "--prompt", "a [PAD0]", "--max-new-tokens", "2", "--tokenizer", path));
    assert_done(RUN("hc_eval", "--device", "pocl", "--tokenizer", path, text_file));
    assert_failed(RUN("hc_sample", "--prompt", "a [PAD49]", "--tokenizer", path), FAILED,
                  "the text has the token '[PAD49]', 455, and the model has only 448 tokens");

    /* a folder whose tokenizer.json has them is trained on, too */
    assert_int_equal(rename(path, scratch_path("run/ckpt-2/tokenizer.json")), 0);
    assert_done(PREPARE_TO("padded", "--tokenizer", scratch_path("run/ckpt-2/tokenizer.json"), text_file));
    assert_done(TRAIN("on-padded", TRAIN_ON("padded", "--init-from", scratch_path("run/ckpt-2"))));
    char words[4000];
    for (size_t i = 0; i < sizeof words; i++) {
        words[i] = "[PAD49] the\n"[i % 12];
    }
    assert_done(PREPARE_TO("needing", "--tokenizer", scratch_path("run/ckpt-2/tokenizer.json"), "--special-tokens",
                           "parse", "--val-fraction", "0", scratch_write("pad.txt", words, sizeof words)));
    assert_failed(TRAIN("on-needing",
                        TRAIN_ON("needing", "--eval-iters", "0", "--init-from", scratch_path("run/ckpt-2"))),
                  FAILED, "vocabulary");
}

static int begin(void **state) {
    static char text[40000];
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = "the tokens of a text.\n"[i % 22];
    }
    const int status = corpus_begin(state);
    text_file = scratch_write("text.txt", text, sizeof text);
    return status;
}

UNIT_TEST_MAIN(begin, scratch_end)
