/* Programs given what they cannot use: each refuses with one message that says what and where, with exit status 1
 * (2 for wrong usage), and leaves nothing behind. */
#include "src/checkpoint/config_file.h"
#include "tests/support/runs.h"
#include "tests/support/tensors.h"
#include <dirent.h>

static const char probe_program[] = HC_PROGRAMS "/hc_probe", sample_program[] = HC_PROGRAMS "/hc_sample";

/* A run that gets "refused" as its folder, which must not be there afterwards. */
#define REFUSED(status, text, ...) assert_left_nothing(TRAIN("refused", __VA_ARGS__), status, text)

static void assert_left_nothing(int status, int expected, const char *text) {
    assert_failed(status, expected, text);
    assert_false(files_exist(scratch_path("refused")));
}

/* ---- token files */

static void write_data(const char *folder, size_t train_bytes, size_t val_bytes, uint8_t token) {
    uint8_t *bytes = calloc(train_bytes + val_bytes + 1, 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < train_bytes + val_bytes; i += 2) {
        bytes[i] = token;
    }
    scratch_write(run_path(folder, "train.bin"), bytes, train_bytes);
    scratch_write(run_path(folder, "val.bin"), bytes, val_bytes);
    free(bytes);
}

UNIT_TEST(unfit_token_files_are_refused) {
    enum { ABSENT = 9999 };
#define OF_40 "--vocab-size", "40"
    static const struct {
        const char *text; /* of the error */
        size_t train_bytes, val_bytes;
        uint8_t token;
        const char *meta, *options[4];
    } rows[] = {
        {"tokens/train.bin does not exist: make it with hc_prepare", ABSENT, ABSENT, 1, NULL, {NULL}},
        {"tokens/val.bin", 2000, ABSENT, 1, NULL, {OF_40, "--eval-iters", "1"}},
        {"tokens/train.bin", 0, 2000, 1, NULL, {OF_40}},
        {"tokens/val.bin", 2000, 2001, 1, NULL, {OF_40, "--eval-iters", "1"}},
        {"tokens/train.bin", 20, 2000, 1, NULL, {OF_40}}, /* less than one sequence */
        {"tokens/train.bin: token 200 at position 0", 2000, 2000, 200, NULL, {OF_40}},
        {"tokens/meta.json does not exist, so vocab_size is needed", 2000, 2000, 1, NULL, {NULL}},
        {"tokens/meta.json:1", 2000, 2000, 1, "{\"vocab_size\": ", {NULL}},
        {"vocab_size", 2000, 2000, 1, "{\"vocab_size\": 0}", {NULL}},
        {"vocabulary of 256 tokens", 2000, 2000, 1, "{\"vocab_size\": 256}", {"--vocab-size", "255"}},
        {"tokens/meta.json: 'tokenizer' is 5: it must be a string",
         2000,
         2000,
         1,
         "{\"vocab_size\": 256, \"tokenizer\": 5}",
         {NULL}},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *const *more = rows[i].options;
        write_data("tokens", rows[i].train_bytes, rows[i].val_bytes, rows[i].token);
        for (int val = 0; val < 2; val++) {
            if ((val ? rows[i].val_bytes : rows[i].train_bytes) == ABSENT) {
                assert_int_equal(unlink(scratch_path(val ? "tokens/val.bin" : "tokens/train.bin")), 0);
            }
        }
        if (rows[i].meta) {
            scratch_put("tokens/meta.json", rows[i].meta);
        }
        REFUSED(FAILED, rows[i].text, "--data-dir", scratch_path("tokens"), more[0], more[1], more[2], more[3]);
    }
}

UNIT_TEST(estimate_of_prompts_alone_is_refused) {
    static const char meta[] = "{\"vocab_size\": 40, \"document_lengths\": true}";
    static const unsigned char document[8] = {0xe8, 3, 0, 0, 0xe7, 3, 0, 0}; /* 1000 tokens, 999 of them a prompt */
    write_data("asked", 2000, 2000, 1);
    scratch_put("asked/meta.json", meta);
    scratch_write("asked/train.documents", document, sizeof document);
    scratch_write("asked/val.documents", document, sizeof document);
    assert_failed(TRAIN("asked-out", "--data-dir", scratch_path("asked"), "--eval-iters", "1"), FAILED,
                  "asked/train.bin: all tokens of the batches that estimate the loss (eval_iters = 1) are prompts");
}

