/* Hostile text wherever programs take in names: of files and folders, tensors, types, settings and tokenizers. They
 * show it, and print nothing that a terminal would obey, or that could be taken for a line of theirs. */
#include "runtime/system/memory.h"
#include "tests/support/hostile.h"
#include "tests/support/runs.h"

#define DEVICE "--device", "pocl"

static void assert_refused_and_shown(const struct command *command) {
    const int status = command_run(command, NULL);
    if (status != 1 && status != 2) {
        fail_msg("hc_%s ended with %d: %s", command->words[0], status, child_message());
    }
    assert_shown(child_message());
}

/* ---- tensors */

UNIT_TEST(tensors) {
    static const char *const headers[] = {
        "{\"" HOSTILE_JSON "\":{\"dtype\":\"F32\",\"shape\":[9],\"data_offsets\":[0,4]}}",
        "{\"x\":{\"dtype\":\"" HOSTILE_JSON "\",\"shape\":[1],\"data_offsets\":[0,4]}}",
        "{\"x\":\"\xc2\x9b"
        "2J\n\"}",
    };
    static const struct command probe = {
        {"probe", DEVICE, "--batch", "@hostile.safetensors", "--out", "@probed", "--checkpoint", "@run/ckpt-2"}};
    for (size_t i = 0; i < COUNT(headers); i++) {
        char file[512];
        const uint64_t length = strlen(headers[i]);
        memcpy(file, &length, sizeof length);
        memcpy(file + 8, headers[i], length);
        memset(file + 8 + length, 0, 4);
        scratch_write("hostile.safetensors", file, 8 + length + 4);
        assert_refused_and_shown(&probe);
    }
}

/* ---- settings */

/* Puts a file of the run "run" into "damaged" with this text in place of another. */
static void damage(const char *name, const char *old, const char *new) {
    char *text = scratch_text(scratch_path(run_path("run", name)), NULL);
    char *found = strstr(text, old);
    if (found == NULL) {
        fail_msg("'%s' is not in %s: %s", old, name, text);
    }
    *found = '\0';
    char *changed = memory_format("%s%s%s", text, new, found + strlen(old));
    scratch_put(run_path("damaged", name), changed);
    free(changed);
}

UNIT_TEST(settings) {
    static const char *const lines[] = {"\x1b[31mname = 1\n", "n_layer = \x1b[31m\n", "no line \x1b[31m\n",
                                        "residual = \""
                                        "\\x1b[31m\\r\\nforged"
                                        "\"\n"};
    static const struct command train = {{"train", "--config", "@hostile.conf", "--out-dir", "@new"}};
    static const struct command others[] = {
        {{"train", "--" HOSTILE_TEXT, "1"}},
        {{"train", "--n-layer", HOSTILE_TEXT}},
        {{"train", HOSTILE_TEXT}},
        {{"train", "--data-dir", "@data", "--device", HOSTILE_TEXT, "--out-dir", "@new"}},
    };
    for (size_t i = 0; i < COUNT(lines); i++) {
        scratch_put("hostile.conf", lines[i]);
        assert_refused_and_shown(&train);
    }
    for (size_t i = 0; i < COUNT(others); i++) {
        assert_refused_and_shown(&others[i]);
    }
}

UNIT_TEST(checkpoints) {
    static const struct command sample = {{"sample", DEVICE, "--checkpoint", "@damaged/ckpt-2"}},
                                resume = {{"train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir",
                                           "@damaged", "--init-from", "resume"}};
    static const char hugging[] = "{\"model_type\": \"" HOSTILE_JSON "\"}";
    damage("ckpt-2/config.json", "\"tokenizer\": \"byte\"", "\"tokenizer\": \"\\u001b[1m\\n\"");
    assert_refused_and_shown(&sample);
    scratch_put("damaged/ckpt-2/config.json", hugging);
    assert_refused_and_shown(&sample);
    damage("ckpt-2/state.json", "\"settings\": \"", "\"settings\": \"" HOSTILE_JSON " = 1\\n");
    assert_refused_and_shown(&resume);
    damage("ckpt-2/state.json", "\"config.json\"", "\"" HOSTILE_JSON "\"");
    assert_refused_and_shown(&resume);
}

