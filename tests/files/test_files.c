/* files: whole or absent, also when the disk is full. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>

static void assert_content(const char *path, const char *expected) {
    size_t bytes;
    char *text = scratch_text(path, &bytes);
    assert_int_equal(bytes, strlen(expected));
    assert_string_equal(text, expected);
}

UNIT_TEST(test_paths) {
    char folder[PATH_MAX];
    memset(folder, 'a', sizeof folder);
    memcpy(folder, "/../", 4); /* what is cut off must not lead to another file */
    folder[sizeof folder - 1] = '\0';
    assert_string_equal(path_of("%s/%s", "out", "config.json").text, "out/config.json");
    assert_false(files_exist(path_of("%s/%s", folder, "config.json").text));
    assert_int_equal(strlen(path_of("%s/%s", folder, "config.json").text), PATH_MAX);
    char *path = memory_format("%s/ckpt-%d", "out", 7);
    assert_string_equal(path, "out/ckpt-7");
    free(path);
    assert_true(files_exist("/"));
    assert_false(files_exist(scratch_path("nothing")));
}

UNIT_TEST(test_make_folder) {
    struct stat status;
    assert_int_equal(files_make_folder(scratch_path("a/b//c/")), 0);
    assert_int_equal(stat(scratch_path("a/b/c"), &status), 0);
    assert_true(S_ISDIR(status.st_mode));
    assert_int_equal(files_make_folder(scratch_path("a/b/c")), 0);
    assert_int_equal(files_make_folder("/"), 0);
    assert_int_equal(files_make_folder("."), 0);
    const char *file = scratch_put("a/file", "x");
    assert_error(files_make_folder(file), "a/file: File exists");
    assert_int_equal(files_make_folder(scratch_path("a/file/below")), -1);
    assert_int_equal(files_make_folder(""), -1);
}

UNIT_TEST(test_read) {
    char *text;
    size_t bytes;
    assert_int_equal(files_read(scratch_write("r", "a\0b", 3), 3, &text, &bytes), 0);
    assert_int_equal(bytes, 3);
    assert_memory_equal(text, "a\0b", 4);
    free(text);
    assert_int_equal(files_read(scratch_put("r", ""), 0, &text, &bytes), 0);
    assert_int_equal(bytes, 0);
    free(text);
    assert_error(files_read(scratch_put("r", "1234"), 3, &text, &bytes), "4 bytes, more than the 3");
    assert_error(files_read(scratch_path("none"), 3, &text, &bytes), "none: No such file");
    assert_error(files_read(scratch_path("."), 3, &text, &bytes), "a folder");
    mkfifo(scratch_path("pipe"), 0600);
    assert_error(files_read(scratch_path("pipe"), 3, &text, &bytes), "not a regular file");
}

UNIT_TEST(test_open) {
    char data[8] = "";
    uint64_t bytes = 0;
    const char *path = scratch_put("places", "0123456789");
    const int descriptor = files_open(path, "the places", &bytes);
    assert_true(descriptor >= 0);
    assert_int_equal(bytes, 10);
    assert_int_equal(files_read_all(descriptor, data, 3, 4), 3);
    assert_string_equal(data, "456");
    assert_int_equal(files_read_all(descriptor, data, 8, 8), 2);
    assert_int_equal(files_read_all(descriptor, data, 8, 20), 0);
    assert_int_equal(files_read_all(descriptor, data, 2, -1), 2); /* its place is where it was */
    assert_memory_equal(data, "01", 2);
    close(descriptor);
    assert_int_equal(files_read_all(descriptor, data, 1, 0), -1);
    assert_error(files_open(scratch_path("none"), "the places", &bytes), "cannot open the places: No such file");
    assert_error(files_open(scratch_path("."), "the places", &bytes), "cannot read the places: it is a folder");
    mkfifo(scratch_path("waiting"), 0600);
    assert_error(files_open(scratch_path("waiting"), "the places", &bytes),
                 "cannot read the places: it is not a regular file");
}

