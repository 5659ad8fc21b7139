/* options: command lines, config files good and bad, what is written, and --help. */
#include "runtime/options/option_rows.h"
#include "runtime/options/options_internal.h"
#include "runtime/system/error.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 16 };

enum residual_word { RC, HC, MHC, MHC_LITE };

struct settings {
    int64_t n_layer, anything;
    double learning_rate, any_number;
    bool bias, compile;
    int residual; /* enum residual_word */
    char *out_dir, *init_from;
};

struct fixture {
    struct settings settings;
    struct option_spec specs[12];
    char *arguments[MOST_ARGUMENTS];
    int first_free;
};

enum { SPEC_COUNT = 11, SPEC_N_LAYER = 1, SPEC_BIAS = 6, SPEC_OUT_DIR = 8 };

static const struct program_info program = {
    .name = "hc_test",
    .summary = "A program to test options. It does nothing else.",
    .usage = "[OPTIONS] FILE...",
    .examples = "  hc_test --n-layer 3\n",
};

static void fixture_fill(struct fixture *fixture) {
    struct settings *settings = &fixture->settings;
    const struct option_spec specs[SPEC_COUNT] = {
        HEADING("Model"),
        INT("n_layer", &settings->n_layer, "12", 1, 1000, "layers"),
        INT("anything", &settings->anything, "-1", 0, 0, "no limits"),
        HEADING("Training"),
        FLOAT("learning_rate", &settings->learning_rate, "6e-4", 0, 1, "step size of the optimizer"),
        FLOAT("any_number", &settings->any_number, "0", 0, 0, NULL),
        BOOL("bias", &settings->bias, "true", "biases"),
        BOOL("compile", &settings->compile, "false", NULL),
        TEXT("out_dir", &settings->out_dir, "out", NULL, .may_be_empty = true),
        TEXT("init_from", &settings->init_from, NULL, NULL),
        CHOICE("residual", &settings->residual, "rc", "rc|hc|mhc|mhc_lite", NULL),
    };
    memcpy(fixture->specs, specs, sizeof specs);
}

/* As programs do. */
static enum options_result parse_table(struct option_spec *specs, size_t count, int argc, char **argv,
                                       int *first_free) {
    struct options_given *given = NULL;
    if (options_set_defaults(specs, count) != 0) {
        return OPTIONS_WRONG;
    }
    enum options_result result = options_read(specs, count, argc, argv, first_free, &given);
    assert_true((given != NULL) == (result == OPTIONS_OK));
    if (result == OPTIONS_OK && options_apply_given(given) != 0) {
        result = OPTIONS_WRONG;
    }
    options_given_free(given);
    return result;
}

/* Parses the arguments, which end with NULL. */
static enum options_result parse(struct fixture *fixture, const char *const *arguments) {
    int count = 1;
    memset(fixture, 0, sizeof *fixture);
    fixture_fill(fixture);
    fixture->arguments[0] = strdup("hc_test");
    for (; *arguments != NULL; arguments++) {
        fixture->arguments[count++] = strdup(*arguments);
    }
    error_clear();
    return parse_table(fixture->specs, SPEC_COUNT, count, fixture->arguments, &fixture->first_free);
}

#define PARSE(fixture, ...) parse((fixture), (const char *const[]){__VA_ARGS__, NULL})

static void release(struct fixture *fixture) {
    for (int i = 0; i < MOST_ARGUMENTS; i++) {
        free(fixture->arguments[i]);
    }
    options_free(fixture->specs, SPEC_COUNT);
    assert_null(fixture->settings.out_dir);
}

UNIT_TEST(test_defaults) {
    struct fixture fixture;
    assert_int_equal(parse(&fixture, (const char *const[]){NULL}), OPTIONS_OK);
    assert_true(fixture.settings.n_layer == 12 && fixture.settings.anything == -1 &&
                fixture.settings.learning_rate == 6e-4 && fixture.settings.bias && !fixture.settings.compile);
    assert_string_equal(fixture.settings.out_dir, "out");
    assert_null(fixture.settings.init_from);
    assert_int_equal(fixture.settings.residual, RC);
    assert_int_equal(fixture.first_free, 1);
    assert_false(fixture.specs[SPEC_N_LAYER].given);
    release(&fixture);
}

