#include "runtime/device/profiler.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "runtime/system/progress.h"
#include "runtime/system/spawn.h"
#include "src/bench/bench.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_CASES = 32 };

/* One variant and its process. */
struct bench_case {
    const struct residual_variant *residual;
    int64_t streams;
    pid_t process;            /* 0: not started */
    FILE *from;               /* its stdout; the same socket is its stdin */
    double *seconds, *ratios; /* [steps], one block */
    json_t *facts;
    struct timing step;
    double speed, mfu; /* tokens a second; the model's FLOPs a second, relative to gemm_rate */
    double ratio;      /* to the first case with plain residuals, median over rounds; NaN without one */
};

struct comparison {
    const struct bench_settings *settings;
    struct bench_case cases[MOST_CASES];
    size_t count;
    double gemm_rate; /* every process has measured the same GEMMs: the highest is what the device can do */
};

/* ---- which */

/* "shc:4", which it takes apart */
static int read_case(struct comparison *all, struct ranks *ranks, char *text) {
    struct train_settings train = all->settings->train;
    struct bench_model model;
    char *streams = strchr(text, ':'), *end = NULL;
    struct bench_case *one = &all->cases[all->count];
    if (all->count == MOST_CASES) {
        return error_set("--compare takes %d variants at most", MOST_CASES);
    }
    if (streams) {
        *streams++ = '\0';
    }
    *one = (struct bench_case){.residual = residual_find(text), .streams = train.model.n_streams};
    if (!one->residual) {
        return error_set("--compare: '%s' is no residual variant: give some of %s, with streams as in shc:4, "
                         "separated by commas",
                         text, residual_names());
    }
    if (streams) {
        one->streams = strtol(streams, &end, 10);
        if (end == streams || *end || one->streams < 1 || one->streams > RESIDUAL_MAX_STREAMS) {
            return error_set("--compare: '%s:%s': streams are a number from 1 to %d", text, streams,
                             RESIDUAL_MAX_STREAMS);
        }
    }
    one->streams = residual_is_single(one->residual) ? 1 : one->streams;
    all->count++;
    train.model.residual = one->residual;
    train.model.n_streams = one->streams;
    return bench_model_check(&model, &train, ranks);
}

/* ---- processes */

/* Starts the same program with this case's settings and --step-on-demand, and a socket as its stdin and stdout.
 * type: of its activations, NULL: as in the settings. */
static int start(struct bench_case *one, const char *type, int argc, char **argv) {
    char streams[24];
    int ends[2], status = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) {
        return error_set_errno("cannot make a socket");
    }
    snprintf(streams, sizeof streams, "%" PRId64, one->streams);
    char *const more[] = {
        "--compare=",  "--json=", "--step-on-demand",      "--residual", (char *)one->residual->name,
        "--n-streams", streams,   type ? "--dtype" : NULL, (char *)type, NULL};
    char **arguments = memory_allocate((size_t)argc, sizeof *arguments + sizeof more);
    memcpy(arguments, argv, (size_t)argc * sizeof *argv);
    memcpy(arguments + argc, more, sizeof more);
    errno = spawn_program(&one->process, "/proc/self/exe", arguments,
                          &(struct spawn_files){.in = ends[1], .out = ends[1], .err = -1});
    free(arguments);
    if (errno) {
        one->process = 0;
        status = error_set_errno("cannot start a process for %s", one->residual->name);
    }
    close(ends[1]);
    one->from = fdopen(ends[0], "r");
    if (!one->from) {
        status = error_set_errno("cannot open a socket");
        close(ends[0]);
    }
    return status;
}

/* The next object that the process writes; the caller's to json_decref. NULL with an error text when it has ended
 * instead. */
static json_t *read_answer(struct bench_case *one) {
    json_error_t error;
    json_t *json = json_loadf(one->from, JSON_DISABLE_EOF_CHECK, &error);
    if (!json) {
        error_set("the process of %s with %s ended early%s", one->residual->name,
                  message_count(one->streams, "stream").text,
                  feof(one->from) ? "; its message above says why, or was killed for want of memory" : "");
    }
    return json;
}

/* ---- measuring */

/* Valid until the facts are replaced; "" where there is none of that name. */
static const char *text_fact(const struct bench_case *one, const char *name) {
    const char *text = json_string_value(json_object_get(one->facts, name));
    return text ? text : "";
}

static double fact(const struct bench_case *one, const char *name) {
    return json_number_value(json_object_get(one->facts, name));
}