/* Without evaluation nobody needs it: hc_prepare --val-fraction 0 makes such folders. */
UNIT_TEST(held_out_tokens_are_not_needed_without_evaluation) {
    write_data("train-only", 2000, 0, 1);
    unlink(scratch_path("train-only/val.bin"));
    assert_done(
        TRAIN("no-val", "--data-dir", scratch_path("train-only"), "--vocab-size", "40", "--max-iters", "1"));
}

/* Rows of the embedding that no token uses are said, once there are more of them than of the others; a resumed run
 * has its own. */
UNIT_TEST(vocabulary_that_is_too_large_is_said) {
    static const char words[] = "warning  vocabulary 513, of which the data use 256: leave vocab_size "
                                "out, or prepare the text with another hc_prepare --tokenizer\n";
    assert_done(TRAIN("roomy", "--vocab-size", "513", "--max-iters", "1"));
    assert_says(words);
    assert_done(TRAIN("roomy", "--init-from", "resume", "--max-iters", "2"));
    assert_null(strstr(child_message(), "of which the data use"));
    assert_done(TRAIN("double", "--vocab-size", "512", "--max-iters", "1"));
    assert_null(strstr(child_message(), "of which the data use"));
}

/* ---- options */

UNIT_TEST(wrong_options_are_named) {
    static const struct {
        int status;
        const char *text, *options[4];
    } rows[] = {
        {WRONG_USAGE, "--nonsense", {"--nonsense", "3"}},
        {WRONG_USAGE, "--n-layer: 'two' is not a whole number", {"--n-layer", "two"}},
        {WRONG_USAGE, "--learning-rate", {"--learning-rate", "11"}},
        {WRONG_USAGE, "--dropout", {"--dropout", "1"}},
        {WRONG_USAGE, "--residual", {"--residual", "shcc"}},
        {WRONG_USAGE, "--n-streams", {"--n-streams", "9"}},
        {WRONG_USAGE, "stray", {"stray"}},
        {WRONG_USAGE, "n_embd = 16 is not divisible by n_head = 3", {"--n-head", "3"}},
        {WRONG_USAGE, "head_dim = 5 is odd", {"--position=rope", "--head-dim", "5"}},
        {WRONG_USAGE, "n_head = 4 is not divisible by n_kv_head = 3", {"--n-head=4", "--n-kv-head", "3"}},
        {WRONG_USAGE, "n_streams = 1: 'shc' needs 2 to 8 streams", {"--n-streams", "1"}},
        {FAILED, "no OpenCL device \"nosuch\"; there are: 0: ", {"--device", "nosuch"}},
        {FAILED, "there are: 0: ", {"--device", "99"}},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *const *more = rows[i].options;
        REFUSED(rows[i].status, rows[i].text, more[0], more[1], more[2], more[3]);
    }
    assert_failed(CHILD_RUN(probe_program), WRONG_USAGE, "--checkpoint, --batch and --out are all needed");
    assert_failed(CHILD_RUN(probe_program, "--checkpoint", "a", "--batch", "b", "--out", "c", "--samples", "3"),
                  WRONG_USAGE, "--samples is for --measure");
}

UNIT_TEST(wrong_config_lines_are_named_with_their_file) {
    const char *path = scratch_write("bad.conf", "# fine\nn_layer = 2\nn_embd = many\n", 34);
    REFUSED(WRONG_USAGE, "bad.conf:3: n_embd", "--config", path);
    path = scratch_put("bad.conf", "n_layre = 2\n");
    REFUSED(WRONG_USAGE, "bad.conf:1: ", "--config", path);
    assert_says("n_layre");
    REFUSED(WRONG_USAGE, "no-such.conf", "--config", scratch_path("no-such.conf"));
}

