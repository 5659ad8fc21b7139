#include "src/analysis/gnuplot.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MOST_WORDS = 2000 /* of gnuplot's complaints */ };

/* Reads what a child says until it ends. */
static void read_words(int descriptor, char words[MOST_WORDS]) {
    size_t length = 0;
    char rest[512];
    ssize_t got;
    while ((got = files_read_all(descriptor, rest, sizeof rest)) > 0) {
        const size_t room = MOST_WORDS - 1 - length, some = (size_t)got < room ? (size_t)got : room;
        memcpy(words + length, rest, some);
        length += some;
    }
    while (length > 0 && words[length - 1] == '\n') {
        length--;
    }
    words[length] = '\0';
}

/* Starts gnuplot in the folder, its words into a pipe. The error number of posix_spawnp. */
static int start(const char *folder, char *const arguments[], int ends[2], pid_t *child) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, folder);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    const int failure = posix_spawnp(child, "gnuplot", &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    return failure;
}

static int run(const char *folder, char *const arguments[]) {
    int ends[2], status = 0;
    pid_t child;
    char words[MOST_WORDS];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return error_set_errno("cannot make a pipe");
    }
    errno = start(folder, arguments, ends, &child);
    close(ends[1]);
    if (errno != 0) {
        error_set_errno("cannot start gnuplot, which draws the pictures (Debian has it in gnuplot-nox)");
        close(ends[0]);
        return -1;
    }
    read_words(ends[0], words);
    close(ends[0]);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : error_set("gnuplot failed: %s", words);
}

static int draw_as(const char *folder, const char *name, const char *terminal, const char *ending, unsigned width,
                   unsigned height) {
    char *settings = files_path(
        "set encoding utf8; set terminal %s size %u,%u font 'Helvetica,11' noenhanced; set output '%s.%s'",
        terminal, width, height, name, ending);
    char *script = files_path("%s.gp", name);
    char program[] = "gnuplot", expression[] = "-e";
    char *const arguments[] = {program, expression, settings, script, NULL};
    const int result = settings && script ? run(folder, arguments) : -1;
    free(settings);
    free(script);
    return result;
}

int gnuplot_draw(const char *folder, const char *name, const char *script, size_t bytes, unsigned width,
                 unsigned height) {
    char *path = files_path("%s/%s.gp", folder, name);
    const int result = !path || files_write(path, script, bytes) ||
                       draw_as(folder, name, "svg dynamic", "svg", width, height) ||
                       draw_as(folder, name, "pngcairo background '#ffffff'", "png", width, height);
    free(path);
    return result ? error_prefix("%s/%s", folder, name) : 0;
}
