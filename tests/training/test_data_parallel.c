/* hc_train under mpirun: ranks that agree with one process, with themselves and after resuming on other numbers of
 * ranks, and jobs in which something goes wrong. */
#include "runtime/system/progress.h"
#include "runtime/system/random.h"
#include "tests/support/runs.h"
#include <ctype.h>
#include <dirent.h>
#include <sys/resource.h>

enum { KILLS = 5, ITERATIONS = 20, MOST_RANKS = 16, MOST_WORDS = 64 };
#define SOON 15.0 /* seconds in which a job that has lost a rank must have ended */

/* Buckets of 4 KiB: even this model has several. Four micro-batches, so that 1, 2 and 4 ranks can share them. */
#define COMMON(run)                                                                                                \
    "--config", scratch_path("tiny.conf"), "--data-dir", scratch_path("data"), "--out-dir", scratch_path(run),     \
        "--gradient-accumulation-steps", "4", "--batch-size", "2", "--allreduce-bucket", "0.004",                  \
        "--lr-decay-iters", "20"

static const char *const tcp[] = {"--mca",
                                  "pml",
                                  "ob1",
                                  "--mca",
                                  "btl",
                                  "tcp,self",
                                  "--mca",
                                  "btl_tcp_if_include",
                                  "lo",
                                  "--host",
                                  "localhost:1,127.0.0.1:1",
                                  NULL};

static size_t append(const char **words, size_t count, const char *const *more) {
    for (; *more; more++) {
        assert_true(count + 1 < MOST_WORDS);
        words[count++] = *more;
    }
    return count;
}

/* Starts hc_train in the folder of a run. A job is "RANKS OPTIONS": how many ranks ("alone": without mpirun),
 * behind "/" how many in a row share memory, as on several hosts ("tcp": none, and they talk over TCP alone). */
static pid_t start_job(const char *run, const char *job) {
    const char *words[MOST_WORDS] = {NULL};
    size_t count = 0;
    char *rest, *ranks = strtok_r(scratch_format("%s", job), " ", &rest), *per_host = strchr(ranks, '/');
    if (per_host) {
        *per_host++ = '\0';
    }
    if (strcmp(ranks, "alone") != 0) {
        count = append(words, count, (const char *const[]){HC_MPIRUN, "-np", ranks, NULL});
    }
    if (per_host) {
        const bool over_tcp = strcmp(per_host, "tcp") == 0;
        const char *variable = scratch_format("HCTRAIN_RANKS_PER_HOST=%s", over_tcp ? "1" : per_host);
        count = append(words, count, over_tcp ? tcp : (const char *const[]){NULL});
        count = append(words, count, (const char *const[]){"-x", variable, NULL});
    }
    count = append(words, count, (const char *const[]){TRAIN_PROGRAM, COMMON(run), NULL});
    for (const char *word; (word = strtok_r(NULL, " ", &rest));) {
        count = append(words, count, (const char *const[]){word, NULL});
    }
    return child_start(CHILD_UNLIMITED, words);
}

static int run_job(const char *run, const char *job) {
    return child_finish(start_job(run, job));
}

/* ---- agreement */

/* Runs that agree: of each the jobs one after the other, with ";" between them, all with the same options more.
 * Their losses and norms agree with those of the first run up to the tolerance, or, if it is 0, bit for bit. */
struct agreement {
    const char *name;
    bool always;       /* or only where all is asked for */
    bool same_weights; /* all checkpoints have the same bits, which a tolerance of 0 means, too */
    double tolerance;
    const char *options, *runs[4];
};

#define MUON         "--optimizer muon --mlp swiglu --residual mhc"
#define THAW         "--init-from resume --freeze= --no-freeze-alpha-res"
#define FROZEN       "alone --freeze wte|h\\.0\\. --freeze-alpha-res --max-iters 6; "
#define EVALUATE_TOO "--eval-iters 3 --eval-interval 7 --residual "