/* All take a step in each round. Every other one goes backwards, so that no case always follows the same one. */
static int run_rounds(struct comparison *all) {
    const struct bench_settings *settings = all->settings;
    const int64_t rounds = settings->warmup + settings->steps;
    struct progress progress = {.silent = false};
    int status = 0;
    progress_start(&progress, 0);
    for (int64_t round = 0; status == 0 && round < rounds; round++) {
        for (size_t i = 0; status == 0 && i < all->count; i++) {
            struct bench_case *one = &all->cases[round % 2 ? all->count - 1 - i : i];
            if (send(fileno(one->from), "\n", 1, MSG_NOSIGNAL) != 1) {
                status = error_set("the process of %s with %s is gone", one->residual->name,
                                   message_count(one->streams, "stream").text);
                break;
            }
            json_t *answer = read_answer(one);
            status = answer ? 0 : -1;
            if (round >= settings->warmup) {
                one->seconds[round - settings->warmup] = json_number_value(json_object_get(answer, "seconds"));
            }
            json_decref(answer);
        }
        progress_show(&progress, "round", round + 1, rounds, "", false);
    }
    progress_end(&progress);
    return status;
}

/* Ratios are taken within a round, where the machine was the same, and before timing_of sorts the seconds. */
static void conclude(struct comparison *all) {
    const size_t steps = (size_t)all->settings->steps;
    const struct bench_case *plain = NULL;
    for (size_t i = all->count; i-- > 0;) {
        plain = residual_has_frame(all->cases[i].residual, "plain") ? &all->cases[i] : plain;
        all->gemm_rate = fmax(all->gemm_rate, fact(&all->cases[i], "gemm_rate"));
    }
    for (size_t i = 0; plain && i < all->count; i++) {
        for (size_t k = 0; k < steps; k++) {
            all->cases[i].ratios[k] = all->cases[i].seconds[k] / plain->seconds[k];
        }
    }
    for (size_t i = 0; i < all->count; i++) {
        struct bench_case *one = &all->cases[i];
        one->step = timing_of(one->seconds, steps);
        one->ratio = plain ? timing_of(one->ratios, steps).median : NAN;
        one->speed = fact(one, "tokens") / one->step.median;
        one->mfu = one->speed * fact(one, "flops_per_token") / all->gemm_rate;
    }
}

/* ---- reports */

static void print_table(const struct comparison *all) {
    const struct bench_case *first = &all->cases[0];
    const double gibi = 1073741824.0;
    message_print(stdout, "device   %s, GEMMs by %s at %.1f GFLOP/s\n", text_fact(first, "device"),
                  text_fact(first, "gemm"), 1e-9 * all->gemm_rate);
    if (*text_fact(first, "dtype_reason")) {
        message_print(stdout, "dtype    %s: %s\n", text_fact(first, "dtype"), text_fact(first, "dtype_reason"));
    }
    if (*text_fact(first, "warning")) {
        message_print(stderr, "warning  %s\n", text_fact(first, "warning"));
    }
    message_print(
        stdout,
        "model    %.0f layers, %.0f channels, vocabulary %.0f (%s), %.0f tokens a step; medians of %" PRId64
        " rounds\n",
        fact(first, "n_layer"), fact(first, "n_embd"), fact(first, "vocab_size"), text_fact(first, "vocab_source"),
        fact(first, "tokens"), all->settings->steps);
    message_print(stdout, "%-9s %2s %11s %11s %9s %9s %9s %8s %8s %7s\n", "residual", "n", "parameters",
                  "auxiliary", "step ms", "tokens/s", "of GEMM", "planned", "peak", "to rc");
    for (size_t i = 0; i < all->count; i++) {
        const struct bench_case *one = &all->cases[i];
        message_print(stdout, "%-9s %2" PRId64 " %11.4g %11.4g %9.1f %9.1f %7.1f %% %4.2f GiB %4.2f GiB",
                      one->residual->name, one->streams, fact(one, "parameters"), fact(one, "auxiliary"),
                      1e3 * one->step.median, one->speed, 100.0 * one->mfu, fact(one, "planned_bytes") / gibi,
                      fact(one, "peak_bytes") / gibi);
        message_print(stdout, isnan(one->ratio) ? "\n" : " %7.3f\n", one->ratio);
    }
    message_print(stdout, "of GEMM  the model's FLOPs a second, relative to the rate of GEMMs alone above\n"
                          "planned  memory on the device; peak: the most that the process has had\n");
    if (!isnan(first->ratio)) {
        message_print(stdout, "to rc    time of a step divided by that of rc in the same round, median of the "
                              "rounds. It is not the quotient of two\n         medians above: a machine that is "
                              "slower in some rounds changes those, and not the ratios within a round\n");
    }
}

