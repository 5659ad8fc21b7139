#include "runtime/device/profiler.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "src/bench/bench.h"
#include "src/bench/bench_model.h"

/* Takes over the object. */
static int say(json_t *json) {
    int result = json_file_print(json, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!result && (putchar('\n') == EOF || fflush(stdout))) {
        result = error_set_errno("cannot write");
    }
    json_decref(json);
    return result ? error_prefix("cannot answer the program that asked for a step") : 0;
}

/* False at the end of the input. */
static bool hear(void) {
    int c = getchar();
    const bool any = c != EOF;
    while (c != '\n' && c != EOF) {
        c = getchar();
    }
    return any;
}

static int take_turns(struct bench_model *bench) {
    if (bench_model_measure_rate(bench) || say(bench_model_facts(bench))) {
        return -1;
    }
    uint64_t step = 0;
    for (; hear(); step++) {
        double seconds[BENCH_KINDS];
        if (step == 1 && bench->compute->profiler) {
            profiler_reset(bench->compute->profiler); /* the first one compiles */
        }
        if (bench_model_step(bench, step, seconds) || say(json_pack("{s:f}", "seconds", seconds[BENCH_STEP]))) {
            return -1;
        }
    }
    json_t *facts = bench_model_facts(bench);
    json_object_set_new(facts, "profiled_steps", json_integer((json_int_t)(step > 1 ? step - 1 : step)));
    return say(facts);
}

enum bench_status bench_turns_run(const struct bench_settings *settings, struct ranks *ranks) {
    struct bench_model bench;
    if (ranks->count > 1) {
        error_set("--turns is for one process: leave mpirun out");
        return BENCH_WRONG;
    }
    if (bench_model_check(&bench, &settings->train, ranks)) {
        return BENCH_WRONG;
    }
    const int status = bench_model_set_up(&bench) || take_turns(&bench);
    bench_model_release(&bench);
    return status ? BENCH_FAILED : BENCH_DONE;
}