/* Nothing is wrong with those of configs/; one sequence a pass, so that memory suffices anywhere. */
UNIT_TEST(configs_of_the_repository_are_accepted) {
    DIR *folder = opendir(HC_TEST_DATA "/../configs");
    size_t count = 0;
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        const char *ending = strrchr(entry->d_name, '.');
        if (ending && strcmp(ending, ".conf") == 0) {
            const char *path = scratch_format(HC_TEST_DATA "/../configs/%s", entry->d_name);
            assert_done(CHILD_RUN(TRAIN_PROGRAM, "--config", path, "--data-dir", scratch_path("data"), "--device",
                                  "pocl", "--batch-size", "1", "--plan-only"));
            count++;
        }
    }
    closedir(folder);
    assert_true(count > 0);
}

/* ---- memory */

#define PAPER_M                                                                                                    \
    "--device", "pocl", "--n-layer", "12", "--n-head", "12", "--n-embd", "768", "--block-size", "1024",            \
        "--vocab-size", "50304", "--residual", "mhc_lite", "--n-streams", "8", "--data-dir", scratch_path("data")

/* The paper's example of what cannot be trained: 6e9 parameters, nearly all of them auxiliary. With 4096 sequences
 * a pass it is beyond any machine; planning takes no memory to speak of. */
UNIT_TEST(model_too_large_for_memory_is_refused_before_it_is_allocated) {
    REFUSED(FAILED, "not enough memory: this run needs ", PAPER_M, "--batch-size", "4096");
    static const char *const numbers[] = {"6073274568", "5948900808", "weights", "22.62 GiB"};
    for (size_t i = 0; i < COUNT(numbers); i++) {
        assert_says(numbers[i]);
    }
    assert_true(child_peak_bytes() < (uint64_t)1 << 30);
    REFUSED(FAILED, "not enough memory", PAPER_M, "--batch-size", "4096", "--plan-only");
}

UNIT_TEST(batch_too_large_for_memory_is_refused) {
    REFUSED(FAILED, "not enough memory: this run needs ", "--block-size", "1024", "--n-embd", "8192",
            "--batch-size", "100000");
    assert_says("choose a smaller batch_size");
    REFUSED(FAILED, "out of range", "--block-size", "1048576", "--batch-size", "1048576");
}

/* ---- checkpoints */

/* A checkpoint with one damaged file. */
struct damage {
    const char *file;
    enum { FLIPPED, HALVED, EMPTIED, REMOVED, REPLACED } kind; /* a bit; all of it; one text by another */
    const char *old, *new;                                     /* as long as one another */
    const char *text;                                          /* of the error */
    bool resumes;                                              /* goes on with the run, or begins another one */
};

/* Makes "damaged" a copy of the run "whole" but for the damage. */
static void make_damaged(const struct damage *damage) {
    static const char *const names[] = {"config.json", "model.safetensors", "optimizer.safetensors", "state.json"};
    for (size_t i = 0; i < COUNT(names); i++) {
        copy(run_path("whole/ckpt-2", names[i]), run_path("damaged/ckpt-2", names[i]));
    }
    size_t bytes;
    const char *name = run_path("damaged/ckpt-2", damage->file);
    char *content = scratch_text(scratch_path(name), &bytes), *place;
    switch (damage->kind) {
    case FLIPPED:
        content[bytes - 100] ^= 4;
        break;
    case HALVED:
        bytes /= 2;
        break;
    case EMPTIED:
        bytes = 0;
        break;
    case REMOVED:
        unlink(scratch_path(name));
        return;
    case REPLACED:
        place = memmem(content, bytes, damage->old, strlen(damage->old));
        assert_non_null(place);
        memcpy(place, damage->new, strlen(damage->new));
        break;
    }
    scratch_write(name, content, bytes);
}

static void assert_not_resumed(const char *text) {
    assert_failed(TRAIN("damaged", "--init-from", "resume"), FAILED, text);
    assert_int_equal(scratch_entries(scratch_path("damaged")), 1);
}

