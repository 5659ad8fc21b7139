#include "runtime/vulkan/compiler.h"
#include "runtime/vulkan/compiler_options.h"
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define COMPILER "clspv"
#define ADVICE                                                                                                     \
    "the compiler clspv, which kernels for Vulkan are compiled with, cannot be run: %s; `ci/setup.sh vulkan` "     \
    "installs it, or put a program clspv on PATH"

enum { MOST_OPTIONS = 256, MOST_FOLDER = 3000, MOST_PATH = MOST_FOLDER + 32 };

extern char **environ;

/* What is there while a program is compiled: a private folder with three files. */
struct workplace {
    char folder[MOST_FOLDER], source[MOST_PATH], code[MOST_PATH], log[MOST_PATH];
};

static bool make_workplace(struct workplace *place) {
    const char *base = getenv("TMPDIR");
    const int length = snprintf(place->folder, sizeof place->folder, "%s/hctrain-vulkan-XXXXXX",
                                base && *base == '/' ? base : "/tmp");
    if (length < 0 || (size_t)length >= sizeof place->folder || !mkdtemp(place->folder)) {
        return false;
    }
    snprintf(place->source, sizeof place->source, "%s/program.cl", place->folder);
    snprintf(place->code, sizeof place->code, "%s/program.spv", place->folder);
    snprintf(place->log, sizeof place->log, "%s/log", place->folder);
    return true;
}

static void clear_workplace(const struct workplace *place) {
    unlink(place->source);
    unlink(place->code);
    unlink(place->log);
    rmdir(place->folder);
}

static bool write_source(const char *path, const char *before, const char *text) {
    FILE *file = fopen(path, "we");
    if (!file) {
        return false;
    }
    const bool written = fputs(before, file) >= 0 && fputs(text, file) >= 0;
    return !fclose(file) && written;
}

/* A file as heap memory with a zero behind it; NULL where it cannot be read. */
static char *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "re");
    struct stat status;
    char *data = NULL;
    if (file && !fstat(fileno(file), &status)) {
        *bytes = (size_t)status.st_size;
        data = calloc(1, *bytes + 1);
        if (data && fread(data, 1, *bytes, file) != *bytes) {
            free(data);
            data = NULL;
        }
    }
    if (file) {
        fclose(file);
    }
    return data;
}

/* Its exit status, or -1 with errno where it could not be run. What it says goes to the log. */
static int run(char *const *arguments, const char *log) {
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = 0;
    if ((errno = posix_spawn_file_actions_init(&actions))) {
        return -1;
    }
    errno = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!errno) {
        errno = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log, O_WRONLY | O_CREAT | O_EXCL, 0600);
    }
    if (!errno) {
        errno = posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    }
    if (!errno) {
        errno = posix_spawnp(&child, arguments[0], &actions, NULL, arguments, environ);
    }
    const int problem = errno;
    posix_spawn_file_actions_destroy(&actions);
    if (problem) {
        errno = problem;
        return -1;
    }
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            return -1;
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

/* Cuts options at their spaces, in place, behind those that are there already. Whether there was room. */
static bool append_options(char *options, char **arguments, size_t *count) {
    char *rest = options;
    for (char *word = strtok_r(options, " \t\n", &rest); word; word = strtok_r(NULL, " \t\n", &rest)) {
        if (*count == MOST_OPTIONS) {
            return false;
        }
        arguments[(*count)++] = word;
    }
    return true;
}

/* Whether launches may have to be divided. */
static bool takes_few_groups(cl_device_id device) {
    return device->properties.limits.maxComputeWorkGroupCount[0] < INT32_MAX;
}

/* Its status, as of run. */
static int run_compiler(cl_device_id device, const struct workplace *place, char *options) {
    char most_push[64];
    snprintf(most_push, sizeof most_push, VULKAN_PUSH_CONSTANT_OPTION,
             device->properties.limits.maxPushConstantsSize);
    char *arguments[MOST_OPTIONS + 6] = {COMPILER, VULKAN_COMPILER_OPTIONS, most_push};
    size_t count = 0;
    while (arguments[count]) {
        count++;
    }
    if (takes_few_groups(device)) {
        arguments[count++] = VULKAN_OFFSET_OPTION;
    }
    if (!append_options(options, arguments, &count)) {
        errno = E2BIG;
        return -1;
    }
    arguments[count++] = (char *)place->source;
    arguments[count++] = "-o";
    arguments[count++] = (char *)place->code;
    arguments[count] = NULL;
    return run(arguments, place->log);
}

static cl_int compile_in(const struct workplace *place, cl_device_id device, char *options, uint32_t **words,
                         size_t *bytes, char **log) {
    size_t log_bytes;
    const int status = run_compiler(device, place, options);
    if (status < 0 || status == 127) { /* 127: what spawning an absent program is on some systems */
        const char *why = status < 0 ? strerror(errno) : "it is not there";
        return asprintf(log, ADVICE, why) < 0 ? CL_OUT_OF_HOST_MEMORY : CL_COMPILER_NOT_AVAILABLE;
    }
    *log = read_file(place->log, &log_bytes);
    *words = status ? NULL : (uint32_t *)read_file(place->code, bytes);
    return *words ? CL_SUCCESS : CL_BUILD_PROGRAM_FAILURE;
}

cl_int vulkan_compile(cl_device_id device, const char *text, const char *options, uint32_t **words, size_t *bytes,
                      char **log) {
    struct workplace place;
    *words = NULL;
    *log = NULL;
    char *own = strdup(options ? options : "");
    if (!own || !make_workplace(&place)) {
        free(own);
        return asprintf(log, "cannot make a temporary folder: %s", strerror(errno)) < 0 ? CL_OUT_OF_HOST_MEMORY
                                                                                        : CL_BUILD_PROGRAM_FAILURE;
    }
    cl_int code = CL_BUILD_PROGRAM_FAILURE;
    if (write_source(place.source, takes_few_groups(device) ? VULKAN_OFFSET_PREAMBLE : "", text)) {
        code = compile_in(&place, device, own, words, bytes, log);
    } else if (asprintf(log, "cannot write %s: %s", place.source, strerror(errno)) < 0) {
        *log = NULL;
    }
    clear_workplace(&place);
    free(own);
    return code;
}