UNIT_TEST(test_read_stream) {
    char *text;
    size_t bytes;
    const char *path = scratch_path("stream");
    assert_int_equal(mkfifo(path, 0600), 0);
    for (size_t limit = 3; limit <= 4; limit++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            FILE *pipe = fopen(path, "w");
            _exit(pipe != NULL && fputs("text", pipe) >= 0 && fclose(pipe) == 0 ? 0 : 1);
        }
        assert_int_equal(files_read_stream(path, limit, &text, &bytes), limit < 4 ? -1 : 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    assert_error_text("more than the 3 bytes");
    assert_int_equal(bytes, 4);
    assert_string_equal(text, "text");
    free(text);
    assert_int_equal(files_read_stream(scratch_put("r", "1234"), 3, &text, &bytes), -1);
    assert_null(text);
    assert_error_text("more than the 3 bytes");
    assert_error(files_read_stream(scratch_path("."), 3, &text, &bytes), "Is a directory");
    assert_int_equal(files_read_stream("/proc/self/status", 1 << 20, &text, &bytes), 0); /* its size is 0 */
    assert_true(bytes > 5 && strncmp(text, "Name:", 5) == 0);
    free(text);
}

UNIT_TEST(test_write) {
    struct stat status;
    assert_int_equal(files_make_folder(scratch_path("w")), 0);
    const mode_t old_mask = umask(027);
    assert_int_equal(files_write(scratch_path("w/f"), "one", 3), 0);
    umask(old_mask);
    assert_content(scratch_path("w/f"), "one");
    assert_int_equal(stat(scratch_path("w/f"), &status), 0);
    assert_int_equal(status.st_mode & 0777, 0640);
    assert_int_equal(files_write(scratch_path("w/f"), "two!", 4), 0);
    assert_content(scratch_path("w/f"), "two!");
    assert_int_equal(files_write(scratch_path("w/f"), NULL, 0), 0);
    assert_content(scratch_path("w/f"), "");
    assert_int_equal(scratch_entries(scratch_path("w")), 1);

    /* A name without a folder is in the working folder. */
    char before[1024];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(scratch_path("w")), 0);
    assert_int_equal(files_write("plain", "x", 1), 0);
    assert_int_equal(chdir(before), 0);
    assert_content(scratch_path("w/plain"), "x");
}

static void assert_link(const char *name) {
    struct stat status;
    assert_int_equal(lstat(scratch_path(name), &status), 0);
    assert_true(S_ISLNK(status.st_mode));
}

UNIT_TEST(test_write_through_links) {
    static const char *const ways[] = {"linked/folder/f", "linked/file", "linked/twice"};
    scratch_put("linked/real/f", "old");
    assert_int_equal(symlink("real", scratch_path("linked/folder")), 0);
    assert_int_equal(symlink("real/f", scratch_path("linked/file")), 0);
    assert_int_equal(symlink("file", scratch_path("linked/twice")), 0);
    for (size_t i = 0; i < COUNT(ways); i++) {
        assert_int_equal(files_write(scratch_path(ways[i]), ways[i], strlen(ways[i])), 0);
        assert_content(scratch_path("linked/real/f"), ways[i]);
    }
    assert_link("linked/folder");
    assert_link("linked/file");
    assert_link("linked/twice");
    assert_int_equal(scratch_entries(scratch_path("linked/real")), 1);
    assert_int_equal(scratch_entries(scratch_path("linked")), 4);
}

UNIT_TEST(test_failed_writes_leave_the_old_file) {
    static char large[20000];
    assert_int_equal(files_make_folder(scratch_path("full")), 0);
    assert_int_equal(files_write(scratch_path("full/f"), "old", 3), 0);
    scratch_limit_file_size(10000);
    assert_int_equal(files_write(scratch_path("full/f"), large, sizeof large), -1);
    scratch_limit_file_size(UINT64_MAX);
    assert_error_text("full/f: File too large");
    assert_content(scratch_path("full/f"), "old");
    assert_int_equal(scratch_entries(scratch_path("full")), 1);

    assert_error(files_write(scratch_path("none/f"), "x", 1), "none/f: cannot make a temporary file in");
    assert_error(files_write(scratch_path("full"), "x", 1), "full: it is a folder");
    assert_int_equal(files_write("", "x", 1), -1);
    assert_int_equal(files_write("/", "x", 1), -1);
    assert_int_equal(files_write(scratch_path("full/.."), "x", 1), -1);
    assert_int_equal(scratch_entries(scratch_path("full")), 1);
}

