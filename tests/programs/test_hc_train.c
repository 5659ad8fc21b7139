/* Broken pipes, full devices, caches that cannot be written, too little memory, damaged records. */
#include "runtime/system/host.h"
#include "tests/support/runs.h"

/* Starts a run whose stderr is a pipe; its reading end. */
static int start_with_pipe(const char *const *arguments) {
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    start_with(&(struct child_setup){.errors_to = ends[1]}, arguments);
    close(ends[1]);
    return ends[0];
}

RUN_TEST(training_outlives_its_pipe) {
    close(start_with_pipe(TRAIN_ARGUMENTS("pipe", "--eval-interval", "5", "--eval-iters", "1")));
    assert_done(finish());
    assert_true(has("pipe", "ckpt-20"));
    assert_int_equal(count_lines("pipe/metrics.jsonl"), 20 + 5);
}

RUN_TEST(training_goes_on_where_messages_find_no_room) {
    start_with(&(struct child_setup){.errors = "/dev/full"}, TRAIN_ARGUMENTS("mute"));
    assert_done(finish());
    assert_true(has("mute", "ckpt-20"));
}

RUN_TEST(run_whose_reader_died_can_be_interrupted) {
    char letter = '\0';
    const int reading =
        start_with_pipe(TRAIN_ARGUMENTS("unread", "--max-iters", "100000", "--checkpoint-interval", "3"));
    while (letter != '\n') {
        assert_int_equal(read(reading, &letter, 1), 1);
    }
    close(reading);
    wait_for(newer_checkpoint, "unread", 0);
    assert_int_equal(interrupt(), INTERRUPTED);
    const long at = newest("unread", 1);
    assert_int_equal(count_lines("unread/metrics.jsonl"), at);
    assert_done(RESUME("unread", "--max-iters", decimal(at + 1)));
}

/* Trains, or says which folder it cannot write; `culprit` is a part of that folder's name. */
static void train_with(const char *run, const char *culprit, const char *const *environment) {
    start_with(&(struct child_setup){.environment = environment}, TRAIN_ARGUMENTS(run, "--max-iters", "1"));
    const int status = finish();
    if (strstr(child_message(), "no OpenCL device") || (status != 0 && !strstr(child_message(), culprit))) {
        fail_msg("%s: exit status %d: %s", run, status, child_message());
    }
}

/* Paths below a file: nobody can make them, root included. */
RUN_TEST(caches_that_cannot_be_written_are_no_missing_device) {
    char cache[512], home[512], plain_home[512], temporary[512], pocl[512];
    scratch_write("a-file", "", 0);
    assert_int_equal(files_make_folder(scratch_path("a-home")), 0);
    scratch_write("a-home/.cache", "", 0);
    snprintf(cache, sizeof cache, "XDG_CACHE_HOME=%s", scratch_path("a-file/cache"));
    snprintf(home, sizeof home, "HOME=%s", scratch_path("a-file/home"));
    snprintf(plain_home, sizeof plain_home, "HOME=%s", scratch_path("a-home"));
    snprintf(temporary, sizeof temporary, "TMPDIR=%s", scratch_path("a-file/tmp"));
    snprintf(pocl, sizeof pocl, "POCL_CACHE_DIR=%s", scratch_path("a-file/pocl"));
#define TRAIN_WITH(run, culprit, ...) train_with(run, culprit, (const char *const[]){__VA_ARGS__, NULL})
    TRAIN_WITH("no-cache", "a-file", "POCL_CACHE_DIR", cache, home);
    TRAIN_WITH("no-cache-in-home", ".cache", "POCL_CACHE_DIR", "XDG_CACHE_HOME", plain_home);
    TRAIN_WITH("no-cache-to-make", "/proc/nowhere", "POCL_CACHE_DIR", "XDG_CACHE_HOME=/proc/nowhere", home);
    TRAIN_WITH("no-cache-of-pocl", "a-file", pocl, cache, home);
    TRAIN_WITH("no-files-in-cache", "/proc/self, which", "POCL_CACHE_DIR=/proc/self", cache, home); /* even root */
    TRAIN_WITH("no-cache-at-all", "a-file", "POCL_CACHE_DIR", cache, home, temporary);
#undef TRAIN_WITH
}

/* With `ulimit -S -t` the signal comes every second. */
RUN_TEST(limit_of_cpu_time_saves) {
    start(TRAIN_ARGUMENTS("cpu-time", "--max-iters", "1000000", "--checkpoint-interval", "1000000"));
    wait_for(more_lines, "cpu-time", 3);
    send_signal(SIGXCPU);
    send_signal(SIGXCPU);
    assert_failed(finish(), INTERRUPTED, "interrupted");
    assert_true(newest("cpu-time", 0) > 0);
}

