#include "runtime/vulkan/compiler.h"
#include "runtime/vulkan/compiler_options.h"
#include "runtime/vulkan/compiler_program.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COMPILER "clspv"
#define ADVICE                                                                                                     \
    "the compiler clspv, which kernels for Vulkan are compiled with, cannot be run: %s; `pip install pyclspv` or " \
    "`ci/setup.sh vulkan` installs it, or put a program clspv on PATH"
#define TEMPORARY "; set TMPDIR to a folder that can be written and has room"

enum {
    MOST_SECONDS = 600, /* that a program may take: the largest take one */
    MOST_LOG = 1 << 20, /* bytes of what it says */
    MOST_CODE = 1 << 28,
    FAILED = -1,   /* where an exit status is wanted: it could not be run */
    LATE = -2,     /* it took too long, and was killed */
    KILLED = 1000, /* and the signal's number */
};

enum { MOST_OPTIONS = 256, MOST_FOLDER = 3000, MOST_PATH = MOST_FOLDER + 32 };

extern char **environ;

/* What is there while a program is compiled: a private folder with three files. */
struct workplace {
    char folder[MOST_FOLDER], source[MOST_PATH], code[MOST_PATH], log[MOST_PATH];
};

static const char *temporary_folder(void) {
    const char *base = getenv("TMPDIR");
    return base && *base == '/' ? base : "/tmp";
}