static int write_json(const struct comparison *all) {
    json_t *cases = json_array(), *json;
    for (size_t i = 0; i < all->count; i++) {
        const struct bench_case *one = &all->cases[i];
        json_t *more =
            json_pack("{s:f, s:f, s:{s:o}, s:o}", "tokens_per_second", one->speed, "mfu", one->mfu, "seconds",
                      "step", timing_json(&one->step), "ratio_to_rc", json_file_real(one->ratio));
        json_object_update(more, one->facts);
        json_array_append_new(cases, more);
    }
    json = json_pack("{s:I, s:o}", "steps", (json_int_t)all->settings->steps, "cases", cases);
    return json_file_write(all->settings->json, json, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
}

static int measure(struct comparison *all, int argc, char **argv) {
    for (size_t i = 0; i < all->count; i++) {
        struct bench_case *one = &all->cases[i];
        one->seconds = memory_zeroed((size_t)all->settings->steps, 2 * sizeof *one->seconds);
        one->ratios = one->seconds + all->settings->steps;
        /* what "auto" was to the first holds for all, or they could not be compared */
        if (start(one, i == 0 ? NULL : text_fact(&all->cases[0], "dtype"), argc, argv) ||
            !(one->facts = read_answer(one))) {
            return -1;
        }
    }
    if (run_rounds(all)) {
        return -1;
    }
    for (size_t i = 0; i < all->count; i++) {
        struct bench_case *one = &all->cases[i];
        if (shutdown(fileno(one->from), SHUT_WR)) { /* it waits for another request */
            return error_set_errno("cannot end the process of %s", one->residual->name);
        }
        json_decref(one->facts);
        one->facts = read_answer(one);
        if (!one->facts) {
            return -1;
        }
    }
    conclude(all);
    print_table(all);
    return *all->settings->json ? write_json(all) : 0;
}

enum program_status bench_compare_run(const struct bench_settings *settings, struct ranks *ranks, int argc,
                                      char **argv) {
    struct comparison all = {.settings = settings};
    if (ranks->count > 1) {
        error_set("--compare starts its processes itself: leave mpirun out, or measure one variant with --ranks");
        return PROGRAM_WRONG;
    }
    char *copy = memory_string(settings->compare), *rest = copy, *text;
    int status = 0;
    while (status == 0 && (text = strsep(&rest, ","))) {
        status = read_case(&all, ranks, text);
    }
    free(copy);
    if (status) {
        return PROGRAM_WRONG;
    }
    status = measure(&all, argc, argv);
    for (size_t i = 0; i < all.count; i++) {
        struct bench_case *one = &all.cases[i];
        if (one->from) {
            fclose(one->from); /* which ends it */
        }
        if (one->process) {
            waitpid(one->process, NULL, 0);
        }
        json_decref(one->facts);
        free(one->seconds);
    }
    return status ? PROGRAM_FAILED : PROGRAM_DONE;
}

/* ---- a process of those */

/* Writes the object, which it takes, as a line. */
static int answer(json_t *json) {
    int result = json_file_print_line(json, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!result && fflush(stdout)) {
        result = error_set_errno("cannot write");
    }
    return result ? error_prefix("cannot answer the program that asked for a step") : 0;
}

static int answer_requests(struct bench_model *bench) {
    if (data_parallel_measure_rate(&bench->gpt, bench->ranks, &bench->gemm_rate) ||
        answer(bench_model_facts(bench))) {
        return -1;
    }
    uint64_t step = 0;
    for (int c = getchar(); c != EOF; c = getchar(), step++) { /* a line */
        double seconds[BENCH_KINDS];
        while (c != '\n' && c != EOF) {
            c = getchar();
        }
        if (step == 1 && bench->compute->profiler) {
            profiler_reset(bench->compute->profiler); /* the first one compiles */
        }
        if (bench_model_step(bench, step, seconds) || answer(json_pack("{s:f}", "seconds", seconds[BENCH_STEP]))) {
            return -1;
        }
    }
    json_t *facts = bench_model_facts(bench);
    json_object_set_new(facts, "profiled_steps", json_integer((json_int_t)(step > 1 ? step - 1 : step)));
    return answer(facts);
}

enum program_status bench_step_on_demand_run(const struct bench_settings *settings, struct ranks *ranks) {
    struct bench_model bench;
    if (ranks->count > 1) {
        error_set("--step-on-demand is for one process: leave mpirun out");
        return PROGRAM_WRONG;
    }
    if (bench_model_check(&bench, &settings->train, ranks)) {
        return PROGRAM_WRONG;
    }
    const int status = bench_model_set_up(&bench) || answer_requests(&bench);
    bench_model_release(&bench);
    return status ? PROGRAM_FAILED : PROGRAM_DONE;
}
