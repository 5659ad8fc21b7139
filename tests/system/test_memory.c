/* Memory that the system gives, and what a program says and returns where it does not. */
#include "runtime/system/memory.h"
#include "tests/support/test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

UNIT_TEST(gives_what_is_asked_for) {
    char *text = memory_format("%d streams", 4), *copy = memory_string(text), *part = memory_string_part(text, 3);
    int *zeros = memory_zeroed(1000, sizeof *zeros);
    assert_string_equal(copy, "4 streams");
    assert_string_equal(part, "4 s");
    for (size_t i = 0; i < 1000; i++) {
        assert_int_equal(zeros[i], 0);
    }
    zeros[999] = 7;
    zeros = memory_resize(zeros, 100000, sizeof *zeros);
    assert_int_equal(zeros[999], 7);
    zeros = memory_resize(zeros, 0, sizeof *zeros);
    void *nothing = memory_allocate(0, 8);
    assert_non_null(nothing);
    free(nothing);
    free(zeros);
    free(text);
    free(copy);
    free(part);
}

static void end_job(void) {
    const ssize_t written = write(STDERR_FILENO, "the job ends", 12);
    (void)written;
}

/* Asks for memory in a child. The child's exit status; `message` is what it wrote to stderr. */
static int refused(size_t count, size_t size, char message[256]) {
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        memory_before_exit(end_job);
        memset(memory_zeroed(count, size), 1, 1);
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t more; (more = read(ends[0], message + used, 255 - used)) > 0;) {
        used += (size_t)more;
    }
    message[used] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

UNIT_TEST(ends_the_program_without_memory) {
    char message[256];
    assert_int_equal(refused((size_t)1 << 60, 1, message), 1);
    assert_non_null(strstr(message, "test_memory: out of memory: the system refused 1152921504606846976 bytes"));
    assert_non_null(strstr(message, "\nthe job ends"));
    assert_int_equal(refused((size_t)1 << 40, (size_t)1 << 40, message), 1); /* the product overflows */
    assert_non_null(strstr(message, "out of memory"));
}

UNIT_TEST_MAIN(NULL, NULL)
