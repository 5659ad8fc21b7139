/* Errors as values, and checksums. */
#include "runtime/files/checksum.h"
#include "runtime/system/error.h"
#include "tests/support/test.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UNIT_TEST(test_set) {
    error_clear();
    assert_string_equal(error_text(), "");
    assert_int_equal(error_set("cannot open %s: line %d", "a.json", 7), -1);
    assert_string_equal(error_text(), "cannot open a.json: line 7");
    error_clear();
    assert_string_equal(error_text(), "");
}

UNIT_TEST(test_prefix) {
    error_set("no such tensor");
    assert_int_equal(error_prefix("cannot load %s", "ckpt-1"), -1);
    error_prefix("hc_eval");
    assert_string_equal(error_text(), "hc_eval: cannot load ckpt-1: no such tensor");
}

/* The message may be an argument of the next. */
UNIT_TEST(test_own_text) {
    error_set("inner");
    error_set("outer (%s, %s)", error_text(), error_text());
    assert_string_equal(error_text(), "outer (inner, inner)");
    error_prefix("again %s", error_text());
    assert_string_equal(error_text(), "again outer (inner, inner): outer (inner, inner)");
}

UNIT_TEST(test_errno) {
    errno = ENOENT;
    assert_int_equal(error_set_errno("cannot open %s", "x"), -1);
    assert_string_equal(error_text(), "cannot open x: No such file or directory");
}

UNIT_TEST(test_replace) {
    error_set("/a/b: no /a/b/c in /a/b");
    assert_int_equal(error_replace("/a/b", "out"), -1);
    assert_string_equal(error_text(), "out: no out/c in out");
    error_replace("none", "some");
    error_replace("", "some");
    assert_string_equal(error_text(), "out: no out/c in out");
    error_replace("out", "");
    assert_string_equal(error_text(), ": no /c in ");
}

/* Text that is too long is cut, never written outside. */
UNIT_TEST(test_long) {
    size_t size = 100000;
    char *text = malloc(size);
    assert_non_null(text);
    memset(text, 'x', size - 1);
    text[size - 1] = '\0';
    error_set("%s", text);
    assert_true(strlen(error_text()) > 1000 && strlen(error_text()) < size);
    error_prefix("first");
    assert_int_equal(strncmp(error_text(), "first: xxx", 10), 0);
    error_prefix("%s", text);
    errno = EIO;
    error_set_errno("%s", text);
    assert_true(strlen(error_text()) < size);
    free(text);
}

static void *set_in_thread(void *argument) {
    int *wrong = argument;
    *wrong = strcmp(error_text(), "") != 0;
    error_set("other");
    return NULL;
}

UNIT_TEST(test_threads) {
    pthread_t thread;
    int wrong = 1;
    error_set("mine");
    assert_int_equal(pthread_create(&thread, NULL, set_in_thread, &wrong), 0);
    pthread_join(thread, NULL);
    assert_int_equal(wrong, 0);
    assert_string_equal(error_text(), "mine");
}

/* Clean-up after a failure sets messages of its own. */
UNIT_TEST(test_keep) {
    error_set("disk %d is full", 3);
    char *kept = error_keep();
    error_set("cannot remove the rest either");
    assert_int_equal(error_restore(kept), -1);
    assert_string_equal(error_text(), "disk 3 is full");
    error_clear();
    kept = error_keep();
    error_set("new");
    error_restore(kept);
    assert_string_equal(error_text(), "");
}

static const char sha256_of_abc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

UNIT_TEST(test_checksum) {
    char digest[CHECKSUM_SIZE], path[] = "/tmp/hc-test-checksum-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    FILE *stream = fdopen(file, "w");
    assert_non_null(stream);
    fputs("abc", stream);
    assert_int_equal(fclose(stream), 0);
    checksum_memory("abc", 3, digest);
    assert_string_equal(digest, sha256_of_abc);
    assert_int_equal(checksum_file(path, digest), 0);
    assert_string_equal(digest, sha256_of_abc);
    EVP_MD_CTX *checksum = checksum_create();
    checksum_update(checksum, "a", 1);
    checksum_update(checksum, NULL, 0);
    checksum_update(checksum, "bc", 2);
    checksum_finish(checksum, digest);
    assert_string_equal(digest, sha256_of_abc);
    remove(path);
    assert_int_equal(checksum_file(path, digest), -1);
    assert_non_null(strstr(error_text(), path));
    assert_int_equal(checksum_file("/tmp", digest), -1);
}

UNIT_TEST_MAIN(NULL, NULL)
