/* --dtype auto in whole programs, on GPUs played by tests/support/faulty_opencl.c: what is chosen, said and kept.
 */
#include "tests/support/runs.h"
#include "tests/support/tensors.h"

#define ON_NO_GPU     NULL
#define OF_CHECKPOINT "--checkpoint", scratch_path("gpu/ckpt-3") /* of the first test */

/* Runs a program on a GPU that says it is one ("matrix-cores", "no-matrix-cores", see faulty_opencl.c), or on PoCL
 * as it is. */
static int run_on(const char *gpu, const char *const *arguments) {
    const char *const environment[] = {scratch_format("HC_GPU=%s", gpu ? gpu : ""), "LD_PRELOAD=" HC_PRELOADED,
                                       NULL};
    const struct child_setup setup = {.output = scratch_path("said"), .environment = gpu ? environment : NULL};
    return child_finish(child_start_with(&setup, arguments));
}

#define RUN_ON(gpu, ...) run_on((gpu), (const char *const[]){__VA_ARGS__, NULL})
#define TRAIN_ON(gpu, run, ...)                                                                                    \
    run_on((gpu), TRAIN_ARGUMENTS(run, "--device", (gpu) ? "gpu" : "pocl", ##__VA_ARGS__))

/* That stderr of the last program has this text, or has not. */
static void assert_printed(const char *text, bool expected) {
    if ((strstr(child_message(), text) != NULL) != expected) {
        fail_msg("'%s' %sexpected in: %s", text, expected ? "" : "un", child_message());
    }
}

/* Why a narrow model is in fp32 on a CPU: it has no bf16 instructions, or some that would not gain, or cannot be
 * used. */
static void assert_printed_of_the_cpu(void) {
    if (!strstr(child_message(), " channels is too narrow to gain from ")) {
        assert_printed(" would multiply bf16 in fp32", true);
    }
}

/* That a file in the scratch folder has this text, or has not. */
static void assert_has(const char *name, const char *text, bool expected) {
    char *content = scratch_text(scratch_path(name), NULL);
    if ((strstr(content, text) != NULL) != expected) {
        fail_msg("'%s' %sexpected in %s: %s", text, expected ? "" : "un", name, content);
    }
}

/* ---- hc_train */

/* The type that was chosen is the run's, wherever it goes on, unless another one is asked for. */
UNIT_TEST(gpu_with_matrix_cores_takes_bf16_and_its_run_keeps_it) {
    assert_done(TRAIN_ON("matrix-cores", "gpu", "--max-iters", "1", "--residual", "rc"));
    assert_printed("dtype    bf16: GEMMs on mma.sync passed their self-test\n", true);
    assert_printed("activations in bf16", true);
    assert_printed("warning", false);
    assert_has("gpu/settings.conf", "dtype = \"bf16\"\n", true);
    assert_int_equal(unlink(scratch_path("gpu/settings.conf")), 0); /* the checkpoint knows it too */
    assert_done(RUN_ON(ON_NO_GPU, TRAIN_PROGRAM, "--out-dir", scratch_path("gpu"), "--init-from", "resume",
                       "--device", "pocl", "--max-iters", "2"));
    assert_printed("activations in bf16", true);
    assert_printed("dtype ", false);
    assert_has("gpu/settings.conf", "dtype = \"bf16\"\n", true);
    assert_done(TRAIN_ON(ON_NO_GPU, "gpu", "--init-from", "resume", "--max-iters", "3", "--dtype", "auto"));
    assert_printed("dtype    fp32: ", true);
    assert_printed_of_the_cpu();
    assert_has("gpu/settings.conf", "dtype = \"fp32\"\n", true);
}

UNIT_TEST(cpu_takes_fp32_and_its_run_keeps_it) {
    assert_done(TRAIN_ON(ON_NO_GPU, "cpu", "--max-iters", "1"));
    assert_printed("dtype    fp32: ", true);
    assert_printed_of_the_cpu();
    assert_printed("activations in", false);
    assert_has("cpu/settings.conf", "dtype = \"fp32\"\n", true);
    assert_has("cpu/ckpt-1/state.json", "\\ndtype = \\\"fp32\\\"\\n", true);
    assert_done(TRAIN_ON("matrix-cores", "cpu", "--init-from", "resume", "--plan-only"));
    assert_printed("GEMMs by cblas", true);
    assert_printed("activations in", false);
    assert_printed("dtype ", false);
    /* the same bits as with the type given */
    assert_done(TRAIN_ON(ON_NO_GPU, "given", "--max-iters", "1", "--dtype", "fp32"));
    assert_printed("dtype ", false);
    assert_same_checkpoint("cpu", "given", "ckpt-1");
}

/* A run that says nothing of its type is from before there was a choice. */
UNIT_TEST(run_without_a_type_is_in_fp32) {
    assert_done(TRAIN_ON(ON_NO_GPU, "old", "--max-iters", "1"));
    char *text = scratch_text(scratch_path("old/ckpt-1/state.json"), NULL), *line = strstr(text, "\\ndtype = ");
    assert_non_null(line);
    line[strlen("\\n")] = '#'; /* a comment */
    scratch_put("old/ckpt-1/state.json", text);
    assert_int_equal(unlink(scratch_path("old/settings.conf")), 0);
    assert_done(TRAIN_ON("matrix-cores", "old", "--init-from", "resume", "--plan-only"));
    assert_printed("GEMMs by cblas", true);
    assert_printed("activations in", false);
}

UNIT_TEST(matrix_cores_that_fail_are_warned_of) {
    assert_done(TRAIN_ON("no-matrix-cores", "failing", "--max-iters", "1"));
    assert_printed(" would multiply bf16 in fp32\n", true);
    assert_printed("warning  GEMMs on ", true);
    assert_printed("WMMA: self-test with bf16", true);
    assert_printed("MFMA", false); /* which no gfx1100 has: its compiler would end the process */
    assert_printed("(options", false);
    assert_has("failing/settings.conf", "dtype = \"fp32\"\n", true);
    assert_done(TRAIN_ON("no-matrix-cores", "failing", "--plan-only", "--dtype", "bf16"));
    assert_printed("activations in bf16", true);
    assert_printed("warning  GEMMs on ", true);
    assert_done(TRAIN_ON("no-matrix-cores", "failing", "--plan-only", "--dtype", "fp32"));
    assert_printed("warning", false);
    assert_done(TRAIN_ON("matrix-cores", "failing", "--plan-only", "--gemm", "cblas"));
    assert_printed("dtype    fp32: --gemm cblas multiplies in fp32\n", true);
}

/* Where fp32 is chosen, nothing of bf16 has to work. */
UNIT_TEST(what_is_wrong_in_bf16_is_trained_in_fp32) {
    setenv("HC_FAULT", "convert_to_fp32 0 1", 1);
    assert_done(TRAIN_ON("no-matrix-cores", "wrong", "--max-iters", "1"));
    assert_printed(" would multiply bf16 in fp32\n", true);
    assert_failed(TRAIN_ON("no-matrix-cores", "refused", "--dtype", "bf16"), 1,
                  "try another --gemm, --dtype fp32, another version of the driver");
    unsetenv("HC_FAULT");
}

/* ---- the others */

/* But that kernels are compiled, which a slow machine says. */
static void assert_printed_nothing(void) {
    const char *line = child_message();
    while (strncmp(line, "compiling kernels", strlen("compiling kernels")) == 0) {
        line += strcspn(line, "\n") + 1;
    }
    assert_string_equal(line, "");
}

UNIT_TEST(other_programs_say_it_beside_their_data) {
    assert_done(RUN_ON("matrix-cores", HC_PROGRAMS "/hc_sample", OF_CHECKPOINT, "--device", "gpu",
                       "--max-new-tokens", "2"));
    assert_printed("dtype    bf16: ", true);
    assert_has("said", "dtype", false);
    assert_done(
        RUN_ON(ON_NO_GPU, HC_PROGRAMS "/hc_sample", OF_CHECKPOINT, "--device", "pocl", "--max-new-tokens", "2"));
    assert_printed_nothing();
#define EVALUATED HC_PROGRAMS "/hc_eval", OF_CHECKPOINT, "--data", scratch_path("data"), "--json", "-"
    assert_done(RUN_ON("matrix-cores", EVALUATED, "--device", "gpu", "--eval-iters", "1"));
    assert_printed("dtype    bf16: ", true);
    assert_has("said", "\"dtype\": \"bf16\"", true);
    assert_done(RUN_ON(ON_NO_GPU, EVALUATED, "--device", "pocl", "--eval-iters", "1"));
    assert_printed("dtype    fp32: ", true);
    assert_has("said", "\"dtype\": \"fp32\"", true);
    assert_done(RUN_ON(ON_NO_GPU, HC_PROGRAMS "/hc_bench", "--config", scratch_path("tiny.conf"), "--compare",
                       "rc,shc", "--steps", "1", "--warmup", "0", "--json", scratch_path("bench.json")));
    assert_has("said", "dtype    fp32: ", true);
    assert_has("bench.json", "\"dtype\": \"fp32\"", true);
}

/* What others compare with is in fp32 unless another type is given. */
UNIT_TEST(hc_probe_asks_to_be_told) {
    const struct tensors_ids tokens = {2, {1, 4}, (int32_t[]){1, 2, 3, 4}};
    const char *batch = scratch_path("batch");
    tensors_write_batch(batch, tokens, tokens);
#define PROBE(gpu, ...)                                                                                            \
    RUN_ON(gpu, HC_PROGRAMS "/hc_probe", OF_CHECKPOINT, "--batch", batch, "--out", scratch_path("probe"),          \
           "--no-grad", ##__VA_ARGS__)
    assert_done(PROBE("matrix-cores", "--device", "gpu"));
    assert_printed_nothing();
    assert_done(PROBE("matrix-cores", "--device", "gpu", "--dtype", "auto"));
    assert_printed("dtype    bf16: ", true);
    assert_done(PROBE(ON_NO_GPU, "--device", "pocl", "--gemm", "portable", "--dtype", "auto"));
    assert_printed("dtype    fp32: ", true);
}

UNIT_TEST(hc_devices_says_which_gpu_is_whose) {
    assert_done(RUN_ON("matrix-cores", HC_PROGRAMS "/hc_devices"));
    assert_has("said", "PCI address   0000:41:00.0\n", true);
    assert_has("said", "--device gpu gives the ranks of a node, in turn: 0", true);
    assert_done(RUN_ON(ON_NO_GPU, HC_PROGRAMS "/hc_devices"));
}

/* Rank 0 is on PoCL as it is, rank 1 on a GPU, or the other way round. */
UNIT_TEST(ranks_take_what_all_can_do) {
#define PLANNED                                                                                                    \
    TRAIN_PROGRAM, "--config", scratch_path("tiny.conf"), "--data-dir", scratch_path("data"), "--out-dir",         \
        scratch_path("ranks"), "--gradient-accumulation-steps", "2", "--plan-only"
#define ON_CPU PLANNED, "--device", "pocl"
#define ON_GPU "env", "LD_PRELOAD=" HC_PRELOADED, "HC_GPU=matrix-cores", PLANNED, "--device", "gpu"
    assert_done(CHILD_RUN(BY_RANK, ON_CPU, ",", ON_GPU));
    assert_printed("dtype    fp32: ", true);
    assert_printed("warning  all ranks work in fp32 because of rank 0 on ", true);
    assert_done(CHILD_RUN(BY_RANK, ON_GPU, ",", ON_CPU));
    assert_printed("GEMMs by cblas\n", true); /* opened anew, without the matrix cores that are left idle */
    assert_printed("dtype    fp32: rank 1 on ", true);
    assert_printed("activations in", false);
    assert_done(CHILD_RUN(BY_RANK, ON_GPU, "--dtype", "bf16", ",", ON_CPU, "--dtype", "bf16"));
    assert_printed("GEMMs by mma on mma.sync", true);
    assert_printed("activations in bf16", true);
    assert_printed("dtype ", false);
    assert_printed(" and rank 0 by mma: all wait for the slower one", true); /* by what the CPU has */
    assert_done(CHILD_RUN(BY_RANK, ON_GPU, ",", ON_GPU));
    assert_printed("multiplies by", false);
    assert_printed("dtype    bf16: GEMMs on mma.sync", true);
}

static int set_up(void **state) {
    /* what is compiled for devices that are not there is not for the user's cache; the tests share PoCL's */
    return corpus_begin(state) || child_keep_no_programs();
}

UNIT_TEST_MAIN(set_up, scratch_end)
