#include "runtime/system/memory.h"
#include "runtime/system/spawn.h"
#include "runtime/vulkan/objects.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COMPILER "clspv"
#define PYTHON   "python3"
#define ADVICE                                                                                                     \
    "the compiler clspv, which kernels for Vulkan are compiled with, cannot be run: %s; `pip install pyclspv` or " \
    "`ci/setup.sh vulkan` installs it, or put a program clspv on PATH"
#define TEMPORARY "; set TMPDIR to a folder that can be written and has room"

enum {
    MOST_SECONDS = 600, /* that a program may take: the largest take one */
    LOOK_SECONDS = 60,  /* that Python may take to say whether it has the library */
    MOST_LOG = 1 << 20, /* bytes of what the compiler prints */
    MOST_CODE = 1 << 28,
    MOST_OPTIONS = 256,
};

/* ---- running programs */

/* What run returns beside exit statuses. */
enum {
    RUN_FAILED = -1,   /* it could not be run, for the reason in errno */
    RUN_LATE = -2,     /* it took too long, and was killed */
    RUN_KILLED = 1000, /* and the number of the signal that ended it */
};

/* Its status, as of run. It is in our group of processes, so that Ctrl-C ends it, too. */
static int wait_for(pid_t child, int seconds) {
    const struct timespec pause = {0, 2000000};
    struct timespec begin, now;
    int status = 0;
    pid_t ended;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while ((ended = waitpid(child, &status, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - begin.tv_sec > seconds) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return RUN_LATE;
        }
        nanosleep(&pause, NULL);
    }
    if (ended < 0) { /* nobody knows the status where SIGCHLD is ignored: what it wrote has to show */
        return errno == ECHILD ? 0 : RUN_FAILED;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : RUN_KILLED + WTERMSIG(status);
}

/* Runs a program, looked for on PATH; `arguments` ends with NULL. It reads nothing, and what it prints replaces the
 * file `output`, which may be no link. After so many seconds it is killed. Its exit status, or one of the above. */
static int run(const char *const *arguments, const char *output, int seconds) {
    const int log = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    pid_t child;
    if (log < 0) {
        return RUN_FAILED;
    }
    const int problem = spawn_program(&child, arguments[0], (char *const *)arguments,
                                      &(struct spawn_files){.in = -1, .out = log, .err = log});
    close(log);
    errno = problem;
    return problem ? RUN_FAILED : wait_for(child, seconds);
}

/* ---- where the compiler is */

/* The words that a command line with clspv begins with. */
static struct {
    const char *words[3];
    size_t count; /* 0: it is neither on PATH nor in Python */
} compiler;

static void look(void) {
    const char *python[] = {PYTHON, "-c", vulkan_scripts[0].text, "--is-there", NULL};
    const int status = run((const char *const[]){COMPILER, "--version", NULL}, "/dev/null", LOOK_SECONDS);
    if (status != RUN_FAILED && status != 127) { /* 127: spawning an absent program on some systems */
        compiler.words[compiler.count++] = COMPILER;
    } else if (run(python, "/dev/null", LOOK_SECONDS) == 0) {
        compiler.count = COUNT(compiler.words);
        memcpy(compiler.words, python, sizeof compiler.words);
    }
}

bool vulkan_has_compiler(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look);
    return compiler.count > 0;
}

/* ---- files */

/* What is there while a program is compiled: a private folder with three files. */
struct workplace {
    char *folder, *source, *code, *log;
};

static const char *temporary_folder(void) {
    const char *base = getenv("TMPDIR");
    return base && *base == '/' ? base : "/tmp";
}

/* False: the folder cannot be made, for the reason in errno. */
static bool make_workplace(struct workplace *place) {
    place->folder = memory_format("%s/hctrain-vulkan-XXXXXX", temporary_folder());
    const bool is_made = mkdtemp(place->folder) != NULL;
    const int problem = errno;
    place->source = memory_format("%s/program.cl", place->folder);
    place->code = memory_format("%s/program.spv", place->folder);
    place->log = memory_format("%s/log", place->folder);
    errno = problem;
    return is_made;
}

static void clear_workplace(const struct workplace *place) {
    char *const files[] = {place->source, place->code, place->log};
    for (size_t i = 0; i < COUNT(files); i++) {
        unlink(files[i]);
        free(files[i]);
    }
    rmdir(place->folder);
    free(place->folder);
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
        data = memory_zeroed(*bytes + 1, 1);
        if (fread(data, 1, *bytes, file) != *bytes) {
            free(data);
            data = NULL;
        }
    }
    if (file) {
        fclose(file);
    }
    return data;
}

/* ---- compiling */

