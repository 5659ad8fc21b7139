/* Lines of progress: when they come, what they say, and how they are cut where stderr is a terminal. */
#include "runtime/system/progress.h"
#include "tests/support/hostile.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* What a function writes to stderr: heap memory. */
static char *said_by(void (*speak)(struct progress *progress), struct progress *progress) {
    const char *path = scratch_path("said");
    const int kept = dup(STDERR_FILENO), file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(kept >= 0 && file >= 0 && dup2(file, STDERR_FILENO) >= 0);
    speak(progress);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    close(file);
    size_t bytes;
    char *text = scratch_read(path, &bytes);
    assert_non_null(text);
    return text;
}

static void tell_twice(struct progress *progress) {
    progress_text(progress, "compiling");
    progress_text(progress, "compiling still");
    progress_end(progress);
}

static void assert_says(struct progress *progress, const char *expected) {
    char *text = said_by(tell_twice, progress);
    assert_string_equal(text, expected);
    free(text);
}

UNIT_TEST(test_text) {
    struct progress progress;
    progress_start(&progress, 0);
    progress.terminal = false;
    assert_says(&progress, ""); /* what is over soon is not spoken of */
    progress.start -= 3.0;
    assert_says(&progress, "compiling\n");
    progress.shown -= 11.0;
    assert_says(&progress, "compiling\n");
    progress.silent = true;
    progress.shown -= 11.0;
    assert_says(&progress, "");
}

UNIT_TEST(test_text_on_a_terminal) {
    struct progress progress;
    progress_start(&progress, 0);
    progress.terminal = true;
    assert_says(&progress, "\r\033[Kcompiling\r\033[Kcompiling still\r\033[K");
}

/* However little time has passed. */
static void show_now(struct progress *progress, const char *label, int64_t done, int64_t total,
                     const char *details) {
    progress->shown = -HUGE_VAL;
    progress_show(progress, label, done, total, details);
}

static void show(struct progress *progress) {
    show_now(progress, "iter", 5, 10, "loss 2.0");
}

UNIT_TEST(test_bar) {
    struct progress progress;
    progress_start(&progress, 5);
    progress.terminal = false;
    char *text = said_by(show, &progress);
    assert_string_equal(text, "iter 5/10 [##########..........] loss 2.0\n");
    free(text);
}

static void show_first(struct progress *progress) {
    show_now(progress, "iter", 1, 11, "");
}

static void show_second(struct progress *progress) {
    show_now(progress, "iter", 2, 11, "");
}

static void show_last(struct progress *progress) {
    show_now(progress, "iter", 1, 1, "");
}

/* The first iteration compiled kernels for hours. */
UNIT_TEST(test_time_left_is_without_compiling) {
    static void (*const shown[])(struct progress *progress) = {show_first, show_second, show_last};
    static const char *const expected[] = {"iter 1/11 [#...................] \n",
                                           "iter 2/11 [###.................]   left 1:30\n",
                                           "iter 1/1 [####################]   left 0:00\n"};
    struct progress progress;
    progress_start(&progress, 0);
    progress.terminal = false;
    progress.start -= 20000.0;
    for (size_t i = 0; i < COUNT(shown); i++) {
        char *text = said_by(shown[i], &progress);
        assert_string_equal(text, expected[i]);
        free(text);
        progress.counted_at -= 10.0;
    }
}

/* What is left of seconds is known at once. */
UNIT_TEST(test_time_left_of_seconds) {
    struct progress progress;
    progress_start(&progress, 0);
    progress.terminal = false;
    progress.of_seconds = true;
    char *text = said_by(show_first, &progress);
    assert_string_equal(text, "iter 1/11 [#...................]   left 0:10\n");
    free(text);
}

static void show_hostile(struct progress *progress) {
    show_now(progress, "run" HOSTILE_TEXT, 5, 10, "of" HOSTILE_TEXT);
    progress->shown -= 11.0;
    progress_text(progress, "compiling" HOSTILE_TEXT);
}

