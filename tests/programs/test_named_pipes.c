/* Named pipes in place of files: in the folders of runs, checkpoints, data and exported models, one file at a time.
 * Nobody writes to the pipe, so that a program that opened it as a file would wait for ever. Each program refuses
 * it and names it, or has no need of it. */
#include "src/corpus/prepare.h"
#include "tests/support/runs.h"
#include "tests/support/tensors.h"

/* A file of which a pipe takes the place, and the programs that are then run. */
struct walk {
    const char *folder; /* in the scratch folder */
    const struct command *commands;
    size_t count;
    int files; /* tried */
};

static void try_file(const struct walk *walk, const char *path, const char *name) {
    assert_int_equal(rename(path, scratch_path("aside")), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    for (size_t i = 0; i < walk->count; i++) {
        const int status = command_run(&walk->commands[i], NULL);
        if (status != 0 && (status < 0 || strstr(child_message(), name) == NULL)) {
            fail_msg("hc_%s with a pipe as %s ended with %d: %s", walk->commands[i].words[0], path, status,
                     child_message());
        }
    }
    assert_int_equal(rename(scratch_path("aside"), path), 0);
}

static int visit(void *context, const char *name) {
    struct walk *walk = context;
    struct stat status;
    const char *path = scratch_path(run_path(walk->folder, name));
    if (stat(path, &status) == 0 && S_ISREG(status.st_mode)) {
        walk->files++;
        try_file(walk, path, name);
    }
    return 0;
}

/* How many files the folder has; of each, all of the commands. */
static int walk_folder(const char *folder, const struct command *commands, size_t count) {
    struct walk walk = {.folder = folder, .commands = commands, .count = count};
    assert_int_equal(files_each(scratch_path(folder), visit, &walk), 0);
    return walk.files;
}

#define WALK(folder, commands) walk_folder(folder, commands, COUNT(commands))
#define DEVICE                 "--device", "pocl"

UNIT_TEST(runs) {
    static const struct command commands[] = {
        {{"train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir", "@run", "--init-from", "resume",
          "--max-iters", "2"}},
        {{"analyze", "--out", "@report", "@run"}},
    };
    assert_true(WALK("run", commands) >= 4); /* settings.conf, metrics.jsonl, h_statistics.jsonl, eval-a.json */
}

UNIT_TEST(checkpoints) {
    static const struct command commands[] = {
        {{"train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir", "@run", "--init-from", "resume",
          "--max-iters", "2"}},
        {{"train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir", "@new", "--start-over",
          "--init-from", "@run/ckpt-2", "--max-iters", "1"}},
        {{"sample", DEVICE, "--max-new-tokens", "1", "--checkpoint", "@run/ckpt-2"}},
        {{"eval", DEVICE, "--eval-iters", "1", "--data", "@data", "--checkpoint", "@run/ckpt-2"}},
        {{"probe", DEVICE, "--batch", "@batch", "--out", "@probed", "--checkpoint", "@run/ckpt-2"}},
        {{"export", "--out", "@exported-again", "--format", "torch", "--checkpoint", "@run/ckpt-2"}},
        {{"analyze", DEVICE, "--samples", "1", "--data-dir", "@data", "--out", "@report", "@run"}}, /* slow */
    };
    assert_int_equal(walk_folder("run/ckpt-2", commands, COUNT(commands) - !test_is_whole()), 4);
}

UNIT_TEST(data_folders) {
    static const struct command commands[] = {
        {{"train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir", "@new", "--start-over",
          "--max-iters", "1"}},
        {{"bench", "--config", "@tiny.conf", "--data-dir", "@data", "--steps", "1", "--warmup", "0"}},
        {{"eval", DEVICE, "--eval-iters", "1", "--data", "@data", "--checkpoint", "@run/ckpt-2"}},
        {{"prepare", "--out", "@data", "@text.txt"}},
        {{"analyze", DEVICE, "--samples", "1", "--data-dir", "@data", "--out", "@report", "@run"}}, /* slow */
    };
    assert_true(walk_folder("data", commands, COUNT(commands) - !test_is_whole()) >= 3);
}

/* What prepare_run leaves when it is stopped at once, and when it goes on from there. */
static enum program_status prepare(int stop_descriptor) {
    const char *const sources[] = {scratch_path("text.txt")};
    struct prepare_report report;
    const struct prepare_settings settings = {.folder = scratch_path("half"),
                                              .sources = sources,
                                              .source_count = 1,
                                              .kind = DOCUMENT_FILES,
                                              .val_fraction = 0.1,
                                              .shuffle = true,
                                              .threads = 1,
                                              .resume = true,
                                              .save_interval = PREPARE_SAVE_INTERVAL,
                                              .bucket_bytes = PREPARE_BUCKET_BYTES,
                                              .stop_descriptor = stop_descriptor};
    return prepare_run(&settings, &report);
}

static int prepare_with_pipe(void *context, const char *name) {
    const char *path = scratch_format("%s/%s", scratch_path("half/.hc_prepare"), name);
    assert_int_equal(rename(path, scratch_path("aside")), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(prepare(-1) == PROGRAM_FAILED && strstr(error_text(), name) != NULL ? 0 : 1);
    }
    if (child_finish_within(child, COMMAND_SECONDS) != 0) {
        fail_msg("a pipe as %s was not refused", path);
    }
    assert_int_equal(rename(scratch_path("aside"), path), 0);
    ++*(int *)context;
    return 0;
}

UNIT_TEST(unfinished_preparations) {
    int ends[2], tried = 0;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "", 1), 1);
    assert_int_equal(prepare(ends[0]), PROGRAM_INTERRUPTED);
    assert_int_equal(files_each(scratch_path("half/.hc_prepare"), prepare_with_pipe, &tried), 0);
    assert_true(tried >= 3); /* state.json, train.bin, val.bin */
    close(ends[0]);
    close(ends[1]);
}