UNIT_TEST(test_replace) {
    char *temporary;
    const char *path = scratch_put("replace/f", "old");
    for (int whole = 0; whole <= 1; whole++) {
        assert_int_equal(files_stage_begin(path, false, &temporary), 0);
        FILE *file = fopen(temporary, "w");
        assert_non_null(file);
        fputs("new", file);
        assert_int_equal(fclose(file), 0);
        assert_content(path, "old");
        error_set("disk full");
        assert_int_equal(files_stage_end(path, temporary, whole - 1), whole - 1);
        assert_string_equal(error_text(), "disk full");
        assert_content(path, whole ? "new" : "old");
        assert_int_equal(scratch_entries(scratch_path("replace")), 1);
    }
    mkfifo(scratch_path("replace/pipe"), 0600);
    assert_int_equal(files_stage_begin(scratch_path("replace/pipe"), false, &temporary), -1);
    assert_null(temporary);
    assert_error_text("pipe: it is not a regular file");
    assert_int_equal(files_write(scratch_path("replace/pipe"), "x", 1), -1);
    assert_int_equal(scratch_entries(scratch_path("replace")), 2);
}

static char *fill_stage(const char *path, const char *text) {
    char *staging, *file;
    assert_int_equal(files_stage_begin(path, true, &staging), 0);
    file = memory_format("%s/sub", staging);
    assert_int_equal(mkdir(file, 0777), 0);
    free(file);
    file = memory_format("%s/sub/file", staging);
    assert_int_equal(files_write(file, text, strlen(text)), 0);
    free(file);
    return staging;
}

UNIT_TEST(test_stage) {
    const char *path = scratch_path("stage/parent/ckpt-1");
    char *staging = fill_stage(path, "first");
    assert_false(files_exist(path));
    assert_int_equal(files_stage_end(path, staging, 0), 0);
    assert_content(scratch_path("stage/parent/ckpt-1/sub/file"), "first");

    staging = fill_stage(path, "second");
    assert_content(scratch_path("stage/parent/ckpt-1/sub/file"), "first");
    assert_int_equal(files_stage_end(path, staging, 0), 0);
    assert_content(scratch_path("stage/parent/ckpt-1/sub/file"), "second");

    files_stage_end(path, fill_stage(path, "third"), -1);
    assert_content(scratch_path("stage/parent/ckpt-1/sub/file"), "second");
    assert_int_equal(scratch_entries(scratch_path("stage/parent")), 1);
}

UNIT_TEST(test_stage_through_links) {
    scratch_put("aside/real/old", "old");
    assert_int_equal(symlink("real", scratch_path("aside/link")), 0);
    const char *path = scratch_path("aside/link");
    assert_int_equal(files_stage_end(path, fill_stage(path, "first"), 0), 0);
    assert_link("aside/link");
    assert_content(scratch_path("aside/real/sub/file"), "first");
    assert_int_equal(scratch_entries(scratch_path("aside/real")), 1);
    /* a folder in one that is reached through a link */
    path = scratch_path("aside/link/ckpt");
    assert_int_equal(files_stage_end(path, fill_stage(path, "second"), 0), 0);
    assert_content(scratch_path("aside/real/ckpt/sub/file"), "second");
    files_stage_end(scratch_path("aside/link"), fill_stage(scratch_path("aside/link"), "third"), -1);
    assert_content(scratch_path("aside/real/sub/file"), "first");
    assert_int_equal(scratch_entries(scratch_path("aside/real")), 2);
    assert_int_equal(scratch_entries(scratch_path("aside")), 2);
}

UNIT_TEST(test_stage_over_a_file) {
    const char *path = scratch_put("over/ckpt", "file");
    assert_error(files_stage_end(path, fill_stage(path, "x"), 0), "over/ckpt");
    assert_content(path, "file");
    assert_int_equal(scratch_entries(scratch_path("over")), 1);
    char *staging;
    assert_int_equal(files_stage_begin("/", true, &staging), -1);
    assert_null(staging);
    assert_int_equal(files_stage_begin(scratch_path("over/ckpt/below"), true, &staging), -1);
    assert_null(staging);
}

