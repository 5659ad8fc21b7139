/* Broken pipes, full devices, caches that cannot be written, too little memory. */
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

/* Paths below a file: nobody can make them, root included. A run trains, or says which folder it cannot write. */
RUN_TEST(caches_that_cannot_be_written_are_no_missing_device) {
    scratch_put("a-file", "");
    scratch_put("a-home/.cache", "");
    const char *cache = scratch_format("XDG_CACHE_HOME=%s", scratch_path("a-file/cache"));
    const char *home = scratch_format("HOME=%s", scratch_path("a-file/home"));
    const char *plain_home = scratch_format("HOME=%s", scratch_path("a-home"));
    const char *temporary = scratch_format("TMPDIR=%s", scratch_path("a-file/tmp"));
    const char *pocl = scratch_format("POCL_CACHE_DIR=%s", scratch_path("a-file/pocl"));
    const struct {
        const char *run, *culprit; /* a part of the folder's name */
        const char *environment[5];
        bool always;
    } rows[] = {
        {"no-cache-at-all", "a-file", {"POCL_CACHE_DIR", cache, home, temporary}, true},
        {"no-cache-of-pocl", "a-file", {pocl, cache, home}, true},
        {"no-cache", "a-file", {"POCL_CACHE_DIR", cache, home}, false},
        {"no-cache-in-home", ".cache", {"POCL_CACHE_DIR", "XDG_CACHE_HOME", plain_home}, false},
        {"no-cache-to-make", "/proc/nowhere", {"POCL_CACHE_DIR", "XDG_CACHE_HOME=/proc/nowhere", home}, false},
        {"no-files-in-cache",
         "/proc/self, which",
         {"POCL_CACHE_DIR=/proc/self", cache, home},
         false}, /* even root */
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (!rows[i].always && !test_is_whole()) { /* each compiles all kernels */
            continue;
        }
        start_with(&(struct child_setup){.environment = rows[i].environment},
                   TRAIN_ARGUMENTS(rows[i].run, "--max-iters", "1"));
        const int status = finish();
        if (strstr(child_message(), "no OpenCL device") ||
            (status != 0 && !strstr(child_message(), rows[i].culprit))) {
            fail_msg("%s: exit status %d: %s", rows[i].run, status, child_message());
        }
    }
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
    /* of all memory, and of what can be written to; and enough */
    const char *const limits[] = {"ulimit -v 600000", "ulimit -d 600000",
                                  scratch_format("ulimit -v %u", (1500 + 80 * host_cores()) * 1024)};
    for (size_t i = 0; i < COUNT(limits); i++) {
        const char *command =
            scratch_format("%s; exec %s --config %s --data-dir %s --out-dir %s --max-iters 1 --device cpu",
                           limits[i], TRAIN_PROGRAM, scratch_path("tiny.conf"), scratch_path("data"),
                           scratch_path(i < 2 ? "cramped" : "enough"));
        start((const char *const[]){"/bin/sh", "-c", command, NULL});
        const int status = finish();
        if (i < 2) {
            assert_failed(status, 1, scratch_format("%.9s", limits[i]));
        } else {
            assert_done(status);
        }
    }
#endif
}

RUN_TEST(names_of_runs_may_be_in_any_language) {
    static const char name[] = "прогон-実験", line[] = "{\"iter\":0,\"loss\":5.5,\"grad_norm\":1}\n";
    scratch_put(run_path(name, "metrics.jsonl"), line);
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