static bool make_workplace(struct workplace *place) {
    const int length =
        snprintf(place->folder, sizeof place->folder, "%s/hctrain-vulkan-XXXXXX", temporary_folder());
    if (length < 0 || (size_t)length >= sizeof place->folder) {
        errno = ENAMETOOLONG;
        return false;
    }
    if (!mkdtemp(place->folder)) {
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
    const bool written = fputs(before, file) >= 0 && fputs(text, file) >= 0 && !fflush(file);
    const int problem = errno; /* closing may not fail again */
    const bool closed = !fclose(file);
    errno = written ? errno : problem;
    return closed && written;
}

/* A file's first bytes, `most` of them, as heap memory with a zero behind it; NULL where it cannot be read. */
static char *read_file(const char *path, size_t most, size_t *bytes) {
    FILE *file = fopen(path, "re");
    struct stat status;
    char *data = NULL;
    *bytes = 0;
    if (file && !fstat(fileno(file), &status) && S_ISREG(status.st_mode)) {
        *bytes = (size_t)status.st_size < most ? (size_t)status.st_size : most;
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

/* Its exit status, as of run. One that hangs is killed. It is in our group of processes, so that Ctrl-C ends it, too. */
static int wait_for(pid_t child) {
    const struct timespec pause = {0, 2000000};
    struct timespec begin, now;
    int status = 0;
    pid_t ended;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while ((ended = waitpid(child, &status, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - begin.tv_sec > MOST_SECONDS) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return LATE;
        }
        nanosleep(&pause, NULL);
    }
    if (ended < 0) { /* nobody can tell where SIGCHLD is ignored: what it wrote has to */
        return errno == ECHILD ? 0 : FAILED;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : KILLED + WTERMSIG(status);
}

/* Its exit status, KILLED + n where signal n ended it, LATE, or FAILED with errno. What it says goes to the log. */
static int run(char *const *arguments, const char *log) {
    posix_spawn_file_actions_t actions;
    pid_t child;
    if ((errno = posix_spawn_file_actions_init(&actions))) {
        return FAILED;
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
        return FAILED;
    }
    return wait_for(child);
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
    const char *const *program;
    char *arguments[MOST_OPTIONS + 12] = {0};
    size_t count = vulkan_compiler(&program);
    if (!count) {
        errno = ENOENT;
        return FAILED;
    }
    const char *const fixed[] = {VULKAN_COMPILER_OPTIONS, most_push};
    const char *const addressing[] = {VULKAN_ADDRESS_OPTIONS};
    memcpy(arguments, program, count * sizeof *arguments);
    memcpy(arguments + count, fixed, sizeof fixed);
    count += sizeof fixed / sizeof *fixed;
    if (device->rounds_to_even) {
        arguments[count++] = VULKAN_ROUNDING_OPTION;
    }
    if (device->uses_addresses) {
        memcpy(arguments + count, addressing, sizeof addressing);
        count += sizeof addressing / sizeof *addressing;
    }
    if (takes_few_groups(device)) {
        arguments[count++] = VULKAN_OFFSET_OPTION;
    }
    if (!append_options(options, arguments, &count)) {
        errno = E2BIG;
        return FAILED;
    }
    arguments[count++] = (char *)place->source;
    arguments[count++] = "-o";
    arguments[count++] = (char *)place->code;
    arguments[count] = NULL;
    /* Ctrl-C is for us, who decide when to stop, but reaches it, too: it is to have another try. */
    const int status = run(arguments, place->log);
    return status == KILLED + SIGINT && !unlink(place->log) ? run(arguments, place->log) : status;
}

/* How it ended, where that was not well. Who cannot write a program cannot write why. */
static void describe_end(int status, bool is_silent, char *text, size_t room) {
    if (status == LATE) {
        snprintf(text, room, "took longer than %d seconds, and was ended", MOST_SECONDS);
    } else if (status > KILLED) {
        snprintf(text, room, "was ended by signal %d (%s)%s", status - KILLED, strsignal(status - KILLED),
                 status == KILLED + SIGKILL ? ": the machine may have too little memory for it" : "");
    } else if (status && !is_silent) {
        snprintf(text, room, "ended with status %d", status);
    } else {
        snprintf(text, room,
                 "ended with status %d and wrote nothing; is there room in %s? TMPDIR can name another folder",
                 status, temporary_folder());
    }
}

static cl_int compile_in(const struct workplace *place, cl_device_id device, char *options, uint32_t **words,
                         size_t *bytes, char **log) {
    size_t log_bytes;
    char end[MOST_FOLDER];
    const int status = run_compiler(device, place, options);
    if (status == FAILED || status == 127) { /* 127: what spawning an absent program is on some systems */
        const char *why = status == FAILED ? strerror(errno) : "it is not there";
        return asprintf(log, ADVICE, why) < 0 ? CL_OUT_OF_HOST_MEMORY : CL_COMPILER_NOT_AVAILABLE;
    }
    char *said = read_file(place->log, MOST_LOG, &log_bytes);
    *words = status ? NULL : (uint32_t *)read_file(place->code, MOST_CODE, bytes);
    if (*words && *bytes) {
        *log = said;
        return CL_SUCCESS;
    }
    free(*words);
    *words = NULL;
    describe_end(status, !said || !*said, end, sizeof end);
    if (asprintf(log, COMPILER " %s%s%s", end, said && *said ? "; it said:\n" : "", said ? said : "") < 0) {
        *log = NULL;
    }
    free(said);
    return CL_BUILD_PROGRAM_FAILURE;
}

cl_int vulkan_compile(cl_device_id device, const char *text, const char *options, uint32_t **words, size_t *bytes,
                      char **log) {
    struct workplace place;
    *words = NULL;
    *log = NULL;
    char *own = strdup(options ? options : "");
    if (!own || !make_workplace(&place)) {
        free(own);
        return asprintf(log, "cannot make a folder in %s to compile in: %s" TEMPORARY, temporary_folder(),
                        strerror(errno)) < 0
                   ? CL_OUT_OF_HOST_MEMORY
                   : CL_BUILD_PROGRAM_FAILURE;
    }
    cl_int code = CL_BUILD_PROGRAM_FAILURE;
    if (write_source(place.source, takes_few_groups(device) ? VULKAN_OFFSET_PREAMBLE : "", text)) {
        code = compile_in(&place, device, own, words, bytes, log);
    } else if (asprintf(log, "cannot write %s: %s" TEMPORARY, place.source, strerror(errno)) < 0) {
        *log = NULL;
    }
    clear_workplace(&place);
    free(own);
    return code;
}
