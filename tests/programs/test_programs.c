/* What all programs have in common: --help, --version and mistakes on the command line leave no trace, and tables
 * of options are sound. */
#include "tests/support/runs.h"

enum { DONE = 0 };

static const char *const programs[] = {"hc_train",  "hc_bench",  "hc_eval",    "hc_probe",
                                       "hc_sample", "hc_export", "hc_prepare", "hc_devices"};

/* Runs a program with one argument (NULL: none), where its caches would go to the scratch folder "cache". */
static int run_alone(const char *name, const char *argument) {
    const char *path = scratch_format(HC_PROGRAMS "/%s", name);
    const char *cache = scratch_format("XDG_CACHE_HOME=%s", scratch_path("cache"));
    const char *const environment[] = {cache, "POCL_CACHE_DIR", NULL};
    const struct child_setup setup = {.output = scratch_path("said"), .environment = environment};
    return child_finish(child_start_with(&setup, (const char *const[]){path, argument, NULL}));
}

static void assert_said(const char *expected) {
    const char *said = scratch_text(scratch_path("said"), NULL);
    if (!strstr(said, expected)) {
        fail_msg("'%s' is not in: %s", expected, said);
    }
}

/* That they print at all says that no row is refused: names have underscores, and defaults are what they should. */
UNIT_TEST(help_and_version_leave_no_trace) {
    for (size_t i = 0; i < COUNT(programs); i++) {
        assert_int_equal(run_alone(programs[i], "--version"), DONE);
        assert_said(scratch_format("%s %s\n", programs[i], HC_VERSION));
        assert_said("\nMPI            ");
        assert_int_equal(run_alone(programs[i], "--help"), DONE);
        assert_said(scratch_format("\nUsage: %s ", programs[i]));
        assert_int_equal(run_alone(programs[i], "--nonsense"), WRONG_USAGE);
        assert_string_equal(child_message(),
                            scratch_format("%s: unknown option '--nonsense' (--help lists all)\n", programs[i]));
        assert_false(files_exist(scratch_path("cache")));
    }
    run_alone("hc_devices", NULL); /* what uses a device does make the folder: the check above is one */
    assert_true(files_exist(scratch_path("cache")));
}

UNIT_TEST(version_says_where_libraries_are) {
    assert_int_equal(run_alone("hc_train", "--version"), DONE);
    assert_said("\nOpenCL loader  /");
    assert_said("\nCLBlast        /");
    assert_said("\nOpenBLAS       OpenBLAS ");
    assert_said("\noneDNN         "); /* or none */
}

UNIT_TEST(bench_takes_its_options_from_config_files) {
    /* Settings that contradict each other are refused after the config file has been taken. */
#define BENCH(text)                                                                                                \
    CHILD_RUN(HC_PROGRAMS "/hc_bench", "--config", scratch_put("bench.conf", text), "--step-on-demand", "--json",  \
              "x")
    assert_failed(BENCH("steps = 1\n"), WRONG_USAGE, "--step-on-demand uses stdin and stdout");
    assert_failed(BENCH("steps = x\n"), WRONG_USAGE, "bench.conf:1: steps = 'x' is not a whole number");
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