UNIT_TEST(exported_models) {
    static const struct command commands[] = {
        {{"sample", DEVICE, "--max-new-tokens", "1", "--checkpoint", "@exported"}},
        {{"train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir", "@new", "--start-over",
          "--init-from", "@exported", "--max-iters", "1"}},
    };
    assert_true(WALK("exported", commands) >= 2);
}

UNIT_TEST(files_that_are_named) {
    static const struct command commands[] = {
        {{"prepare", "--vocab-file", "@pipe", "--tokenizer", "gpt2", "--out", "@ordered", "@text.txt"}},
        {{"prepare", "--documents", "files", "--order", "@pipe", "--out", "@ordered", "@text.txt"}},
        {{"probe", DEVICE, "--batch", "@pipe", "--out", "@probed", "--checkpoint", "@run/ckpt-2"}},
    };
    assert_int_equal(mkfifo(scratch_path("pipe"), 0600), 0);
    for (size_t i = 0; i < COUNT(commands); i++) {
        const int status = command_run(&commands[i], NULL);
        assert_refused(status, "/pipe: it is not a regular file");
    }
}

static int begin(void **state) {
    static const struct command made[] = {
        {{"train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir", "@run", "--max-iters", "2",
          "--statistics-interval", "1", "--residual", "mhc"}},
        {{"export", "--out", "@exported", "--format", "torch", "--checkpoint", "@run/ckpt-2"}},
    };
    if (corpus_begin(state)) {
        return -1;
    }
    for (size_t i = 0; i < COUNT(made); i++) {
        assert_done(command_run(&made[i], NULL));
    }
    static const int32_t ids[16] = {1, 2, 3};
    const struct tensors_ids batch = {2, {1, 16}, ids};
    tensors_write_batch(scratch_path("batch"), batch, batch);
    scratch_put("run/eval-a.json", "{}");
    return 0;
}

UNIT_TEST_MAIN(begin, scratch_end)