#define MODEL     "model.safetensors"
#define OPTIMIZER "optimizer.safetensors"

UNIT_TEST(damaged_checkpoints_are_refused) {
    static const struct damage rows[] = {
        {MODEL, FLIPPED, NULL, NULL, MODEL " is damaged: its checksum differs", true},
        {OPTIMIZER, FLIPPED, NULL, NULL, OPTIMIZER " is damaged: its checksum differs", true},
        /* still the same JSON */
        {"config.json", REPLACED, "{\n", "{ ", "config.json is damaged: its checksum differs", true},
        {MODEL, HALVED, NULL, NULL, MODEL, true},
        {MODEL, HALVED, NULL, NULL, MODEL, false},
        {MODEL, EMPTIED, NULL, NULL, MODEL, false},
        {"state.json", HALVED, NULL, NULL, "state.json:", true},
        {"config.json", REMOVED, NULL, NULL, "config.json", true},
        {MODEL, REMOVED, NULL, NULL, MODEL, true},
        {OPTIMIZER, REMOVED, NULL, NULL, OPTIMIZER, true},
        {"state.json", REMOVED, NULL, NULL, "state.json", true},
        /* of other models */
        {MODEL, REPLACED, "ln_f.weight", "ln_g.weight", "tensor 'transformer.ln_f.weight' is missing", false},
        {MODEL, REPLACED, "[48,16]", "[16,48]", "tensor 'transformer.h.0.attn.c_attn.weight' has shape [", false},
        {"config.json", REPLACED, "\"bias\": false", "\"bias\": true ", "tensors, the model", false},
        {"config.json", REPLACED, "\"n_layer\": 1", "\"n_layer\": 2", "was saved with another n_layer than", false},
        {"config.json", REPLACED, "\"shc\"", "\"mhc\"", MODEL " has ", false},
        {"config.json", REPLACED, "\"byte\"", "\"gpt2\"",
         "data has tokens of \"byte\", the model has tokens of \"gpt2\": prepare the text with the model's "
         "tokenizer",
         false},
        {"config.json", REPLACED, "\"byte\"", "\"char\"", "the model has tokens of \"char\": prepare the text",
         false},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        make_damaged(&rows[i]);
        if (rows[i].resumes) {
            assert_not_resumed(rows[i].text);
        } else {
            REFUSED(FAILED, rows[i].text, "--init-from", scratch_path("damaged/ckpt-2"));
        }
    }
}

UNIT_TEST(config_that_is_no_config_is_refused) {
    static const char *const texts[][2] = {
        {"garbage", "config.json:1: "},
        {"", "config.json"},
        {"[1, 2]", "config.json: "},
        {"{\"residual\": \"shc\"}", "'n_layer' is missing"},
        {"{\"residual\": \"shc\", \"n_layer\": 1.5}", "n_layer = '1.5' is not a whole number"},
        {"{\"residual\": \"shc\", \"n_layer\": \"2\"}", "'n_layer' is \"2\": it is of another type"},
        {"{\"residual\": true}", "config.json: 'residual' is true: it must be a string"},
        {"{\"residual\": \"shc\", \"n_layer\": Infinity}", "'n_layer' is Infinity: it"},
        {"{\"residual\": \"shc\", \"n_layer\": -1, \"n_head\": 2, \"n_embd\": 16, \"vocab_size\": 256, "
         "\"block_size\": 16, \"n_streams\": 4}",
         "n_layer = -1 is out of range"},
        {"{\"residual\": \"xyz\"}", "'residual' is not one of "},
        {"{\"residual\": \"rc\", \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 16, \"vocab_size\": 256, "
         "\"block_size\": 16, \"window\": 4}",
         "'window' is not a setting that this version of hctrain knows"},
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct model_config config;
        scratch_put("damaged/ckpt-2/config.json", texts[i][0]);
        assert_error(config_file_read(scratch_path("damaged/ckpt-2"), &config), texts[i][1]);
    }
    REFUSED(FAILED, "config.json", "--init-from", scratch_path("damaged/ckpt-2"));
    assert_failed(CHILD_RUN(sample_program, "--checkpoint", scratch_path("damaged/ckpt-2")), FAILED, "config.json");
}

