/* Lines of progress where stderr is no terminal: when they come, and what they say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/system/progress.h"
#include "tests/support/scratch.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
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

static void test_text(void **state) {
    (void)state;
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

static void test_text_on_a_terminal(void **state) {
    (void)state;
    struct progress progress;
    progress_start(&progress, 0);
    progress.terminal = true;
    assert_says(&progress, "\r\033[Kcompiling\r\033[Kcompiling still\r\033[K");
}

static void show(struct progress *progress) {
    progress_show(progress, "iter", 5, 10, "loss 2.0", true);
}

static void test_bar(void **state) {
    (void)state;
    struct progress progress;
    progress_start(&progress, 5);
    progress.terminal = false;
    char *text = said_by(show, &progress);
    assert_string_equal(text, "iter 5/10 [##########..........] loss 2.0\n");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_text_on_a_terminal),
        cmocka_unit_test(test_bar),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