UNIT_TEST(data_folders) {
    static const char *const metas[] = {"{\"vocab_size\": \"\xc2\x9b"
                                        "2J\n\"}",
                                        "{\"vocab_size\": 256, \"tokenizer\": \"\\u001b[1m\\n\"}"};
    static const struct command train = {
        {"train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir", "@hostile-run", "--start-over"}};
    static const struct command sample = {
        {"sample", DEVICE, "--checkpoint", "@hostile-run/ckpt-20", "--max-new-tokens", "1"}};
    for (size_t i = 0; i < COUNT(metas); i++) {
        scratch_put("data/meta.json", metas[i]);
        const int status = command_run(&train, NULL);
        if (status == 0) {
            assert_refused_and_shown(&sample); /* the name has gone into the checkpoint */
        } else {
            assert_shown(child_message());
        }
    }
    unlink(scratch_path("data/meta.json"));
}

/* ---- names of files */

#define NAME "name" HOSTILE_TEXT

UNIT_TEST(names_of_files) {
    static const struct command commands[] = {
        {{"train", "--data-dir", "@" NAME}},
        {{"train", "--config", "@" NAME}},
        {{"sample", DEVICE, "--checkpoint", "@" NAME}},
        {{"sample", DEVICE, "--checkpoint", "@run/ckpt-2", "--prompt-file", "@" NAME}},
        {{"eval", DEVICE, "--checkpoint", "@run/ckpt-2", "@" NAME}},
        {{"probe", DEVICE, "--checkpoint", "@run/ckpt-2", "--out", "@probed", "--batch", "@" NAME}},
        {{"export", "--out", "@exported", "--checkpoint", "@" NAME}},
        {{"prepare", "--out", "@prepared", "@" NAME}},
        {{"analyze", "--out", "@report", "@" NAME}},
        {{"bench", "--json", "@no/" NAME, "--steps", "1"}},
    };
    for (size_t i = 0; i < COUNT(commands); i++) {
        assert_refused_and_shown(&commands[i]);
    }
}

/* What programs print that did what they were to do. */
UNIT_TEST(names_of_results) {
    static const struct command commands[] = {
        {{"prepare", "--out", "@" NAME, "@text.txt"}},
        {{"train", "--config", "@tiny.conf", "--vocab-size", "256", "--data-dir", "@" NAME, "--max-iters", "2",
          "--out-dir", "@run-" NAME}},
        {{"export", "--format", "torch", "--out", "@exported-" NAME, "--checkpoint", "@run-" NAME "/ckpt-2"}},
        {{"eval", DEVICE, "--eval-iters", "1", "--data", "@" NAME, "--checkpoint", "@run-" NAME "/ckpt-2"}},
        {{"analyze", DEVICE, "--samples", "1", "--data-dir", "@" NAME, "--out", "@report-" NAME, "@run-" NAME}},
    };
    for (size_t i = 0; i < COUNT(commands); i++) {
        const int status = command_run(&commands[i], scratch_path("printed"));
        if (status != 0) {
            fail_msg("hc_%s ended with %d: %s", commands[i].words[0], status, child_message());
        }
        char *all = memory_format("%s%s", scratch_text(scratch_path("printed"), NULL), child_message());
        assert_shown(all);
        free(all);
    }
}

UNIT_TEST(reports) {
    static const char *const files[] = {"report.html", "figures/loss.csv", "figures/loss.svg"};
    for (size_t i = 0; i < COUNT(files); i++) {
        size_t bytes;
        const char *text = scratch_text(scratch_path(run_path("report-" NAME, files[i])), &bytes);
        assert_int_equal(strlen(text), bytes);
        assert_null(strchr(text, '\x1b'));
        assert_null(strchr(text, '\r'));
        assert_null(strstr(text, "\xc2\x9b"));
        assert_null(strstr(text, "\nforged"));
    }
}

/* ---- what a model writes */

UNIT_TEST(samples_on_a_terminal) {
    static const struct command sample = {{"sample", DEVICE, "--checkpoint", "@run/ckpt-2", "--max-new-tokens", "0",
                                           "--prompt", "\x1b[31mab\xc3\xa9\n"}};
    char text[1024] = "";
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    assert_true(terminal >= 0);
    assert_int_equal(grantpt(terminal) | unlockpt(terminal), 0);
    const int kept = open(ptsname(terminal), O_RDWR | O_NOCTTY); /* what was written stays until it is read */
    assert_true(kept >= 0);
    assert_int_equal(command_run(&sample, ptsname(terminal)), 0);
    assert_true(read(terminal, text, sizeof text - 1) > 0);
    assert_string_equal(text, "\\x1b[31mab\xc3\xa9\r\n\r\n"); /* the terminal's own \r */
    close(kept);
    close(terminal);
}

static int begin(void **state) {
    static const struct command train = {{"train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir",
                                          "@run", "--max-iters", "2", "--residual", "shc"}};
    return corpus_begin(state) || command_run(&train, NULL);
}

UNIT_TEST_MAIN(begin, scratch_end)