/* Tasks of srun that MPI does not bring together; and a job's script, which is one process by itself. */
RUN_TEST(tasks_of_slurm_without_mpi_are_told) {
    static const char *const step[] = {"SLURM_NTASKS=2", "SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=0", NULL},
                             *const script[] = {"SLURM_NTASKS=2", "SLURM_PROCID=0", NULL};
    start_with(&(struct child_setup){.environment = step}, TRAIN_ARGUMENTS("task", "--max-iters", "1"));
    assert_done(finish()); /* which may be meant */
    assert_says("Slurm has started 2 tasks, and MPI knows 1 of them");
    static const char *const other[] = {"PMI_SIZE=2", NULL};
    start_with(&(struct child_setup){.environment = other}, TRAIN_ARGUMENTS("other", "--max-iters", "1"));
    assert_failed(finish(), 1, "2 processes were started together (PMI_SIZE)");
    assert_false(has("other", ""));
    start_with(&(struct child_setup){.environment = script}, TRAIN_ARGUMENTS("script", "--max-iters", "1"));
    assert_done(finish());
    assert_says("Slurm has started 2 tasks");
}

RUN_TEST(variables_that_hide_devices_are_named) {
    static const char *const environment[] = {"OCL_ICD_VENDORS=/nowhere\033", NULL};
    start_with(&(struct child_setup){.environment = environment},
               TRAIN_ARGUMENTS("hidden", "--max-iters", "1", "--device", "cpu"));
    if (finish() != 0) { /* a wheel's driver is found without the loader */
        assert_says("OCL_ICD_VENDORS=/nowhere\\x1b in the environment");
    }
}

/* Address space that is too small for a driver's compiler, which would end the process or hang. */
RUN_TEST(too_little_address_space_is_said) {
#ifndef __SANITIZE_ADDRESS__ /* it needs terabytes of it */
    static const char *const limits[] = {"ulimit -v",
                                         "ulimit -d"}; /* of all memory, and of what can be written to */
    for (size_t i = 0; i < 2; i++) {
        char command[600];
        snprintf(command, sizeof command, "%s 600000; exec %s --config %s --data-dir %s --out-dir %s --max-iters 1",
                 limits[i], HC_PROGRAMS "/hc_train", scratch_path("tiny.conf"), scratch_path("data"),
                 scratch_path("cramped"));
        const pid_t child = child_start(CHILD_UNLIMITED, (const char *const[]){"/bin/sh", "-c", command, NULL});
        assert_failed(child_finish_within(child, 60.0), 1, limits[i]);
    }
    char command[600];
    snprintf(command, sizeof command,
             "ulimit -v %u; exec %s --config %s --data-dir %s --out-dir %s --max-iters 1 --device cpu",
             (1500 + 80 * host_cores()) * 1024, HC_PROGRAMS "/hc_train", scratch_path("tiny.conf"),
             scratch_path("data"), scratch_path("enough"));
    const pid_t child = child_start(CHILD_UNLIMITED, (const char *const[]){"/bin/sh", "-c", command, NULL});
    assert_done(child_finish_within(child, 60.0));
#endif
}

RUN_TEST(damaged_lines_are_passed_over) {
    static const char lines[] = "{\"iter\":0,\"loss\":5.5,\"grad_norm\":1}\n"
                                "{\"iter\":1,\"lo#s\":5.25,\n"
                                "{\"iter\":2,\"loss\":5,\"grad_norm\":1}\n"
                                "{\"iter\":2,\"loss\":\"5\",\"grad_norm\":1}\n"
                                "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\n"
                                "{\"iter\":3,\"loss\":4.5,\"grad_norm\":1}\n";
    assert_int_equal(files_make_folder(scratch_path("damaged")), 0);
    scratch_write("damaged/metrics.jsonl", lines, sizeof lines - 1);
    assert_done(ANALYZE("--out", scratch_path("damaged-report"), scratch_path("damaged")));
    assert_says("damaged/metrics.jsonl");
    assert_says("are left out: 3; the first is line 2");
    json_t *json = read_json("damaged-report/analysis.json"), *expected = json_pack("[i,i,i]", 0, 2, 3);
    const json_t *run = json_array_get(json_object_get(json, "runs"), 0);
    const json_t *steps = json_object_get(json_object_get(run, "record"), "steps");
    assert_true(json_equal(json_object_get(steps, "iter"), expected));
    json_decref(expected);
    json_decref(json);
}

RUN_TEST(names_of_runs_may_be_in_any_language) {
    static const char name[] = "прогон-実験", line[] = "{\"iter\":0,\"loss\":5.5,\"grad_norm\":1}\n";
    assert_int_equal(files_make_folder(scratch_path(name)), 0);
    scratch_write(run_path(name, "metrics.jsonl"), line, sizeof line - 1);
    assert_done(ANALYZE("--out", scratch_path("named-report"), scratch_path(name)));
    json_t *json = read_json("named-report/analysis.json");
    const json_t *run = json_array_get(json_object_get(json, "runs"), 0);
    assert_string_equal(json_string_value(json_object_get(run, "name")), name);
    json_decref(json);
    char *page = scratch_text(scratch_path("named-report/report.html"), NULL);
    assert_non_null(strstr(page, name));
    assert_null(strstr(page, "???"));
}

UNIT_TEST_MAIN(run_control_begin, scratch_end)