UNIT_TEST(test_command_line) {
    struct fixture fixture;
    assert_int_equal(PARSE(&fixture, "one", "--n-layer", "3", "--n_layer=4", "-", "--anything", "-5", "--no-bias",
                           "--compile=True", "--init_from=a b", "--residual", "mhc_lite", "--", "--three"),
                     OPTIONS_OK);
    assert_true(fixture.settings.n_layer == 4 && fixture.settings.anything == -5 && !fixture.settings.bias &&
                fixture.settings.compile);
    assert_string_equal(fixture.settings.init_from, "a b");
    assert_int_equal(fixture.settings.residual, MHC_LITE);
    assert_true(fixture.specs[SPEC_N_LAYER].given);
    assert_true(fixture.specs[SPEC_BIAS].given);
    assert_false(fixture.specs[SPEC_OUT_DIR].given);
    assert_string_equal(fixture.arguments[fixture.first_free], "one");
    assert_string_equal(fixture.arguments[fixture.first_free + 1], "-");
    assert_string_equal(fixture.arguments[fixture.first_free + 2], "--three");
    assert_null(fixture.arguments[fixture.first_free + 3]);
    release(&fixture);
}

UNIT_TEST(test_wrong_command_lines) {
    static const struct {
        const char *arguments[3];
        const char *error;
    } cases[] = {
        {{"--n-embd", "abc"}, "unknown option '--n-embd' (--help lists all)"},
        {{"--n-layers", "3"}, "unknown option '--n-layers' (did you mean '--n-layer'?)"},
        {{"--hlep"}, "did you mean '--help'?"},
        {{"--n-lay", "3"}, "unknown option '--n-lay' (did you mean '--n-layer'?)"},
        {{"--resid=rc"}, "unknown option '--resid'"},
        {{"--x=3"}, "unknown option '--x' (--help lists all)"},
        {{"-x"}, "unknown option '-x'"},
        {{"--n-layer"}, "--n-layer needs a value"},
        {{"--config"}, "--config needs a value"},
        {{"--n-layer", "abc"}, "--n-layer: 'abc' is not a whole number"},
        {{"--n-layer", "3.0"}, "'3.0' is not a whole number"},
        {{"--n-layer", "0x10"}, "'0x10' is not a whole number"},
        {{"--n-layer", " 3"}, "' 3' is not a whole number"},
        {{"--n-layer", "0"}, "--n-layer: 0 is out of range 1 .. 1000"},
        {{"--anything", "9223372036854775808"}, "does not fit 64 bits"},
        {{"--anything", "-9223372036854775809"}, "does not fit 64 bits"},
        {{"--learning-rate", "5"}, "--learning-rate: 5 is out of range 0 .. 1"},
        {{"--learning_rate", "-1e-9"}, "--learning-rate: -1e-9 is out of range 0 .. 1"},
        {{"--any-number", "1e"}, "--any-number: '1e' is not a number"},
        {{"--any-number", "nan"}, "'nan' is not a number"},
        {{"--any-number", "1,5"}, "'1,5' is not a number"},
        {{"--any-number", ""}, "'' is not a number"},
        {{"--any-number", "1e999"}, "1e999 is too large a number"},
        {{"--learning-rate", "1e-400"}, "--learning-rate: 1e-400 is too small a number: give 0"},
        {{"--bias=maybe"}, "--bias: 'maybe' is neither true nor false"},
        {{"--no-bias=false"}, "--no-bias takes no value"},
        {{"--help=yes"}, "--help takes no value"},
        {{"--residual", "h"}, "--residual: 'h' is none of rc|hc|mhc|mhc_lite"},
        {{"--residual", "rc|hc"}, "is none of"},
        {{"--init-from", ""}, "--init-from: no text is given: leave it out, or say which"},
        {{"--config", "/nowhere/x.conf"}, "--config: cannot open /nowhere/x.conf"},
        {{"--config", "/"}, "Is a directory"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct fixture fixture;
        assert_int_equal(parse(&fixture, cases[i].arguments), OPTIONS_WRONG);
        assert_error_text(cases[i].error);
        release(&fixture);
    }
}

UNIT_TEST(test_config_files) {
    static const char first[] = "# a comment\r\n\r\n"
                                "  n_layer=5   # five\r\n"
                                "learning_rate\t=\t1e-3\r\n"
                                "bias = False\n"
                                "out_dir = runs/a b#comment\n"
                                "init_from = \" # \\\"quoted\\\" \\\\ \" # comment";
    static const char second[] = "\xEF\xBB\xBFn_layer = 6\nn_layer = 7\nout_dir =\nresidual = \"hc\"";
    struct fixture fixture;
    const char *first_path = scratch_put("first.conf", first);
    const char *second_path = scratch_put("second.conf", second);
    assert_int_equal(PARSE(&fixture, "--config", first_path), OPTIONS_OK);
    assert_int_equal(fixture.settings.n_layer, 5);
    assert_true(fixture.settings.learning_rate == 1e-3);
    assert_false(fixture.settings.bias);
    assert_string_equal(fixture.settings.out_dir, "runs/a b");
    assert_string_equal(fixture.settings.init_from, " # \"quoted\" \\ ");
    assert_true(fixture.specs[SPEC_BIAS].given);
    release(&fixture);

    /* Later files win, and the command line over all, wherever it stands. */
    assert_int_equal(PARSE(&fixture, "--learning-rate=0.5", "--config", first_path, "--config", second_path),
                     OPTIONS_OK);
    assert_int_equal(fixture.settings.n_layer, 7);
    assert_true(fixture.settings.learning_rate == 0.5);
    assert_string_equal(fixture.settings.out_dir, "");
    assert_int_equal(fixture.settings.residual, HC);
    release(&fixture);
}

static char long_line[100000];

UNIT_TEST(test_wrong_config_files) {
    memset(long_line, 'x', sizeof long_line - 1);
    static const struct {
        const char *text;
        size_t bytes; /* 0: of the text */
        const char *error;
    } cases[] = {
        {"n_layers = 3\n", 0, ":1: unknown option 'n_layers' (did you mean 'n_layer'?)"},
        {"\n\nn-layer = 3\n", 0, ":3: unknown option 'n-layer' (did you mean 'n_layer'?)"},
        {"config = x\n", 0, ":1: unknown option 'config'"},
        {"help = x\n", 0, ":1: unknown option 'help'"},
        {"no_bias = true\n", 0, ":1: unknown option 'no_bias'"},
        {"= 3\n", 0, ":1: unknown option ''"},
        {"n_layer 3\n", 0, ":1: 'n_layer 3' is not of the form name = value"},
        {"n_layer # = 3\n", 0, ":1: 'n_layer # = 3' is not of the form name = value"},
        {"\xEF\xBB\xBF\xEF\xBB\xBFn_layer = 3\n", 0, ":1: unknown option"},
        {"\xEF\xBB\xBFn_layers = 3\n", 0, ":1: unknown option 'n_layers'"},
        {"\xEF\xBB", 0, "is not of the form"},
        {"\nlearning_rate = 5", 0, ":2: learning_rate = 5 is out of range 0 .. 1"},
        {"learning_rate = 1e\n", 0, ":1: learning_rate = '1e' is not a number"},
        {"learning_rate = \" 1\"\n", 0, "' 1' is not a number"},
        {"n_layer = 3 4\n", 0, "'3 4' is not a whole number"},
        {"n_layer =\n", 0, "'' is not a whole number"},
        {"n_layer = # 3\n", 0, "'' is not a whole number"},
        {"bias = yes\n", 0, ":1: bias = 'yes' is neither true nor false"},
        {"residual = nope\n", 0, ":1: residual = 'nope' is none of"},
        {"out_dir = \"a\n", 0, ":1: out_dir: the closing quote is missing"},
        {"out_dir = \"a\\\"\n", 0, "the closing quote is missing"},
        {"out_dir = \"a\\", 0, "a backslash in quotes needs"},
        {"out_dir = \"a\\x\"\n", 0, "a backslash in quotes needs"},
        {"out_dir = \"a\"b\"\n", 0, "text after the closing quote"},
        {"out_dir = \"a\" b\n", 0, "text after the closing quote"},
        {"n_layer = 3\nout_dir = a\0b\n", 26, ":2: there is a NUL byte"},
        {"\0", 1, ":1: there is a NUL byte"},
        {long_line, 0, "is not of the form"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const size_t bytes = cases[i].bytes != 0 ? cases[i].bytes : strlen(cases[i].text);
        struct fixture fixture;
        assert_int_equal(PARSE(&fixture, "--config", scratch_write("wrong.conf", cases[i].text, bytes)),
                         OPTIONS_WRONG);
        assert_error_text("wrong.conf");
        assert_error_text(cases[i].error);
        release(&fixture);
    }
    struct fixture fixture;
    assert_int_equal(PARSE(&fixture, "--config", "/proc/self/status"), OPTIONS_WRONG); /* the system says 0 bytes */
    assert_error_text("/proc/self/status:1: ");
    release(&fixture);
}

UNIT_TEST(test_long_values) {
    static char text[100100];
    memset(long_line, 'x', sizeof long_line - 1);
    snprintf(text, sizeof text, "out_dir = %s\n", long_line);
    struct fixture fixture;
    assert_int_equal(PARSE(&fixture, "--config", scratch_put("long.conf", text)), OPTIONS_OK);
    assert_string_equal(fixture.settings.out_dir, long_line);
    release(&fixture);

    static char too_large[(1 << 20) + 1];
    memset(too_large, '\n', sizeof too_large);
    assert_int_equal(PARSE(&fixture, "--config", scratch_write("large.conf", too_large, sizeof too_large)),
                     OPTIONS_WRONG);
    assert_error_text("more than the 1048576");
    release(&fixture);
}

UNIT_TEST(test_written_settings_read_back) {
    static const char odd[] = " \"\\ # = \n\r\tx\x01\xFF ";
    struct fixture fixture, again;
    assert_int_equal(PARSE(&fixture, "--learning-rate=0.1", "--any-number=-1.1754943508222877e-38", "--no-bias",
                           "--anything=-9223372036854775808", "--out-dir", odd, "--residual=mhc"),
                     OPTIONS_OK);
    fixture.settings.learning_rate = 1.0 / 3;
    char *text = options_text(fixture.specs, SPEC_COUNT);
    assert_int_equal(PARSE(&again, "--config", scratch_put("written.conf", text)), OPTIONS_OK);
    assert_int_equal(again.settings.n_layer, 12);
    assert_true(again.settings.anything == INT64_MIN);
    assert_true(again.settings.learning_rate == 1.0 / 3);
    assert_true(again.settings.any_number == -1.1754943508222877e-38);
    assert_false(again.settings.bias);
    assert_string_equal(again.settings.out_dir, odd);
    assert_null(again.settings.init_from);
    assert_int_equal(again.settings.residual, MHC);
    char *again_text = options_text(again.specs, SPEC_COUNT);
    assert_string_equal(text, again_text);
    assert_non_null(strstr(text, "\n\n# Training\nlearning_rate = 0.3333333333333333\n"));
    free(text);
    free(again_text);
    release(&fixture);
    release(&again);
}

UNIT_TEST(test_options_that_are_given_several_times) {
    struct option_texts stops = {0}, again = {0};
    struct option_spec specs[] = {TEXTS("stop", &stops, "may be given several times")};
    struct option_spec others[] = {TEXTS("stop", &again, NULL)};
    char *path = (char *)scratch_put("stops.conf", "stop = a\nstop = \" b\"\n");
    char *nothing[] = {"hc_test", NULL}, *from_file[] = {"hc_test", "--config", path, NULL};
    char *from_both[] = {"hc_test", "--stop", "x", "--config", path, "--stop=", "--stop", "x", NULL};
    int first_free;
    assert_int_equal(parse_table(specs, 1, 1, nothing, &first_free), OPTIONS_OK);
    assert_int_equal(stops.count, 0);
    assert_true(options_is_default(specs));
    assert_int_equal(parse_table(specs, 1, 3, from_file, &first_free), OPTIONS_OK);
    assert_int_equal(stops.count, 2);
    assert_string_equal(stops.texts[1], " b");
    assert_int_equal(parse_table(specs, 1, 8, from_both, &first_free), OPTIONS_OK);
    assert_int_equal(stops.count, 3); /* the command line's alone */
    assert_string_equal(stops.texts[0], "x");
    assert_string_equal(stops.texts[1], "");
    assert_false(options_is_default(specs));
    char *text = options_text(specs, 1);
    assert_string_equal(text, "stop = \"x\"\nstop = \"\"\nstop = \"x\"\n");
    assert_int_equal(options_apply_text(others, 1, "text", text, strlen(text)), 0);
    assert_int_equal(again.count, 3);
    free(text);
    options_free(specs, 1);
    options_free(others, 1);
    assert_int_equal(stops.count, 0);
}

/* What --help or --version prints. */
static char *printed(const char *argument) {
    struct fixture fixture;
    size_t bytes;
    fflush(stdout);
    const int kept = dup(STDOUT_FILENO);
    assert_non_null(freopen(scratch_path("printed"), "w", stdout));
    const enum options_result asked = PARSE(&fixture, argument, "--config", "/nowhere");
    const int result = options_answer(asked, fixture.specs, SPEC_COUNT, &program);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    assert_int_equal(result, 0);
    assert_int_equal(asked, strcmp(argument, "--help") == 0 ? OPTIONS_HELP : OPTIONS_VERSION);
    release(&fixture);
    return scratch_read(scratch_path("printed"), &bytes);
}

/* Whole numbers are shown as they may be given: 1e+12 may not. */
UNIT_TEST(test_ranges) {
    static int64_t number;
    static double real;
    struct option_spec whole[] = {INT("n", &number, "1", -3, 1e12, "")},
                       least[] = {INT("n", &number, "1", 2e6, 1e19, "")},
                       of_reals[] = {FLOAT("x", &real, "0e-400", 0, 1e12, "")};
    char text[80];
    assert_string_equal(option_range(whole, text, sizeof text), "-3 .. 1000000000000");
    assert_string_equal(option_range(least, text, sizeof text), "at least 2000000");
    assert_string_equal(option_range(of_reals, text, sizeof text), "0 .. 1e+12");
    assert_int_equal(options_set_defaults(of_reals, 1), 0);
}

UNIT_TEST(test_help) {
    static const char *const expected[] = {"A program to test options.",
                                           "Usage: hc_test [OPTIONS] FILE...",
                                           "Model:\n",
                                           "  --n-layer N ",
                                           "(1 .. 1000; default: 12)",
                                           "--[no-]bias",
                                           "rc, hc, mhc, mhc_lite",
                                           "--config FILE",
                                           "--version",
                                           "Examples:\n  hc_test --n-layer 3\n"};
    char *text = printed("--help");
    for (size_t i = 0; i < COUNT(expected); i++) {
        if (strstr(text, expected[i]) == NULL) {
            fail_msg("'%s' is not in:\n%s", expected[i], text);
        }
    }
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1) {
        assert_true(strcspn(line, "\n") <= 100);
    }
    free(text);
    text = printed("--version");
    assert_string_equal(text, "hc_test " HC_VERSION "\n");
    free(text);
}

/* Mistakes of those who write tables are found by whoever runs the program, whatever the command line says. */
UNIT_TEST(test_wrong_tables) {
    int64_t number;
    struct option_spec wrong_default = INT("n", &number, "x", 0, 0, NULL);
    struct option_spec hyphen = INT("tune-minutes", &number, "6", 0, 0, NULL);
    struct option_spec twice[] = {INT("beta", &number, "6", 0, 0, NULL), INT("beta", &number, "7", 0, 0, NULL)};
    char *arguments[] = {NULL, NULL};
    int first_free;
    assert_int_equal(parse_table(&wrong_default, 1, 1, arguments, &first_free), OPTIONS_WRONG);
    assert_error_text("the default of n: 'x' is not a whole number");
    assert_int_equal(parse_table(&hyphen, 1, 1, arguments, &first_free), OPTIONS_WRONG);
    assert_error_text("'tune-minutes' where names have underscores");
    assert_int_equal(parse_table(twice, 2, 1, arguments, &first_free), OPTIONS_WRONG);
    assert_error_text("the table of options has 'beta' twice");
}

/* A choice that begins with false and true is typed as an option of yes or no, and has more words. */
UNIT_TEST(test_choices_of_yes_no_and_more) {
    static const struct {
        const char *typed;
        int choice; /* -1: wrong */
    } cases[] = {{"--qk-norm", 1},       {"--no-qk-norm", 0},       {"--qk-norm=plain", 2}, {"--qk-norm=true", 1},
                 {"--qk-norm=False", 0}, {"--no-qk-norm=true", -1}, {"--qk-norm=both", -1}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        int choice = 0, first_free;
        struct option_spec spec = CHOICE("qk_norm", &choice, "false", "false|true|plain", NULL);
        char *arguments[] = {(char *)(uintptr_t)"hc_test", (char *)(uintptr_t)cases[i].typed, NULL};
        const enum options_result result = parse_table(&spec, 1, 2, arguments, &first_free);
        assert_int_equal(result, cases[i].choice < 0 ? OPTIONS_WRONG : OPTIONS_OK);
        assert_true(cases[i].choice < 0 || choice == cases[i].choice);
    }
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