UNIT_TEST(states_of_other_types_are_refused) {
    static const char *const members[] = {"best_val_loss", "seconds"};
    for (size_t i = 0; i < COUNT(members); i++) {
        make_damaged(&(struct damage){"state.json", REPLACED, "{", "{", NULL, true}); /* as it is */
        set_in_json("damaged/ckpt-2/state.json", members[i], json_string("2.5"));
        assert_not_resumed(scratch_format("state.json: '%s' is \"2.5\": it must be a number", members[i]));
    }
}

/* A tokenizer that is not known passes. */
UNIT_TEST(tokens_of_another_tokenizer_are_refused) {
    write_data("words", 2000, 2000, 1);
    scratch_put("words/meta.json", "{\"vocab_size\": 256, \"tokenizer\": \"gpt2\"}");
    REFUSED(FAILED,
            "words has tokens of \"gpt2\", the model has tokens of \"byte\": prepare the text with the model's ",
            "--data-dir", scratch_path("words"), "--init-from", scratch_path("whole/ckpt-2"));
    scratch_put("words/meta.json", "{\"vocab_size\": 256}");
    assert_done(TRAIN("tuned", "--data-dir", scratch_path("words"), "--init-from", scratch_path("whole/ckpt-2"),
                      "--max-iters", "1"));
}

/* A run directory in place of one of its checkpoints: what is there is named. */
UNIT_TEST(run_directories_are_no_checkpoints) {
#define WORDS         "/bare is a run directory, not a checkpoint: give "
#define SAMPLED(text) assert_failed(CHILD_RUN(sample_program, "--checkpoint", scratch_path("bare")), FAILED, text)
    SAMPLED("bare/config.json"); /* there is no such folder */
    scratch_put("bare/ckpt-2/config.json", "{}");
    SAMPLED(WORDS);
    SAMPLED("/bare/ckpt-2\n");
    scratch_put("bare/ckpt-10/config.json", "{}");
    SAMPLED("/bare/ckpt-10 (or ckpt-2)\n");
    scratch_put("bare/ckpt-best/config.json", "{}");
    assert_failed(CHILD_RUN(sample_program, "--checkpoint", scratch_path("bare/")), FAILED,
                  "/bare/ckpt-best (or ckpt-10)\n");
    REFUSED(FAILED, WORDS, "--init-from", scratch_path("bare"));
#undef SAMPLED
#undef WORDS
}

/* ---- standard output */

UNIT_TEST(text_that_cannot_be_printed_is_an_error) {
    assert_failed(CHILD_RUN_WRITING("/dev/full", TRAIN_PROGRAM, "--help"), FAILED,
                  "cannot write the help text: No space");
    assert_failed(CHILD_RUN_WRITING("/dev/full", TRAIN_PROGRAM, "--version"), FAILED,
                  "cannot write the version: No space");
    static const char *const counts[] = {"0", "3"};
    for (size_t i = 0; i < 2; i++) {
        assert_failed(CHILD_RUN_WRITING("/dev/full", sample_program, "--device", "pocl", "--checkpoint",
                                        scratch_path("whole/ckpt-2"), "--max-new-tokens", counts[i]),
                      FAILED, "hc_sample: cannot write the text: No space left on device");
    }
    assert_done(CHILD_RUN_WRITING(scratch_path("sampled"), sample_program, "--device", "pocl", "--checkpoint",
                                  scratch_path("whole/ckpt-2"), "--max-new-tokens", "3", "--prompt", "ab"));
    size_t bytes;
    const char *text = scratch_text(scratch_path("sampled"), &bytes);
    assert_int_equal(bytes, 2 + 3 + 1); /* and a newline */
    assert_memory_equal(text, "ab", 2);
}

/* ---- batches for hc_probe */

