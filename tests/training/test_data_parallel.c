/* hc_train under mpirun: ranks that agree with one process, with themselves and after resuming on other numbers of
 * ranks, and jobs in which something goes wrong. */
#include "runtime/system/progress.h"
#include "runtime/system/random.h"
#include "tests/support/runs.h"
#include <ctype.h>
#include <dirent.h>
#include <sys/resource.h>

enum { KILLS = 5, ITERATIONS = 20, MOST_RANKS = 16 };
#define SOON 15.0 /* seconds in which a job that has lost a rank must have ended */

/* Buckets of 4 KiB: even this model has several. Four micro-batches, so that 1, 2 and 4 ranks can share them. */
#define COMMON(run)                                                                                                \
    "--config", scratch_path("tiny.conf"), "--data-dir", scratch_path("data"), "--out-dir", scratch_path(run),     \
        "--gradient-accumulation-steps", "4", "--batch-size", "2", "--allreduce-bucket", "0.004",                  \
        "--lr-decay-iters", "20"
#define RANKS_ARGUMENTS(count, run, ...)                                                                           \
    ((const char *const[]){HC_MPIRUN, "-np", count, TRAIN_PROGRAM, COMMON(run), ##__VA_ARGS__, NULL})
#define RANKS(count, run, ...)                                                                                     \
    child_finish(child_start(CHILD_UNLIMITED, RANKS_ARGUMENTS(count, run, ##__VA_ARGS__)))
/* The same where only so many ranks in a row share memory, as on several hosts. */
#define RANKS_APART(count, per_host, run, ...)                                                                     \
    CHILD_RUN(HC_MPIRUN, "-np", count, "-x", "HCTRAIN_RANKS_PER_HOST=" per_host, TRAIN_PROGRAM, COMMON(run),       \
              ##__VA_ARGS__)
/* Without mpirun at all. */
#define ALONE(run, ...) CHILD_RUN(TRAIN_PROGRAM, COMMON(run), ##__VA_ARGS__)

#define assert_near(first, second, tolerance) assert_near_metrics(first, second, ITERATIONS, tolerance)

/* ---- agreement */

UNIT_TEST(losses_do_not_depend_on_the_number_of_ranks) {
    static const char *const variants[] = {"rc", "mhc", "shc", "gated", "attnres", "mudd"};
    for (size_t i = test_is_whole() ? 0 : 1; i < (test_is_whole() ? COUNT(variants) : 2); i++) {
        char runs[3][32];
        for (int k = 0; k < 3; k++) {
            snprintf(runs[k], sizeof runs[k], "%s-on-%d", variants[i], 1 << k);
        }
#define OF_VARIANT                                                                                                 \
    "--train-batches", i % 2 ? "sequential" : "random", "--residual", variants[i], "--attnres-block", "3",         \
        "--eval-iters", "3", "--eval-interval", "7"
        assert_done(ALONE(runs[0], OF_VARIANT));
        assert_done(RANKS("2", runs[1], OF_VARIANT));
        assert_done(RANKS("4", runs[2], OF_VARIANT));
        assert_near(runs[0], runs[1], 1e-5);
        assert_near(runs[0], runs[2], 1e-5);
    }
}

/* With dropout, which depends on a row's place in the global batch. */
UNIT_TEST(dropout_does_not_depend_on_it_either) {
    assert_done(ALONE("dropout-on-1", "--dropout", "0.2"));
    assert_done(RANKS("4", "dropout-on-4", "--dropout", "0.2"));
    assert_near("dropout-on-1", "dropout-on-4", 1e-5);
}

UNIT_TEST(same_ranks_twice_are_bit_identical) {
    static const char *const more[][2] = {{"--allreduce-dtype", "bf16"}, {"--shard-optimizer", "--log-interval=2"}};
    for (size_t i = test_is_whole() ? 0 : 1; i < 2; i++) {
        const char *first = scratch_format("once-%zu", i);
        const char *second = scratch_format("twice-%zu", i);
        assert_done(RANKS_APART("3", "1", first, "--gradient-accumulation-steps", "3", more[i][0], more[i][1]));
        assert_done(RANKS_APART("3", "1", second, "--gradient-accumulation-steps", "3", more[i][0], more[i][1]));
        assert_same_metrics(first, second);
        assert_same_checkpoint(first, second, "ckpt-20");
    }
}

/* Four ranks on one host, on two, on four: sums are added in the same order. */
UNIT_TEST(hosts_do_not_change_a_bit) {
    assert_done(RANKS("4", "together", "--residual", "mhc"));
    assert_done(RANKS_APART("4", "2", "in-pairs", "--residual", "mhc"));
    assert_done(RANKS_APART("4", "1", "apart", "--residual", "mhc"));
    assert_same_metrics("together", "in-pairs");
    assert_same_metrics("together", "apart");
    assert_same_checkpoint("together", "in-pairs", "ckpt-20");
    assert_same_checkpoint("together", "apart", "ckpt-20");
}

UNIT_TEST(one_rank_under_mpirun_is_one_process) {
    assert_done(ALONE("without-mpirun"));
    assert_done(RANKS("1", "with-mpirun"));
    assert_same_metrics("without-mpirun", "with-mpirun");
    assert_same_checkpoint("without-mpirun", "with-mpirun", "ckpt-20");
}

LONG_TEST(sharded_states_are_the_same_states) {
    assert_done(RANKS("4", "whole"));
    assert_done(RANKS("4", "shared", "--shard-optimizer"));
    assert_near("whole", "shared", 1e-5);
}

/* Weights that come from another rank reach the 16-bit copy, too. */
LONG_TEST(so_they_are_in_fp16) {
    assert_done(RANKS("2", "whole-fp16", "--dtype", "fp16"));
    assert_done(RANKS("2", "shared-fp16", "--dtype", "fp16", "--shard-optimizer"));
    assert_near("whole-fp16", "shared-fp16", 1e-3);
}

/* Half the bits, so not the same, but the same training. */
UNIT_TEST(bfloat16_sums_are_near) {
    assert_done(RANKS("2", "float"));
    assert_done(RANKS_APART("2", "1", "bfloat16", "--allreduce-dtype", "bf16"));
    assert_near("float", "bfloat16", 5e-3);
    json_t *lines[2] = {metrics("float"), metrics("bfloat16")};
    assert_true(loss_at(lines[0], 19) != loss_at(lines[1], 19));
    json_decref(lines[0]);
    json_decref(lines[1]);
}

/* As over a network: nothing but TCP between the ranks. */
LONG_TEST(ranks_may_talk_over_tcp_only) {
    assert_done(RANKS("2", "shared-memory"));
    assert_done(CHILD_RUN(HC_MPIRUN, "--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca",
                          "btl_tcp_if_include", "lo", "--host", "localhost:1,127.0.0.1:1", "-x",
                          "HCTRAIN_RANKS_PER_HOST=1", "-np", "2", TRAIN_PROGRAM, COMMON("tcp")));
    assert_same_metrics("shared-memory", "tcp");
    assert_same_checkpoint("shared-memory", "tcp", "ckpt-20");
}

UNIT_TEST(observations_are_those_of_all_ranks) {
    static const char *const runs[] = {"observed-on-1", "observed-on-2"};
#define OBSERVED "--statistics-interval", "1", "--max-iters", "1", "--residual", "mhc"
    /* one process sees the same tokens in one micro-batch that two ranks have in one each */
    assert_done(ALONE(runs[0], OBSERVED, "--batch-size", "4", "--gradient-accumulation-steps", "1"));
    assert_done(RANKS("2", runs[1], OBSERVED, "--gradient-accumulation-steps", "2"));
    json_t *lines[2];
    for (int i = 0; i < 2; i++) {
        lines[i] =
            json_load_file(scratch_path(run_path(runs[i], "h_statistics.jsonl")), JSON_DISABLE_EOF_CHECK, NULL);
        assert_non_null(lines[i]);
    }
    const char *name;
    json_t *value;
    json_object_foreach(lines[0], name, value) {
        const json_t *other = json_object_get(lines[1], name);
        for (size_t i = 0; i < json_array_size(value); i++) {
            const double x = json_number_value(json_array_get(value, i));
            assert_true(fabs(x - json_number_value(json_array_get(other, i))) <= 1e-5 * fabs(x));
        }
        if (json_is_number(value)) {
            const double x = json_number_value(value);
            assert_true(fabs(x - json_number_value(other)) <= 1e-5 * fabs(x) + 1e-9);
        }
    }
    assert_int_equal(json_object_size(lines[0]), json_object_size(lines[1]));
    json_decref(lines[0]);
    json_decref(lines[1]);
}

/* ---- resuming */

UNIT_TEST(runs_resume_on_other_numbers_of_ranks) {
    assert_done(RANKS("2", "through"));
    assert_done(RANKS("2", "parted", "--max-iters", "8"));
    assert_done(RANKS("2", "parted", "--init-from", "resume"));
    assert_same_metrics("through", "parted");
    assert_same_checkpoint("through", "parted", "ckpt-20");

    assert_done(RANKS("2", "moved", "--max-iters", "6"));
    assert_done(RANKS("4", "moved", "--init-from", "resume", "--max-iters", "12"));
    assert_done(RANKS("2", "moved", "--init-from", "resume"));
    assert_near("through", "moved", 1e-5);
}

/* The format of a checkpoint does not tell how many ranks shared the states. */
UNIT_TEST(sharded_states_resume_anywhere) {
    assert_done(ALONE("whole-all-through"));
    assert_done(RANKS("4", "shared-then", "--shard-optimizer", "--max-iters", "6"));
    assert_done(RANKS("2", "shared-then", "--init-from", "resume", "--max-iters", "11"));
    assert_done(ALONE("shared-then", "--init-from", "resume", "--max-iters", "15"));
    assert_done(RANKS("4", "shared-then", "--init-from", "resume"));
    assert_near("whole-all-through", "shared-then", 1e-5);
}

/* Without clipping, whose norm is summed in another order, not a bit depends on which rank owns which of Muon's
 * matrices, before and after resuming. Some matrices are larger than a bucket. */
LONG_TEST(muon_has_the_same_bits_where_states_are_shared) {
#define MUON "--optimizer", "muon", "--mlp", "swiglu", "--residual", "mhc"
    assert_done(RANKS("4", "muon-whole", MUON, "--grad-clip", "0"));
    assert_done(RANKS("4", "muon-shared", MUON, "--grad-clip", "0", "--shard-optimizer"));
    assert_near("muon-whole", "muon-shared", 1e-6);
    assert_same_checkpoint("muon-whole", "muon-shared", "ckpt-20");
    assert_done(RANKS("4", "muon-parted", MUON, "--grad-clip", "0", "--max-iters", "8"));
    assert_done(
        RANKS_APART("4", "2", "muon-parted", "--init-from", "resume", "--shard-optimizer", "--max-iters", "14"));
    assert_done(RANKS("4", "muon-parted", "--init-from", "resume", "--no-shard-optimizer"));
    assert_same_checkpoint("muon-whole", "muon-parted", "ckpt-20");
}

/* The same of states in bf16, whose rounding depends on an element's place alone, with frozen parameters between
 * those that Muon and AdamW update. */
LONG_TEST(bf16_states_have_the_same_bits_where_they_are_shared) {
#define BF16 "--moments", "bf16", "--grad-clip", "0", "--optimizer", "muon", "--freeze", "h.0.attn|ln_2|c_fc"
    assert_done(RANKS("2", "bf16-whole", BF16));
    assert_done(RANKS("2", "bf16-shared", BF16, "--shard-optimizer", "--max-iters", "9"));
    assert_done(RANKS("2", "bf16-shared", "--init-from", "resume"));
    assert_same_checkpoint("bf16-whole", "bf16-shared", "ckpt-20");
    assert_done(ALONE("bf16-alone", BF16));
    assert_near("bf16-alone", "bf16-whole", 1e-3);
#undef BF16
}

/* Weights in bf16 are the same on all ranks, but not for ranks that send each other their shares. */
LONG_TEST(bf16_weights_are_alike_on_all_ranks) {
#define BF16 "--dtype", "bf16", "--master", "bf16", "--grad-clip", "0"
    assert_done(RANKS("2", "narrow", BF16, "--max-iters", "9"));
    assert_done(RANKS("2", "narrow", "--init-from", "resume"));
    assert_done(RANKS("2", "narrow-whole", BF16));
    assert_same_checkpoint("narrow", "narrow-whole", "ckpt-20");
    assert_done(ALONE("narrow-alone", BF16));
    assert_near("narrow-alone", "narrow-whole", 2e-3);
    assert_failed(RANKS("2", "narrow-shared", BF16, "--shard-optimizer"), 1, "master = bf16 and shard_optimizer");
#undef BF16
}

UNIT_TEST(muon_clips_by_the_norm_of_all_ranks) {
    assert_done(ALONE("muon-on-1", MUON, "--grad-clip", "0.1"));
    assert_done(RANKS("2", "muon-on-2", MUON, "--grad-clip", "0.1", "--shard-optimizer"));
    assert_near("muon-on-1", "muon-on-2", 1e-5);
#undef MUON
}

LONG_TEST(frozen_alpha_res_keeps_its_bits_where_states_are_shared) {
    assert_done(RANKS("2", "frozen", "--residual", "mhc", "--shard-optimizer", "--max-iters", "3"));
    assert_done(RANKS("2", "frozen", "--init-from", "resume", "--freeze-alpha-res", "--max-iters", "6"));
    assert_frozen("frozen/ckpt-3", "frozen/ckpt-6", true);
}

/* Parts that begin to train later, whose steps are counted by themselves. */
LONG_TEST(parts_that_thaw_train_alike) {
#define LATER "--init-from", "resume", "--freeze", "", "--no-freeze-alpha-res"
    static const char *const runs[] = {"thawed-on-1", "thawed-sharded"};
    for (size_t i = 0; i < COUNT(runs); i++) {
        assert_done(ALONE(runs[i], "--residual", "mhc", "--freeze", "wte|h\\.0\\.", "--freeze-alpha-res",
                          "--max-iters", "6"));
    }
    assert_done(ALONE("thawed-on-1", LATER));
    assert_done(RANKS("2", "thawed-sharded", LATER, "--shard-optimizer", "--max-iters", "9"));
    assert_done(RANKS("2", "thawed-sharded", LATER, "--shard-optimizer"));
    assert_near("thawed-on-1", "thawed-sharded", 1e-5);
#undef LATER
}

/* A plain model goes on with streams, with parts that stay and rates of their own. */
LONG_TEST(upcycled_models_train_alike) {
    assert_done(ALONE("plain", "--residual", "rc", "--max-iters", "2"));
    const char *plain = scratch_path("plain/ckpt-2");
#define UPCYCLED                                                                                                   \
    "--init-from", plain, "--residual", "mhc", "--freeze", "wte|mlp", "--new-learning-rate", "1e-2",               \
        "--warmup-iters", "2"
    assert_done(ALONE("upcycled-on-1", UPCYCLED));
    assert_done(RANKS("2", "upcycled-on-2", UPCYCLED));
    assert_done(RANKS("2", "upcycled-sharded", UPCYCLED, "--shard-optimizer"));
    assert_near("upcycled-on-1", "upcycled-on-2", 1e-5);
    assert_near("upcycled-on-1", "upcycled-sharded", 1e-5);
#undef UPCYCLED
}

/* The process that compiles kernels for a single rank is no rank itself, for which mpirun would wait at the end. */
UNIT_TEST(a_rank_that_starts_another_process_ends) {
    const char *kernels = scratch_format("POCL_CACHE_DIR=%s", scratch_path("first-kernels")),
               *cache = scratch_format("XDG_CACHE_HOME=%s", scratch_path("first-cache"));
    assert_done(CHILD_RUN(HC_MPIRUN, "-np", "1", "-x", "HCTRAIN_BACKGROUND_COMPILE=1", "-x", kernels, "-x", cache,
                          TRAIN_PROGRAM, COMMON("first-start"), "--max-iters", "1"));
}

/* ---- death and trouble */

/* The job's hc_train processes: children of mpirun. */
static int find_ranks(pid_t job, pid_t found[MOST_RANKS]) {
    int count = 0;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry = readdir(processes); entry; entry = readdir(processes)) {
        char path[300], line[512] = "";
        int parent;
        snprintf(path, sizeof path, "/proc/%.200s/stat", entry->d_name);
        FILE *file = isdigit((unsigned char)entry->d_name[0]) ? fopen(path, "r") : NULL;
        if (file) {
            char *text = fgets(line, sizeof line, file);
            fclose(file);
            if (text && strstr(line, "(hc_train)") && sscanf(strchr(line, ')') + 1, " %*c %d", &parent) == 1 &&
                parent == job && count < MOST_RANKS) {
                found[count++] = (pid_t)atol(entry->d_name);
            }
        }
    }
    closedir(processes);
    return count;
}

static int wait_for_ranks(pid_t job, int wanted, pid_t found[MOST_RANKS]) {
    for (int i = 0; i < 2000 && find_ranks(job, found) != wanted; i++) {
        wait_ms(10);
    }
    assert_int_equal(find_ranks(job, found), wanted);
    return wanted;
}

/* The job must end soon, and none of its ranks may be left. Its status. */
static int finish_soon(pid_t job, const pid_t *ranks, int count) {
    const int status = child_finish_within(job, SOON);
    bool left = false;
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < 200 && kill(ranks[i], 0) == 0; k++) {
            wait_ms(10);
        }
        left |= kill(ranks[i], 0) == 0;
    }
    for (int i = 0; i < count && (left || status == -SIGKILL); i++) {
        kill(ranks[i], SIGKILL); /* mpirun is gone and would leave them */
    }
    if (left || status == -SIGKILL) {
        fail_msg("a job that should have ended within %g seconds went on; it said: %s", SOON, child_message());
    }
    return status;
}

/* Starts the run, or goes on with it, on so many ranks; kills one of them at a random moment after the next
 * checkpoint, and waits for the others to end. at: the newest checkpoint, before and after. */
static void lose_rank(const char *run, const char *count, uint64_t turn, const char *more, long *at) {
    pid_t ranks[MOST_RANKS];
    const pid_t job =
        child_start(CHILD_UNLIMITED, RANKS_ARGUMENTS(count, run, "--gradient-accumulation-steps", "12",
                                                     "--max-iters", "100000", "--checkpoint-interval", "1",
                                                     "--init-from", turn == 0 ? "scratch" : "resume", more));
    const int started = wait_for_ranks(job, atoi(count), ranks);
    wait_for_checkpoint(run, *at);
    wait_ms((long)random_below(random_key(5, "wait"), turn, 60));
    kill(ranks[random_below(random_key(5, "rank"), turn, (uint64_t)started)], SIGKILL);
    assert_int_not_equal(finish_soon(job, ranks, started), 0);
    assert_non_null(strstr(child_message(), "signal 9 (Killed)"));
    *at = newest(run, *at + 1);
    assert_true(*at > 0);
}

/* One of 2, 3 or 4 ranks, over and over, in a run that goes on with another number each time; what it was is what
 * it would have been. */
UNIT_TEST(killed_rank_ends_the_job_and_it_resumes) {
    static const char *const counts[] = {"2", "4", "3", "2", "4"};
    long at = 0;
    for (uint64_t i = 0; i < (test_is_whole() ? KILLS : 2); i++) {
        lose_rank("killed", counts[i], i, i % 2 ? "--shard-optimizer" : "--bias=false", &at);
    }
    const char *last = scratch_format("%ld", at + ITERATIONS);
    assert_done(
        RANKS("2", "killed", "--gradient-accumulation-steps", "12", "--max-iters", last, "--init-from", "resume"));
    assert_done(ALONE("unharmed", "--gradient-accumulation-steps", "12", "--max-iters", last));
    assert_near("unharmed", "killed", 2e-4); /* after some hundred iterations at a large learning rate */
}

static void wait_for_lines(const char *run, size_t wanted) {
    size_t lines = 0;
    for (int i = 0; i < 3000 && lines < wanted; i++) {
        wait_ms(10);
        if (has(run, "metrics.jsonl")) {
            size_t bytes;
            char *text = scratch_read(scratch_path(run_path(run, "metrics.jsonl")), &bytes);
            lines = 0;
            for (size_t k = 0; text && k < bytes; k++) {
                lines += text[k] == '\n';
            }
            free(text);
        }
    }
    assert_true(lines >= wanted);
}

/* MPI's number of a process. */
static int rank_of(pid_t process) {
    static const char name[] = "OMPI_COMM_WORLD_RANK=";
    static char text[1 << 17];
    FILE *file = fopen(scratch_format("/proc/%ld/environ", (long)process), "r");
    assert_non_null(file);
    const size_t bytes = fread(text, 1, sizeof text - 1, file);
    text[bytes] = '\0';
    fclose(file);
    int rank = -1;
    for (size_t at = 0; at < bytes; at += strlen(text + at) + 1) {
        rank = strncmp(text + at, name, sizeof name - 1) == 0 ? atoi(text + at + sizeof name - 1) : rank;
    }
    assert_true(rank >= 0);
    return rank;
}

static int count_of(const char *text, const char *part) {
    int count = 0;
    for (const char *at = strstr(text, part); at; at = strstr(at + 1, part)) {
        count++;
    }
    return count;
}

/* Three ranks wait for the fourth and one of them says so. */
UNIT_TEST(stopped_rank_is_named_once) {
    pid_t ranks[MOST_RANKS];
    const pid_t job =
        child_start(CHILD_UNLIMITED, RANKS_ARGUMENTS("4", "stopped", "--max-iters", "100000",
                                                     "--checkpoint-interval", "100000", "--rank-timeout", "2"));
    const int count = wait_for_ranks(job, 4, ranks);
    wait_for_lines("stopped", 10);
    int stopped = 0;
    while (stopped < count && rank_of(ranks[stopped]) != 2) {
        stopped++;
    }
    assert_true(stopped < count);
    kill(ranks[stopped], SIGSTOP);
    assert_int_not_equal(finish_soon(job, ranks, 4), 0);
    const char *message = child_message();
    if (!strstr(message, "for 2 seconds; is it stopped, or its host away?") ||
        count_of(message, "hc_train: ") != 1 ||
        (!strstr(message, "rank 2 ") && !strstr(message, "or 2 ") && !strstr(message, "another rank"))) {
        fail_msg("%s", message + (strlen(message) > 800 ? strlen(message) - 800 : 0));
    }
}

/* Where a checkpoint of this iteration is to be. */
static const char *numbered(const char *run, long iteration) {
    return scratch_path(scratch_format("%s/ckpt-%ld", run, iteration));
}

/* Rank 0 cannot write any more: the other one hears of it and ends. */
UNIT_TEST(failing_rank_ends_the_job_with_one_message) {
    pid_t ranks[MOST_RANKS];
    const pid_t job =
        child_start(CHILD_UNLIMITED, RANKS_ARGUMENTS("2", "taken", "--max-iters", "100000", "--checkpoint-interval",
                                                     "1", "--shard-optimizer"));
    wait_for_ranks(job, 2, ranks);
    const long at = wait_for_checkpoint("taken", 0);
    for (long i = at + 1; i < at + 1000; i++) { /* files where folders are to be; some come too late */
        close(open(numbered("taken", i), O_WRONLY | O_CREAT, 0666));
    }
    assert_failed(finish_soon(job, ranks, 2), 1, "hc_train: rank 0 on ");
    assert_non_null(strstr(child_message(), "cannot save checkpoint"));
    assert_null(strstr(child_message(), "hc_train: rank 1 on "));
    for (long i = at + 1; i < at + 1000; i++) {
        unlink(numbered("taken", i)); /* does nothing to a folder */
    }
    assert_done(RANKS("4", "taken", "--init-from", "resume")); /* what was saved before is whole */
}

/* Lets no file of rank 0's grow beyond so many bytes. */
static void limit_files_of_first(const pid_t *ranks, int count, rlim_t bytes) {
    for (int i = 0; i < count; i++) {
        if (rank_of(ranks[i]) == 0) {
            assert_int_equal(prlimit(ranks[i], RLIMIT_FSIZE, &(struct rlimit){bytes, bytes}, NULL), 0);
        }
    }
}

/* The metrics are made longer than a checkpoint's files, so that there is a limit that stops them alone. */
UNIT_TEST(unwritable_metrics_end_the_job_with_a_checkpoint) {
    enum { BLANK = 300000 };
    pid_t ranks[MOST_RANKS];
    size_t bytes;
    assert_done(RANKS("2", "unwritable", "--max-iters", "2"));
    char *lines = scratch_text(scratch_path("unwritable/metrics.jsonl"), &bytes);
    char *text = malloc(BLANK + bytes);
    assert_non_null(text);
    memset(text, '\n', BLANK);
    memcpy(text + BLANK, lines, bytes);
    scratch_write("unwritable/metrics.jsonl", text, BLANK + bytes);
    free(text);
    const pid_t job =
        child_start(CHILD_UNLIMITED, RANKS_ARGUMENTS("2", "unwritable", "--max-iters", "100000",
                                                     "--checkpoint-interval", "100000", "--init-from", "resume"));
    const int count = wait_for_ranks(job, 2, ranks);
    wait_for_lines("unwritable", BLANK + 10);
    limit_files_of_first(ranks, count, BLANK);
    assert_failed(finish_soon(job, ranks, 2), 1, "cannot write to the run's metrics file");
    const long at = newest("unwritable", 3);
    assert_true(at > 0);
    assert_int_equal(count_of(child_message(), "hc_train: "), 1);
    assert_done(RANKS("2", "unwritable", "--init-from", "resume", "--max-iters", scratch_format("%ld", at + 2)));
}

/* All ranks stop before the same iteration, which sees nothing of what was written. */
UNIT_TEST(data_written_over_ends_the_job_with_a_checkpoint) {
    pid_t ranks[MOST_RANKS];
    char last[32], name[32];
    assert_done(CHILD_RUN(HC_PROGRAMS "/hc_prepare", "--out", scratch_path("rewritten"), scratch_path("text.txt")));
#define ON_REWRITTEN "--data-dir", scratch_path("rewritten"), "--max-iters"
    const pid_t job = child_start(CHILD_UNLIMITED, RANKS_ARGUMENTS("2", "overwritten", ON_REWRITTEN, "100000",
                                                                   "--checkpoint-interval", "100000"));
    wait_for_ranks(job, 2, ranks);
    wait_for_lines("overwritten", 10);
    corpus_write_over("rewritten/train.bin", "data/train.bin", true);
    assert_failed(finish_soon(job, ranks, 2), 1, "was changed while it was in use");
    assert_int_equal(count_of(child_message(), "hc_train: "), 1);
    const long at = newest("overwritten", 1);
    assert_true(at > 0);
    snprintf(last, sizeof last, "%ld", at + 2);
    snprintf(name, sizeof name, "ckpt-%ld", at + 2);
    corpus_write_over("rewritten/train.bin", "data/train.bin", false);
    assert_done(RANKS("2", "overwritten", "--init-from", "resume", ON_REWRITTEN, last));
    assert_done(RANKS("2", "not-overwritten", "--max-iters", last));
#undef ON_REWRITTEN
    assert_same_metrics("overwritten", "not-overwritten");
    assert_same_checkpoint("overwritten", "not-overwritten", name);
}

/* One rank is told and all stop after the same iteration. */
UNIT_TEST(signal_to_one_rank_saves_and_stops_all) {
    static const int signals[] = {SIGUSR1, SIGTERM, SIGINT};
    for (int i = test_is_whole() ? 0 : 2; i < 3; i++) {
        char last[32];
        pid_t ranks[MOST_RANKS];
        const char *run = scratch_format("signal-%d", i);
        const pid_t job = child_start(CHILD_UNLIMITED, RANKS_ARGUMENTS("2", run, "--max-iters", "100000",
                                                                       "--checkpoint-interval", "1000"));
        wait_for_ranks(job, 2, ranks);
        wait_for_lines(run, 10);
        kill(ranks[i % 2], signals[i]);
        assert_failed(finish_soon(job, ranks, 2), 130, "interrupted; go on with --init-from resume");
        const long at = newest(run, 1);
        assert_true(at > 0);
        snprintf(last, sizeof last, "%ld", at + 2);
        assert_done(RANKS("4", run, "--init-from", "resume", "--max-iters", last));
    }
}

/* In MPI_Init, which starts threads: a rank that dies there may leave mpirun waiting. */
UNIT_TEST(signal_while_ranks_start_is_heeded) {
    pid_t ranks[MOST_RANKS];
    const pid_t job = child_start(CHILD_UNLIMITED, RANKS_ARGUMENTS("2", "early", "--max-iters", "100000"));
    const int count = wait_for_ranks(job, 2, ranks);
    while (scratch_entries(scratch_format("/proc/%ld/task", (long)ranks[1])) == 1) {
        wait_ms(1);
    }
    kill(ranks[1], SIGINT);
    assert_failed(finish_soon(job, ranks, count), 130, "interrupted; go on with --init-from resume");
}

/* Ctrl-C reaches mpirun, which leaves the ranks a second or two. */
UNIT_TEST(interrupted_job_resumes_from_its_last_checkpoint) {
    pid_t ranks[MOST_RANKS];
    char last[32];
    const pid_t job = child_start(CHILD_UNLIMITED, RANKS_ARGUMENTS("2", "ctrl-c", "--max-iters", "100000",
                                                                   "--checkpoint-interval", "5"));
    wait_for_ranks(job, 2, ranks);
    wait_for_checkpoint("ctrl-c", 0);
    kill(job, SIGINT);
    assert_int_not_equal(finish_soon(job, ranks, 2), 0);
    const long at = newest("ctrl-c", 5);
    assert_true(at > 0);
    snprintf(last, sizeof last, "%ld", at + 2);
    assert_done(RANKS("2", "ctrl-c", "--init-from", "resume", "--max-iters", last));
}

/* ---- what is refused */

UNIT_TEST(work_that_cannot_be_divided_is_refused) {
    assert_failed(RANKS("3", "undivided"), 2, "give 3 or a multiple of it");
    assert_failed(RANKS("3", "undivided", "--gradient-accumulation-steps", "1"), 2, "give 3 or a multiple of it");
    assert_false(files_exist(scratch_path("undivided")));
}

/* Two programs in one job that differ in what stands here. */
#define UNLIKE(program, ...)                                                                                       \
    CHILD_RUN(BY_RANK, TRAIN_PROGRAM, COMMON("unlike"), ",", program, COMMON("unlike"), ##__VA_ARGS__)

UNIT_TEST(ranks_that_differ_are_refused) {
    size_t bytes;
    assert_failed(UNLIKE(TRAIN_PROGRAM, "--learning-rate", "0.02"), 1, "rank 1 on ");
    assert_non_null(strstr(child_message(), "'learning_rate = 0.02' instead of 'learning_rate = 0.01'"));
    char *text = scratch_read(scratch_path("data/train.bin"), &bytes);
    text[bytes / 4 * 2] ^= 1;
    assert_int_equal(files_make_folder(scratch_path("other")), 0);
    scratch_write("other/train.bin", text, bytes);
    free(text);
    text = scratch_read(scratch_path("data/meta.json"), &bytes);
    scratch_write("other/meta.json", text, bytes);
    free(text);
    assert_failed(UNLIKE(TRAIN_PROGRAM, "--data-dir", scratch_path("other")), 1, "train.bin is not the same");
    assert_done(RANKS("2", "ends", "--max-iters", "2"));
#define ENDS TRAIN_PROGRAM, "--init-from", "resume", "--out-dir", scratch_path("ends"), "--device", "pocl"
    assert_failed(CHILD_RUN(BY_RANK, ENDS, "--max-iters", "1", ",", ENDS), 1, "max_iters given now");
#undef ENDS
    text = scratch_read(TRAIN_PROGRAM, &bytes);
    text = realloc(text, bytes + 1);
    text[bytes] = 0;
    const char *program = scratch_write("hc_train", text, bytes + 1);
    free(text);
    assert_int_equal(chmod(program, 0755), 0);
    assert_failed(UNLIKE(program), 1, "the program is not the same");
    assert_false(files_exist(scratch_path("unlike")));
}

/* An error that one rank has is told once, by that of its name. */
UNIT_TEST(missing_data_on_one_host_is_named) {
    assert_failed(UNLIKE(TRAIN_PROGRAM, "--data-dir", scratch_path("nowhere")), 1, "hc_train: rank 1 on ");
    assert_non_null(strstr(child_message(), "nowhere/train.bin does not exist"));
    assert_null(strstr(strstr(child_message(), "hc_train: ") + 1, "hc_train: "));
    assert_failed(UNLIKE(TRAIN_PROGRAM, "--n-embd", "many"), 2, "rank 1 on ");
}

/* A rank whose set-up fails while the others go on to talk to it. */
UNIT_TEST(failing_set_up_ends_the_job) {
    static const char bench_program[] = HC_PROGRAMS "/hc_bench";
    pid_t none[1] = {0};
    const char *const arguments[][40] = {
        {BY_RANK, bench_program, "--gradient-accumulation-steps", "2", ",", bench_program,
         "--gradient-accumulation-steps", "2", "--device", "nonsense", NULL},
        {BY_RANK, TRAIN_PROGRAM, COMMON("set-up"), ",", TRAIN_PROGRAM, COMMON("set-up"), "--device", "nonsense",
         NULL},
    };
    for (size_t i = 0; i < 2; i++) {
        const pid_t job = child_start(CHILD_UNLIMITED, arguments[i]);
        assert_failed(finish_soon(job, none, 0), 1, "rank 1 on ");
        assert_int_equal(count_of(child_message(), "no OpenCL device"), 1);
    }
}

/* ---- what a user sees */

UNIT_TEST(one_rank_speaks) {
    assert_done(RANKS("4", "spoken", "--profile", "--eval-iters", "2"));
    static const char *const once[] = {"device   ", "ranks    4, hosts 1, micro-batches of each rank 1",
                                       "model    ", "iter 0      validation loss",
                                       "saved    ", "computation; ",
                                       "trace    "};
    for (size_t i = 0; i < COUNT(once); i++) {
        const int expected = strcmp(once[i], "saved    ") == 0 ? 2 : 1;
        if (count_of(child_message(), once[i]) != expected) {
            fail_msg("'%s' %d times in: %s", once[i], count_of(child_message(), once[i]), child_message());
        }
    }
    assert_done(CHILD_RUN_WRITING(scratch_path("help"), HC_MPIRUN, "-np", "3", TRAIN_PROGRAM, "--help"));
    char *help = scratch_text(scratch_path("help"), NULL);
    assert_int_equal(count_of(help, "shard-optimizer"), 1);
    assert_failed(RANKS("3", "wrong", "--n-layre", "3"), 2, "hc_train: ");
    assert_int_equal(count_of(child_message(), "n-layre"), 1);
}

/* The argument is a pattern of names of tests. */
UNIT_TEST_MAIN(corpus_begin, scratch_end)