/* Whether launches may have to be divided. */
static bool takes_few_groups(cl_device_id device) {
    return device->properties.limits.maxComputeWorkGroupCount[0] < INT32_MAX;
}

/* Its status, as of run. OpenCL's options are cut at their spaces. */
static int run_compiler(cl_device_id device, const struct workplace *place, const char *options) {
    static const char *const always[] = {VULKAN_COMPILER_OPTIONS}, *const addresses[] = {VULKAN_ADDRESS_OPTIONS};
    const char *const files[] = {place->source, "-o", place->code, NULL};
    const char *words[MOST_OPTIONS];
    if (!vulkan_has_compiler()) {
        errno = ENOENT;
        return RUN_FAILED;
    }
    size_t count = compiler.count;
    memcpy(words, compiler.words, sizeof compiler.words);
    for (size_t i = 0; i < COUNT(always); i++) {
        words[count++] = always[i];
    }
    for (size_t i = 0; i < COUNT(addresses) && device->uses_addresses; i++) {
        words[count++] = addresses[i];
    }
    char *more =
        memory_format(VULKAN_PUSH_CONSTANT_OPTION " %s %s %s", device->properties.limits.maxPushConstantsSize,
                      device->rounds_to_even ? VULKAN_ROUNDING_OPTION : "",
                      takes_few_groups(device) ? VULKAN_OFFSET_OPTION : "", options ? options : "");
    char *rest = more, *word = strtok_r(more, " \t\n", &rest);
    for (; word && count < COUNT(words) - COUNT(files); word = strtok_r(NULL, " \t\n", &rest)) {
        words[count++] = word;
    }
    memcpy(words + count, files, sizeof files);
    int status = RUN_FAILED;
    errno = E2BIG;
    if (!word) {
        /* Ctrl-C is for us, who decide when to stop, but reaches the compiler, too: it is run once more */
        status = run(words, place->log, MOST_SECONDS);
        status = status == RUN_KILLED + SIGINT ? run(words, place->log, MOST_SECONDS) : status;
    }
    const int problem = errno;
    free(more);
    errno = problem;
    return status;
}

/* How it ended. `is_silent`: it printed nothing; if it has no space for a program, it has none for the reason
 * either. */
static char *describe_end(int status, bool is_silent) {
    if (status == RUN_LATE) {
        return memory_format("took longer than %d seconds, and was ended", MOST_SECONDS);
    }
    if (status > RUN_KILLED) {
        const bool by_kill = status == RUN_KILLED + SIGKILL;
        return memory_format("was ended by signal %d (%s)%s", status - RUN_KILLED, strsignal(status - RUN_KILLED),
                             by_kill ? ": the machine may have too little memory for it" : "");
    }
    if (status && !is_silent) {
        return memory_format("ended with status %d", status);
    }
    return memory_format(
        "ended with status %d and wrote nothing; is there room in %s? TMPDIR can name another folder", status,
        temporary_folder());
}

cl_int vulkan_compile(cl_device_id device, const char *text, const char *options, uint32_t **words, size_t *bytes,
                      char **log) {
    struct workplace place;
    cl_int code = CL_BUILD_PROGRAM_FAILURE;
    char *printed = NULL;
    size_t log_bytes;
    *words = NULL;
    if (!make_workplace(&place)) {
        *log = memory_format("cannot make a folder in %s to compile in: %s" TEMPORARY, temporary_folder(),
                             strerror(errno));
    } else if (!write_source(place.source, takes_few_groups(device) ? VULKAN_OFFSET_PREAMBLE : "", text)) {
        *log = memory_format("cannot write %s: %s" TEMPORARY, place.source, strerror(errno));
    } else {
        const int status = run_compiler(device, &place, options);
        const char *reason = status == RUN_FAILED ? strerror(errno) : "it is not there";
        printed = read_file(place.log, MOST_LOG, &log_bytes);
        *words = status ? NULL : (uint32_t *)read_file(place.code, MOST_CODE, bytes);
        const bool is_silent = !printed || !*printed;
        if (status == RUN_FAILED || status == 127) {
            *log = memory_format(ADVICE, reason);
            code = CL_COMPILER_NOT_AVAILABLE;
        } else if (*words && *bytes) {
            *log = printed;
            printed = NULL;
            code = CL_SUCCESS;
        } else {
            char *end = describe_end(status, is_silent);
            *log =
                memory_format(COMPILER " %s%s%s", end, is_silent ? "" : "; it said:\n", is_silent ? "" : printed);
            free(end);
        }
    }
    if (code != CL_SUCCESS) {
        free(*words);
        *words = NULL;
    }
    free(printed);
    clear_workplace(&place);
    return code;
}
