#include "tests/emulator/emulated_compiler.h"
#include "runtime/files/files.h"
#include "runtime/system/memory.h"
#include "runtime/system/spawn.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LARGEST_FILE ((size_t)1 << 30)
#define BETWEEN      "\n----\n"

/* Of clang, before what the program asks for: everything inlined, since the interpreter knows no functions but its
 * own; lines of the text, but in the form of DWARF 2, since clang 15 fails on calls described in later ones; and
 * barriers with their flags, which libclc drops. */
#define OPTIONS                                                                                                    \
    "-w -x cl -O3 -gline-tables-only -gdwarf-2 -fno-crash-diagnostics -mllvm -inline-threshold=1000000 -S "        \
    "-Dbarrier=__nvvm_bar_sync "                                                                                   \
    "-target nvptx64-nvidia-nvcl -Xclang -target-cpu -Xclang sm_80 -Xclang -target-feature -Xclang +ptx75 "

/* A whole file as a string; NULL with an error text. */
static char *read_file(const char *path) {
    char *text;
    size_t bytes;
    return files_read(path, LARGEST_FILE, &text, &bytes) ? NULL : text;
}

/* The text with every `from` replaced by `to`; frees the old one. *count: how many there were. */
static char *replace(char *text, const char *from, const char *to, size_t *count) {
    char *result;
    size_t bytes;
    FILE *all = memory_open_stream(&result, &bytes);
    const char *at = text;
    *count = 0;
    for (const char *found; *from && (found = strstr(at, from)) != NULL; at = found + strlen(from)) {
        fwrite(at, 1, (size_t)(found - at), all);
        fputs(to, all);
        ++*count;
    }
    fputs(at, all);
    memory_close_stream(all);
    free(text);
    return result;
}

/* Makes the change that the environment asks for. */
static char *change_text(char *text) {
    const char *path = getenv("EMULATED_GPU_CHANGE");
    char *change = path ? read_file(path) : NULL;
    char *middle = change ? strstr(change, BETWEEN) : NULL;
    if (middle) {
        size_t count;
        char *to = middle + strlen(BETWEEN), *end = strstr(to, BETWEEN);
        *middle = '\0';
        if (end) {
            *end = '\0';
        }
        text = replace(text, change, to, &count);
        FILE *file = count ? fopen(path, "a") : NULL;
        if (file) {
            fputs("found\n", file);
            fclose(file);
        }
    }
    free(change);
    return text;
}

/* Writes what clang is to read: constraints of AMD's registers are not known to it here. */
static int write_text(const char *path, const char *before, const char *text) {
    size_t count;
    FILE *file = fopen(path, "w");
    if (!file) {
        return -1;
    }
    char *changed = replace(change_text(memory_string(text)), "\"+v\"", "\"+r\"", &count);
    fputs(before, file);
    fputs(changed, file);
    free(changed);
    return fclose(file);
}

/* Runs clang on a text, with its messages to `log`. Its exit status, -1 where it could not be started. */
static int run_clang(const char *options, char *text, char *ptx, const char *log) {
    char *words = memory_format(OPTIONS "%s", options ? options : ""), *rest = NULL;
    char *arguments[128] = {
        EMULATED_GPU_CLANG, "-Xclang", "-mlink-builtin-bitcode", "-Xclang", EMULATED_GPU_LIBRARY, "-o", ptx};
    size_t count = 7;
    for (char *word = strtok_r(words, " ", &rest); word && count + 2 < COUNT(arguments);
         word = strtok_r(NULL, " ", &rest)) {
        if (strncmp(word, "-cl-nv-", 7) != 0 && strncmp(word, "-cl-intel-", 10) != 0) {
            arguments[count++] = word;
        }
    }
    arguments[count] = text;
    const int errors = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    const struct spawn_files files = {-1, -1, errors};
    pid_t child;
    int status = -1;
    if (errors >= 0 && spawn_program(&child, EMULATED_GPU_CLANG, arguments, &files) == 0) {
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
        }
    }
    if (errors >= 0) {
        close(errors);
    }
    free(words);
    return status;
}

char *emulated_compile(const char *before, const char *text, const char *options, char **log) {
    const char *temporary = getenv("TMPDIR");
    char *folder = memory_format("%s/emulated-gpu-XXXXXX", temporary ? temporary : "/tmp");
    const bool made = mkdtemp(folder) != NULL;
    char *source = memory_format("%s/program.cl", folder), *ptx = memory_format("%s/program.ptx", folder);
    char *messages = memory_format("%s/log", folder), *result = NULL;
    *log = NULL;
    if (made && write_text(source, before, text) == 0) {
        result = run_clang(options, source, ptx, messages) == 0 ? read_file(ptx) : NULL;
        *log = read_file(messages);
        unlink(source), unlink(ptx), unlink(messages);
    }
    if (made) {
        rmdir(folder);
    }
    free(source), free(ptx), free(messages), free(folder);
    return result;
}