static const struct agreement agreements[] = {
    /* also with dropout, which depends on a row's place in the global batch */
    {"any number of ranks",
     true,
     false,
     1e-5,
     "--train-batches sequential --dropout 0.2 " EVALUATE_TOO "mhc",
     {"alone", "2", "4"}},
    {"any number, rc", false, false, 1e-5, "--train-batches random " EVALUATE_TOO "rc", {"alone", "2", "4"}},
    {"any number, shc", false, false, 1e-5, "--train-batches random " EVALUATE_TOO "shc", {"alone", "2", "4"}},
    {"any number, gated", false, false, 1e-5, EVALUATE_TOO "gated", {"alone", "2", "4"}},
    {"any number, attnres", false, false, 1e-5, EVALUATE_TOO "attnres --attnres-block 3", {"alone", "2", "4"}},
    {"any number, mudd", false, false, 1e-5, EVALUATE_TOO "mudd", {"alone", "2", "4"}},
    {"sharded, twice", false, true, 0, "--gradient-accumulation-steps 3 --shard-optimizer", {"3/1", "3/1"}},
    {"bf16 sums, twice", false, true, 0, "--gradient-accumulation-steps 3 --allreduce-dtype bf16", {"3/1", "3/1"}},
    /* on one host, on two, on four sums are added in the same order */
    {"hosts", true, true, 0, "--residual mhc", {"4", "4/2", "4/1"}},
    {"one rank under mpirun", true, true, 0, "", {"alone", "1"}},
    {"over TCP", false, true, 0, "", {"2", "2/tcp"}},
    {"sharded states", false, false, 1e-5, "", {"4", "4 --shard-optimizer"}},
    /* weights that come from another rank reach the 16-bit copy, too */
    {"sharded states in fp16", false, false, 1e-3, "--dtype fp16", {"2", "2 --shard-optimizer"}},
    {"resumed", true, true, 0, "", {"2", "2 --max-iters 8; 2 --init-from resume"}},
    {"resumed on other numbers of ranks",
     false,
     false,
     1e-5,
     "",
     {"2", "2 --max-iters 6; 4 --init-from resume --max-iters 12; 2 --init-from resume"}},
    /* a checkpoint does not say how many ranks shared the states */
    {"sharded states resumed anywhere",
     true,
     false,
     1e-5,
     "",
     {"alone", "4 --shard-optimizer --max-iters 6; 2 --init-from resume --max-iters 11; "
               "alone --init-from resume --max-iters 15; 4 --init-from resume"}},
    /* Without clipping, whose norm is summed in another order, not a bit depends on which rank owns which of Muon's
     * matrices, before and after resuming. Some matrices are larger than a bucket. */
    {"sharded Muon",
     false,
     true,
     1e-6,
     MUON " --grad-clip 0",
     {"4", "4 --shard-optimizer",
      "4 --max-iters 8; 4/2 --init-from resume --shard-optimizer --max-iters 14; "
      "4 --init-from resume --no-shard-optimizer"}},
    {"Muon clips by the norm of all ranks",
     true,
     false,
     1e-5,
     MUON " --grad-clip 0.1",
     {"alone", "2 --shard-optimizer"}},
/* of states in bf16 rounding depends on an element's place alone; frozen parameters lie between those that Muon
     * and AdamW update */
#define BF16_STATES "--moments bf16 --grad-clip 0 --optimizer muon --freeze h.0.attn|ln_2|c_fc"
    {"sharded bf16 states",
     false,
     true,
     1e-6,
     BF16_STATES,
     {"2", "2 --shard-optimizer --max-iters 9; 2 --init-from resume"}},
    {"bf16 states", false, false, 1e-3, BF16_STATES, {"alone", "2"}},
#define BF16_WEIGHTS "--dtype bf16 --master bf16 --grad-clip 0"
    {"bf16 weights resumed", false, true, 0, BF16_WEIGHTS, {"2", "2 --max-iters 9; 2 --init-from resume"}},
    {"bf16 weights", false, false, 2e-3, BF16_WEIGHTS, {"alone", "2"}},
    /* parameters that begin to train later count their steps by themselves */
    {"thawed",
     false,
     false,
     1e-5,
     "--residual mhc",
     {FROZEN "alone " THAW, FROZEN "2 " THAW " --shard-optimizer --max-iters 9; 2 " THAW " --shard-optimizer"}},
    {"upcycled",
     false,
     false,
     1e-5,
     "--residual mhc --freeze wte|mlp --new-learning-rate 1e-2 --warmup-iters 2 --init-from @",
     {"alone", "2", "2 --shard-optimizer"}},
};