UNIT_TEST(test_move_into) {
    static const char *const names[] = {"a", "b", NULL}, *const old[] = {"older", "nowhere", NULL};
    const char *folder = scratch_path("into"), *from = scratch_path("into/.set");
    assert_int_equal(files_make_folder(from), 0);
    scratch_put("into/a", "old");
    scratch_put("into/b", "old");
    scratch_put("into/other", "kept");
    scratch_put("into/.set/a", "new");
    scratch_put("into/.set/b", "new");
    assert_int_equal(files_move_into(folder, from, names, NULL), 0);
    assert_content(scratch_path("into/a"), "new");
    assert_content(scratch_path("into/b"), "new");
    assert_content(scratch_path("into/other"), "kept");
    assert_int_equal(scratch_entries(from), 0);
    /* after all, or some of them, were moved */
    assert_int_equal(files_move_into(folder, from, names, NULL), 0);
    assert_content(scratch_path("into/b"), "new");
    scratch_put("into/.set/b", "newer");
    scratch_put("into/older", "old");
    assert_int_equal(files_move_into(folder, from, names, old), 0);
    assert_content(scratch_path("into/b"), "newer");
    assert_false(files_exist(scratch_path("into/older")));
    /* a name that is nowhere, or is a folder: nothing is touched */
    static const char *const more[] = {"a", "c", "b", NULL};
    scratch_put("into/.set/a", "last");
    assert_error(files_move_into(folder, from, more, NULL), "into/c into place: No such file");
    assert_int_equal(files_make_folder(scratch_path("into/c")), 0);
    assert_error(files_move_into(folder, from, more, NULL), "into/c: it is a folder");
    static const char *const folders[] = {"other", "c", NULL};
    scratch_put("into/.set/b", "last");
    assert_error(files_move_into(folder, from, names, folders), "into/c: it is not a regular file");
    assert_content(scratch_path("into/a"), "new");
    assert_content(scratch_path("into/b"), "newer");
    assert_content(scratch_path("into/other"), "kept");
    assert_content(scratch_path("into/.set/a"), "last");
}

/* A process that begins to write a folder and dies. */
static void die_staging(const char *path) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char *staging;
        _exit(files_stage_begin(path, true, &staging) == 0 ? 0 : 1);
    }
    int status = 1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void make_old(const char *path) {
    const struct utimbuf old = {.actime = 1000, .modtime = 1000};
    assert_int_equal(utime(path, &old), 0);
}

/* Somebody else's file, however old, whose name is that of a temporary file but for its form or identity. */
static void leave_foreign(const char *name) {
    make_old(scratch_put(scratch_format("clean/%s", name), ""));
}

/* The name that is left of a temporary folder of "ckpt-1", but of another machine, boot or container. */
static void leave_with_other_identity(const char *parent) {
    static const char begins[] = ".tmp-ckpt-1-";
    char name[64] = "";
    DIR *folder = opendir(parent);
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (strncmp(entry->d_name, begins, strlen(begins)) == 0) {
            snprintf(name, sizeof name, "%.60s", entry->d_name);
        }
    }
    closedir(folder);
    assert_true(strlen(name) > strlen(begins));
    char *digit = name + strlen(begins);
    *digit = *digit == '0' ? '1' : '0';
    leave_foreign(name);
}

UNIT_TEST(test_clean) {
    static const char *const foreign[] = {".tmp-recent", ".tmp-", ".tmp-a-b-c", ".tmp-old-00000000-1-1", "kept"};
    enum { FOREIGN = COUNT(foreign) + 2 }; /* and a folder, and a name of another identity */
    const char *parent = scratch_path("clean");
    char *mine;
    assert_int_equal(files_stage_begin(scratch_path("clean/ckpt-2"), true, &mine), 0);
    die_staging(scratch_path("clean/ckpt-1"));
    leave_with_other_identity(parent);
    for (size_t i = 0; i < COUNT(foreign); i++) {
        leave_foreign(foreign[i]);
    }
    assert_int_equal(files_make_folder(scratch_path("clean/.tmp-mystuff")), 0);
    make_old(scratch_path("clean/.tmp-mystuff"));
    make_old(mine);
    assert_int_equal(scratch_entries(parent), FOREIGN + 2);
    files_stage_clean(parent);
    assert_true(files_exist(mine));
    assert_int_equal(scratch_entries(parent), FOREIGN + 1);
    files_stage_end(scratch_path("clean/ckpt-2"), mine, -1);
    /* beginning cleans, too */
    die_staging(scratch_path("clean/ckpt-1"));
    assert_int_equal(scratch_entries(parent), FOREIGN + 1);
    assert_int_equal(files_stage_begin(scratch_path("clean/ckpt-1"), true, &mine), 0);
    assert_int_equal(scratch_entries(parent), FOREIGN + 1);
    files_stage_end(scratch_path("clean/ckpt-1"), mine, -1);
    assert_int_equal(scratch_entries(parent), FOREIGN);
    files_stage_clean(scratch_path("no-such-folder"));
}