UNIT_TEST(test_names) {
    struct progress progress;
    progress_start(&progress, 5);
    progress.terminal = false;
    progress.start -= 3.0;
    char *text = said_by(show_hostile, &progress);
    assert_shown(text);
    free(text);
}

/* What a function writes to a terminal of this width; 0: of one that has not been told its size. */
static const char *printed_to_terminal(void (*speak)(struct progress *progress), unsigned short columns) {
    static char text[4096];
    struct progress progress;
    const struct winsize size = {.ws_row = 24, .ws_col = columns};
    const int kept = dup(STDERR_FILENO), terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(kept >= 0 && terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    assert_int_equal(ioctl(terminal, TIOCSWINSZ, &size), 0);
    const int line = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(line >= 0 && dup2(line, STDERR_FILENO) >= 0);
    progress_start(&progress, 0);
    speak(&progress);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    const ssize_t bytes = read(terminal, text, sizeof text - 1); /* all of it: what was written waits there */
    assert_true(bytes >= 0 && progress.open);
    text[bytes > 0 ? bytes : 0] = '\0';
    close(line);
    close(terminal);
    close(kept);
    return text;
}

static void show_training(struct progress *progress) {
    show_now(progress, "iter", 0, 2000, "loss 2.1234  grad 0.456  lr 1.00e-03  12345 tokens/s");
}

static void show_name(struct progress *progress) {
    show_now(progress, "прогон-実験", 1, 2, "");
}

static void print_name(struct progress *progress) {
    progress_text(progress, "прогон-実験");
}

#define ERASED "\r\033[K"

/* The last column stays free. The bar gives way first. */
UNIT_TEST(test_width_of_a_terminal) {
    assert_string_equal(printed_to_terminal(show_training, 120),
                        ERASED "iter 0/2000 [....................] "
                               "loss 2.1234  grad 0.456  lr 1.00e-03  12345 tokens/s");
    assert_string_equal(printed_to_terminal(show_training, 80),
                        ERASED "iter 0/2000 [............] loss 2.1234  grad 0.456  lr 1.00e-03  12345 tokens/s");
    assert_string_equal(printed_to_terminal(show_training, 66),
                        ERASED "iter 0/2000 loss 2.1234  grad 0.456  lr 1.00e-03  12345 tokens/s");
    assert_string_equal(printed_to_terminal(show_training, 24), ERASED "iter 0/2000 loss 2.1234");
    assert_string_equal(printed_to_terminal(show_training, 7), ERASED "iter 0");
    assert_string_equal(printed_to_terminal(show_training, 1), ERASED);
}

/* A terminal without a size has what COLUMNS says, or 80. */
UNIT_TEST(test_width_of_the_environment) {
    assert_int_equal(setenv("COLUMNS", "24", 1), 0);
    assert_string_equal(printed_to_terminal(show_training, 0), ERASED "iter 0/2000 loss 2.1234");
    assert_string_equal(printed_to_terminal(show_training, 7), ERASED "iter 0");
    assert_int_equal(setenv("COLUMNS", "wide", 1), 0);
    assert_int_equal(strlen(printed_to_terminal(show_training, 0)), strlen(ERASED) + 79);
    assert_int_equal(unsetenv("COLUMNS"), 0);
    assert_int_equal(strlen(printed_to_terminal(show_training, 0)), strlen(ERASED) + 79);
}

/* Characters stay whole; those of two columns count as two. */
UNIT_TEST(test_width_of_characters) {
    static const char *const cut[] = {"",       "п",       "пр",      "про",       "прог",      "прого",
                                      "прогон", "прогон-", "прогон-", "прогон-実", "прогон-実", "прогон-実験"};
    for (unsigned short width = 0; width < 12; width++) {
        const char *expected = scratch_format(ERASED "%s", cut[width]);
        assert_string_equal(printed_to_terminal(print_name, (unsigned short)(width + 1)), expected);
        assert_string_equal(printed_to_terminal(show_name, (unsigned short)(width + 1)), expected);
    }
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