/* "@" in options: the checkpoint of a plain model. */
static const char *with_plain_model(const char *options) {
    const char *at = strchr(options, '@');
    if (!at) {
        return options;
    }
    assert_done(run_job("plain", "alone --residual rc --max-iters 2"));
    return scratch_format("%.*s%s", (int)(at - options), options, scratch_path("plain/ckpt-2"));
}

UNIT_TEST(runs_agree) {
    for (size_t i = 0; i < COUNT(agreements); i++) {
        const struct agreement *row = &agreements[i];
        if (!row->always && !test_is_whole()) {
            continue;
        }
        const char *options = with_plain_model(row->options), *first = scratch_format("agree-%zu-0", i);
        print_message("%s\n", row->name);
        for (size_t k = 0; row->runs[k]; k++) {
            const char *run = scratch_format("agree-%zu-%zu", i, k);
            char *rest, *jobs = scratch_format("%s", row->runs[k]);
            for (char *job = strtok_r(jobs, ";", &rest); job; job = strtok_r(NULL, ";", &rest)) {
                char *all = scratch_format("%s %s", job + strspn(job, " "), options);
                assert_done(run_job(run, all));
            }
            if (k > 0 && row->tolerance > 0) {
                assert_near_metrics(first, run, ITERATIONS, row->tolerance);
            } else if (k > 0) {
                assert_same_metrics(first, run);
            }
            if (k > 0 && row->same_weights) {
                assert_same_checkpoint(first, run, "ckpt-20");
            }
        }
    }
}

/* Half the bits, so not the same, but the same training. */
UNIT_TEST(bfloat16_sums_are_near) {
    assert_done(run_job("float", "2"));
    assert_done(run_job("bfloat16", "2/1 --allreduce-dtype bf16"));
    assert_near_metrics("float", "bfloat16", ITERATIONS, 5e-3);
    json_t *lines[2] = {metrics("float"), metrics("bfloat16")};
    assert_true(loss_at(lines[0], 19) != loss_at(lines[1], 19));
    json_decref(lines[0]);
    json_decref(lines[1]);
}

