#include "runtime/vulkan/compiler.h"
#include "runtime/vulkan/child.h"
#include "runtime/vulkan/compiler_options.h"
#include "runtime/vulkan/compiler_program.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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
};

enum { MOST_OPTIONS = 256, MOST_FOLDER = 3000, MOST_PATH = MOST_FOLDER + 32 };

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

/* Cuts options at their spaces, in place, behind those that are there already. Whether there was room. */
static bool append_options(char *options, const char **arguments, size_t *count) {
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

/* Its status, as of vulkan_run. */
static int run_compiler(cl_device_id device, const struct workplace *place, char *options) {
    char most_push[64];
    snprintf(most_push, sizeof most_push, VULKAN_PUSH_CONSTANT_OPTION,
             device->properties.limits.maxPushConstantsSize);
    const char *const *program;
    const char *arguments[MOST_OPTIONS + 12] = {0};
    size_t count = vulkan_compiler(&program);
    if (!count) {
        errno = ENOENT;
        return RUN_FAILED;
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
        return RUN_FAILED;
    }
    arguments[count++] = place->source;
    arguments[count++] = "-o";
    arguments[count++] = place->code;
    arguments[count] = NULL;
    /* Ctrl-C is for us, who decide when to stop, but reaches it, too: it is to have another try. */
    const int status = vulkan_run(arguments, place->log, MOST_SECONDS);
    return status == RUN_KILLED + SIGINT ? vulkan_run(arguments, place->log, MOST_SECONDS) : status;
}

/* How it ended, where that was not well. Who cannot write a program cannot write why. */
static void describe_end(int status, bool is_silent, char *text, size_t room) {
    if (status == RUN_LATE) {
        snprintf(text, room, "took longer than %d seconds, and was ended", MOST_SECONDS);
    } else if (status > RUN_KILLED) {
        snprintf(text, room, "was ended by signal %d (%s)%s", status - RUN_KILLED, strsignal(status - RUN_KILLED),
                 status == RUN_KILLED + SIGKILL ? ": the machine may have too little memory for it" : "");
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
    if (status == RUN_FAILED || status == 127) { /* 127: what spawning an absent program is on some systems */
        const char *why = status == RUN_FAILED ? strerror(errno) : "it is not there";
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