#define PROBE(batch, ...)                                                                                          \
    CHILD_RUN(probe_program, "--device", "pocl", "--checkpoint", scratch_path("whole/ckpt-2"), "--batch", batch,   \
              "--out", scratch_path("refused"), ##__VA_ARGS__)

UNIT_TEST(wrong_batches_are_refused) {
    static const int32_t good[48] = {1, 2, 3}, low[48] = {0, -1}, high[48] = {0, 0, 256}, very_low[48] = {0, -2};
    const struct tensors_ids fine = {2, {2, 16}, good};
    const struct {
        struct tensors_ids x, y;
        const char *text;
    } rows[] = {
        {{2, {2, 16}, low}, fine, "x[1] = -1 is not a token of this model"},
        {{2, {2, 16}, high}, fine, "x[2] = 256 is not a token"},
        {fine, {2, {2, 16}, high}, "y[2] = 256 is not a token"},
        {fine, {2, {2, 16}, very_low}, "y[1] = -2 is not a token"},
        {{1, {32}, good}, fine, "tensor 'x' must be there as I32 with 2 dim"},
        {fine, {3, {2, 4, 4}, good}, "tensor 'y' must be there as I32 with 2"},
        {{2, {0, 16}, good}, fine, "none of them 0"},
        {fine, {2, {1, 16}, good}, "x and y have different shapes"},
        {{2, {2, 17}, good}, {2, {2, 17}, good}, "block_size 16"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        tensors_write_batch(scratch_path("batch"), rows[i].x, rows[i].y);
        assert_left_nothing(PROBE(scratch_path("batch")), FAILED, rows[i].text);
    }
    assert_left_nothing(PROBE(scratch_path("batch"), "--train"), FAILED, "I32 with 4 dimensions");
    assert_left_nothing(PROBE(scratch_path("whole/ckpt-2/model.safetensors")), FAILED, "tensor 'x' must be there");
    assert_left_nothing(PROBE(scratch_path("no-batch")), FAILED, "no-batch");
    tensors_write_batch(scratch_path("batch"), fine, fine);
    assert_done(PROBE(scratch_path("batch")));
    unlink(scratch_path("refused"));
}

/* 10000 bytes hold what the programs say, but no result. */
UNIT_TEST(probe_that_cannot_write_leaves_the_old_results) {
    static const int32_t ids[32] = {1, 2, 3};
    const struct tensors_ids pass = {2, {2, 16}, ids}, steps = {4, {1, 1, 2, 16}, ids};
    const char *checkpoint = scratch_path("large/ckpt-0"), *batch = scratch_path("batch");
    assert_done(TRAIN("large", "--vocab-size", "4096", "--max-iters", "0")); /* larger than what PoCL writes */
    for (int train = 0; train <= 1; train++) {
        const char *out = scratch_path(train ? "probed-steps" : "probed/result");
        const char *file = train ? "probed-steps/model.safetensors" : "probed/result";
        const char *folder = scratch_path(train ? "probed-steps" : "probed");
        const char *mode = train ? "--train" : "--no-train";
        const char *const arguments[] = {probe_program, "--device", "pocl", "--checkpoint", checkpoint, "--batch",
                                         batch,         "--out",    out,    mode,           NULL};
        tensors_write_batch(batch, train ? steps : pass, train ? steps : pass);
        assert_int_equal(files_make_folder(folder), 0);
        assert_done(child_finish(child_start(CHILD_UNLIMITED, arguments))); /* fills the caches of kernels */
        const int entries = scratch_entries(folder);
        scratch_put(file, "old");
        assert_failed(child_finish(child_start(150000, arguments)), FAILED, "File too large");
        assert_says("what was there before is untouched");
        assert_string_equal(scratch_text(scratch_path(file), NULL), "old");
        assert_int_equal(scratch_entries(folder), entries);
    }
}

static int begin(void **state) {
    return corpus_begin(state) || TRAIN("whole", "--max-iters", "2");
}

UNIT_TEST_MAIN(begin, scratch_end)