UNIT_TEST(observations_are_those_of_all_ranks) {
    static const char *const runs[] = {"observed-on-1", "observed-on-2"};
#define OBSERVED "--statistics-interval 1 --max-iters 1 --residual mhc --gradient-accumulation-steps "
    /* one process sees the same tokens in one micro-batch that two ranks have in one each */
    assert_done(run_job(runs[0], "alone " OBSERVED "1 --batch-size 4"));
    assert_done(run_job(runs[1], "2 " OBSERVED "2"));
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

LONG_TEST(frozen_alpha_res_keeps_its_bits_where_states_are_shared) {
    assert_done(run_job("frozen", "2 --residual mhc --shard-optimizer --max-iters 3"));
    assert_done(run_job("frozen", "2 --init-from resume --freeze-alpha-res --max-iters 6"));
    assert_frozen("frozen/ckpt-3", "frozen/ckpt-6", true);
}

/* The process that compiles kernels for a single rank is no rank itself, for which mpirun would wait at the end. */
UNIT_TEST(a_rank_that_starts_another_process_ends) {
    const char *kernels = scratch_format("POCL_CACHE_DIR=%s", scratch_path("first-kernels")),
               *cache = scratch_format("XDG_CACHE_HOME=%s", scratch_path("first-cache"));
    assert_done(CHILD_RUN(HC_MPIRUN, "-np", "1", "-x", "HCTRAIN_BACKGROUND_COMPILE=1", "-x", kernels, "-x", cache,
                          TRAIN_PROGRAM, COMMON("first-start"), "--max-iters", "1"));
}

/* Processes that compile the same kernels and write them to the same folders at once. */
LONG_TEST(ranks_may_begin_with_a_cold_cache) {
    assert_done(run_job("warm-cache", "4"));
    setenv("POCL_CACHE_DIR", scratch_path("cold-kernels"), 1);
    setenv("XDG_CACHE_HOME", scratch_path("cold-cache"), 1);
    assert_done(run_job("cold-cache", "4"));
    unsetenv("POCL_CACHE_DIR");
    unsetenv("XDG_CACHE_HOME");
    assert_same_run("warm-cache", "cold-cache", "ckpt-20");
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
    const pid_t job = start_job(run, scratch_format("%s --gradient-accumulation-steps 12 --max-iters 100000 "
                                                    "--checkpoint-interval 1 --init-from %s %s",
                                                    count, turn == 0 ? "scratch" : "resume", more));
    const int started = wait_for_ranks(job, atoi(count), ranks);
    wait_for_checkpoint(run, *at);
    wait_ms((long)random_below(random_key(5, "wait"), turn, 60));
    kill(ranks[random_below(random_key(5, "rank"), turn, (uint64_t)started)], SIGKILL);
    assert_int_not_equal(finish_soon(job, ranks, started), 0);
    assert_says("signal 9 (Killed)");
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
    const char *last = scratch_format("--gradient-accumulation-steps 12 --max-iters %ld", at + ITERATIONS);
    assert_done(run_job("killed", scratch_format("2 --init-from resume %s", last)));
    assert_done(run_job("unharmed", scratch_format("alone %s", last)));
    /* after some hundred iterations at a large learning rate */
    assert_near_metrics("unharmed", "killed", ITERATIONS, 2e-4);
}

static void wait_for_lines(const char *run, long wanted) {
    for (int i = 0; i < 3000 && count_lines(run_path(run, "metrics.jsonl")) < wanted; i++) {
        wait_ms(10);
    }
    assert_true(count_lines(run_path(run, "metrics.jsonl")) >= wanted);
}

/* Starts a run without an end on so many ranks, and waits for 10 lines of metrics. */
static pid_t start_endless(const char *run, int count, const char *more, pid_t ranks[MOST_RANKS]) {
    const pid_t job =
        start_job(run, scratch_format("%d --max-iters 100000 --checkpoint-interval 100000 %s", count, more));
    wait_for_ranks(job, count, ranks);
    wait_for_lines(run, 10);
    return job;
}

/* Goes on with a run on other ranks for two iterations behind its newest checkpoint, whose iteration it gives. */
static long go_on(const char *run, const char *ranks, const char *more) {
    const long at = newest(run, 1);
    assert_true(at > 0);
    assert_done(run_job(run, scratch_format("%s --init-from resume --max-iters %ld %s", ranks, at + 2, more)));
    return at;
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
    const pid_t job = start_endless("stopped", 4, "--rank-timeout 2", ranks);
    int stopped = 0;
    while (rank_of(ranks[stopped]) != 2) {
        stopped++;
        assert_true(stopped < 4);
    }
    kill(ranks[stopped], SIGSTOP);
    assert_int_not_equal(finish_soon(job, ranks, 4), 0);
    const char *message = child_message();
    if (!strstr(message, "for 2 seconds; is it stopped, or its host away?") ||
        count_of(message, "hc_train: ") != 1 ||
        (!strstr(message, "rank 2 ") && !strstr(message, "or 2 ") && !strstr(message, "another rank"))) {
        fail_msg("%s", message + (strlen(message) > 800 ? strlen(message) - 800 : 0));
    }
}

/* Rank 0 cannot write any more: the other one hears of it and ends. */
UNIT_TEST(failing_rank_ends_the_job_with_one_message) {
    pid_t ranks[MOST_RANKS];
    const pid_t job = start_job("taken", "2 --max-iters 100000 --checkpoint-interval 1 --shard-optimizer");
    wait_for_ranks(job, 2, ranks);
    const long at = wait_for_checkpoint("taken", 0);
    for (long i = at + 1; i < at + 1000; i++) { /* files where folders are to be; some come too late */
        close(open(scratch_path(run_path("taken", checkpoint(i))), O_WRONLY | O_CREAT, 0666));
    }
    assert_failed(finish_soon(job, ranks, 2), 1, "hc_train: rank 0 on ");
    assert_says("cannot save checkpoint");
    assert_null(strstr(child_message(), "hc_train: rank 1 on "));
    for (long i = at + 1; i < at + 1000; i++) {
        unlink(scratch_path(run_path("taken", checkpoint(i)))); /* does nothing to a folder */
    }
    assert_done(run_job("taken", "4 --init-from resume")); /* what was saved before is whole */
}

/* The metrics are made longer than a checkpoint's files, so that there is a limit that stops them alone. */
LONG_TEST(unwritable_metrics_end_the_job_with_a_checkpoint) {
    enum { BLANK = 300000 };
    pid_t ranks[MOST_RANKS];
    size_t bytes;
    assert_done(run_job("unwritable", "2 --max-iters 2"));
    char *lines = scratch_text(scratch_path("unwritable/metrics.jsonl"), &bytes);
    char *text = malloc(BLANK + bytes);
    assert_non_null(text);
    memset(text, '\n', BLANK);
    memcpy(text + BLANK, lines, bytes);
    scratch_write("unwritable/metrics.jsonl", text, BLANK + bytes);
    free(text);
    const pid_t job = start_endless("unwritable", 2, "--init-from resume", ranks);
    wait_for_lines("unwritable", BLANK + 10);
    const pid_t first = ranks[rank_of(ranks[0]) == 0 ? 0 : 1];
    assert_int_equal(prlimit(first, RLIMIT_FSIZE, &(struct rlimit){BLANK, BLANK}, NULL), 0);
    assert_failed(finish_soon(job, ranks, 2), 1, "cannot write to the run's metrics file");
    assert_int_equal(count_of(child_message(), "hc_train: "), 1);
    assert_true(go_on("unwritable", "2", "") >= 3);
}

/* All ranks stop before the same iteration, which sees nothing of what was written. */
UNIT_TEST(data_written_over_ends_the_job_with_a_checkpoint) {
    pid_t ranks[MOST_RANKS];
    const char *data = scratch_format("--data-dir %s", scratch_path("rewritten"));
    copy_data("rewritten");
    const pid_t job = start_endless("overwritten", 2, data, ranks);
    corpus_write_over("rewritten/train.bin", "data/train.bin", true);
    assert_failed(finish_soon(job, ranks, 2), 1, "was changed while it was in use");
    assert_int_equal(count_of(child_message(), "hc_train: "), 1);
    corpus_write_over("rewritten/train.bin", "data/train.bin", false);
    const long last = go_on("overwritten", "2", data) + 2;
    assert_done(run_job("not-overwritten", scratch_format("2 --max-iters %ld", last)));
    assert_same_run("overwritten", "not-overwritten", checkpoint(last));
}

/* One rank gets the signal and all stop after the same iteration. */
UNIT_TEST(signal_to_one_rank_saves_and_stops_all) {
    static const int signals[] = {SIGUSR1, SIGTERM, SIGINT};
    for (int i = test_is_whole() ? 0 : 2; i < 3; i++) {
        pid_t ranks[MOST_RANKS];
        const char *run = scratch_format("signal-%d", i);
        const pid_t job = start_endless(run, 2, "", ranks);
        kill(ranks[i % 2], signals[i]);
        assert_failed(finish_soon(job, ranks, 2), 130, "interrupted; go on with --init-from resume");
        go_on(run, "4", "");
    }
}

/* In MPI_Init, which starts threads: a rank that dies there may leave mpirun waiting. */
UNIT_TEST(signal_while_ranks_start_is_heeded) {
    pid_t ranks[MOST_RANKS];
    const pid_t job = start_job("early", "2 --max-iters 100000");
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
    const pid_t job = start_job("ctrl-c", "2 --max-iters 100000 --checkpoint-interval 5");
    wait_for_ranks(job, 2, ranks);
    wait_for_checkpoint("ctrl-c", 0);
    kill(job, SIGINT);
    assert_int_not_equal(finish_soon(job, ranks, 2), 0);
    assert_true(go_on("ctrl-c", "2", "") >= 5);
}

/* ---- what is refused */

UNIT_TEST(work_that_cannot_be_divided_is_refused) {
    assert_failed(run_job("undivided", "3"), 2, "give 3 or a multiple of it");
    assert_failed(run_job("undivided", "3 --gradient-accumulation-steps 1"), 2, "give 3 or a multiple of it");
    assert_failed(run_job("undivided", "2 --dtype bf16 --master bf16 --shard-optimizer"), 1,
                  "master = bf16 and shard_optimizer"); /* ranks would send each other their shares */
    assert_false(files_exist(scratch_path("undivided")));
}

/* Two programs in one job that differ in what stands here. */
#define UNLIKE(program, ...)                                                                                       \
    CHILD_RUN(BY_RANK, TRAIN_PROGRAM, COMMON("unlike"), ",", program, COMMON("unlike"), ##__VA_ARGS__)

UNIT_TEST(ranks_that_differ_are_refused) {
    size_t bytes;
    assert_failed(UNLIKE(TRAIN_PROGRAM, "--learning-rate", "0.02"), 1, "rank 1 on ");
    assert_says("'learning_rate = 0.02' instead of 'learning_rate = 0.01'");
    copy_data("other");
    corpus_write_over("other/train.bin", "data/train.bin", true);
    assert_failed(UNLIKE(TRAIN_PROGRAM, "--data-dir", scratch_path("other")), 1, "train.bin is not the same");
    assert_done(run_job("ends", "2 --max-iters 2"));
#define ENDS TRAIN_PROGRAM, "--init-from", "resume", "--out-dir", scratch_path("ends"), "--device", "pocl"
    assert_failed(CHILD_RUN(BY_RANK, ENDS, "--max-iters", "1", ",", ENDS), 1, "max_iters given now");
#undef ENDS
    const char *text = scratch_text(TRAIN_PROGRAM, &bytes);
    const char *program = scratch_write("hc_train", text, bytes + 1); /* with the zero at its end */
    assert_int_equal(chmod(program, 0755), 0);
    assert_failed(UNLIKE(program), 1, "the program is not the same");
    assert_false(files_exist(scratch_path("unlike")));
}

/* An error of one rank is printed once, with its name. */
UNIT_TEST(missing_data_on_one_host_is_named) {
    assert_failed(UNLIKE(TRAIN_PROGRAM, "--data-dir", scratch_path("nowhere")), 1, "hc_train: rank 1 on ");
    assert_says("nowhere/train.bin does not exist");
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
    assert_done(run_job("spoken", "4 --profile --eval-iters 2"));
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
    assert_failed(run_job("wrong", "3 --n-layre 3"), 2, "hc_train: ");
    assert_int_equal(count_of(child_message(), "n-layre"), 1);
}

/* The argument is a pattern of names of tests. */
UNIT_TEST_MAIN(corpus_begin, scratch_end)
