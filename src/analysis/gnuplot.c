#include "src/analysis/gnuplot.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/spawn.h"
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_WORDS = 2000 /* of gnuplot's complaints */ };

/* Waits for gnuplot; where it fails, the error has the words that it left. */
static int finish(pid_t child, int words) {
    char text[MOST_WORDS];
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            return error_set_errno("cannot wait for gnuplot");
        }
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return 0;
    }
    ssize_t length = pread(words, text, sizeof text - 1, 0);
    while (length > 0 && text[length - 1] == '\n') {
        length--;
    }
    return error_set("gnuplot failed: %.*s", length > 0 ? (int)length : 0, text);
}

static int run(const char *folder, char *const arguments[]) {
    pid_t child;
    const int words = memfd_create("gnuplot", MFD_CLOEXEC);
    if (words < 0) {
        return error_set_errno("cannot keep what gnuplot says");
    }
    errno = spawn_program(&child, "gnuplot", arguments,
                          &(struct spawn_place){.folder = folder, .in = -1, .out = words, .err = words});
    const int result =
        errno == 0
            ? finish(child, words)
            : error_set_errno("cannot start gnuplot, which draws the pictures (Debian has it in gnuplot-nox)");
    close(words);
    return result;
}

/* `begins`: commands before all others; `ending`: of the file's name. */
static int draw_as(const char *folder, const char *name, const char *begins, const char *terminal,
                   const char *ending, struct gnuplot_size size) {
    char settings[256];
    snprintf(settings, sizeof settings,
             "%sset encoding utf8; set terminal %s size %u,%u font 'Helvetica,11' noenhanced; set output '%s%s'",
             begins, terminal, size.width, size.height, name, ending);
    struct path script = path_of("%s.gp", name);
    char program[] = "gnuplot", expression[] = "-e";
    char *const arguments[] = {program, expression, settings, script.text, NULL};
    return run(folder, arguments);
}

int gnuplot_draw(const char *folder, const char *name, const char *script, size_t bytes, struct gnuplot_size wide,
                 struct gnuplot_size narrow) {
    const int result = files_write(path_of("%s/%s.gp", folder, name).text, script, bytes) ||
                       draw_as(folder, name, "", "svg dynamic", ".svg", wide) ||
                       draw_as(folder, name, "", "pngcairo background '#ffffff'", ".png", wide) ||
                       draw_as(folder, name, "narrow = 1; ", "svg dynamic", "-narrow.svg", narrow);
    return result ? error_prefix("%s/%s", folder, name) : 0;
}