UNIT_TEST(test_remove) {
    scratch_put("old/deep/file", "x");
    const char *kept = scratch_put("kept", "kept"), *link = scratch_path("link-to-kept");
    assert_int_equal(symlink(kept, link), 0);
    assert_int_equal(files_remove(link), 0);
    assert_content(kept, "kept");
    assert_int_equal(files_remove(scratch_path("old/deep/file")), 0);
    assert_int_equal(files_remove(scratch_path("old")), 0);
    assert_false(files_exist(scratch_path("old")));
    assert_error(files_remove(scratch_path("old")), "old: No such file");
}

UNIT_TEST(test_remove_folder) {
    assert_int_equal(files_make_folder(scratch_path("gone/deep/er")), 0);
    scratch_put("gone/deep/file", "x");
    scratch_put("outside", "kept");
    assert_int_equal(symlink(scratch_path("outside"), scratch_path("gone/link")), 0);
    assert_int_equal(symlink(scratch_path("."), scratch_path("gone/folder-link")), 0);
    assert_int_equal(files_remove_folder(scratch_path("gone/folder-link")), -1);
    assert_int_equal(files_remove_folder(scratch_path("gone")), 0);
    assert_false(files_exist(scratch_path("gone")));
    assert_content(scratch_path("outside"), "kept");
    assert_int_equal(files_remove_folder(scratch_path("gone")), -1);
    assert_error(files_remove_folder(scratch_path("outside")), "not a folder");
}

UNIT_TEST(test_discard_members) {
    static const char *const names[] = {"a", "b", "c", NULL};
    const char *parent = scratch_path("discards");
    const char *file = scratch_put("discards/file", "kept");
    scratch_put("discards/one/a", "x");
    scratch_put("discards/one/c", "x");
    assert_int_equal(files_has_others(scratch_path("discards/one"), names), 0);
    assert_int_equal(files_discard_members(scratch_path("discards/one"), names), 0);
    assert_int_equal(scratch_entries(parent), 1);
    assert_error(files_discard_members(scratch_path("discards/one"), names), "one: No such file");
    assert_error(files_discard_members(file, names), "file: it is not a folder");
    assert_int_equal(files_has_others(scratch_path("discards/one"), names), -1);

    /* A folder, a link and a file of another name stay, and so the folder that they are in. */
    assert_int_equal(files_make_folder(scratch_path("discards/archive/b")), 0);
    scratch_put("discards/archive/a", "x");
    scratch_put("discards/archive/notes", "mine");
    assert_int_equal(symlink("../file", scratch_path("discards/archive/c")), 0);
    assert_int_equal(symlink("archive", scratch_path("discards/link")), 0);
    assert_int_equal(files_discard_members(scratch_path("discards/link"), names), -1);
    assert_int_equal(scratch_entries(scratch_path("discards/archive")), 4);
    assert_int_equal(files_has_others(scratch_path("discards/archive"), names), 1);
    assert_int_equal(files_discard_members(scratch_path("discards/archive"), names), 0);
    assert_int_equal(scratch_entries(scratch_path("discards/archive")), 3);
    assert_content(scratch_path("discards/archive/notes"), "mine");
    assert_content(file, "kept");
    assert_int_equal(scratch_entries(parent), 3);
}

static int count_name(void *context, const char *name) {
    unsigned *count = context;
    (*count)++;
    return strcmp(name, "stop") == 0 ? 7 : 0;
}

UNIT_TEST(test_each) {
    unsigned count = 0;
    assert_int_equal(files_make_folder(scratch_path("each/.hidden")), 0);
    scratch_put("each/a", "");
    assert_int_equal(files_each(scratch_path("each"), count_name, &count), 0);
    assert_int_equal(count, 2);
    scratch_put("each/stop", "");
    assert_int_equal(files_each(scratch_path("each"), count_name, &count), 7);
    assert_error(files_each(scratch_path("each/a"), count_name, &count), "each/a: Not a directory");
}

/* What cannot be looked at is there: nobody may take it for free. */
UNIT_TEST(test_exist) {
    const char *circle = scratch_path("circle");
    assert_int_equal(symlink("circle", circle), 0);
    assert_true(files_exist(circle));
    assert_false(files_exist(scratch_path("no/such")));
    assert_false(files_exist(path_of("%s/below", scratch_put("plain", "")).text));
    assert_true(files_exist(scratch_path("plain")));
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
