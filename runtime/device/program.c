#include "runtime/device/compute.h"
#include "runtime/device/pocl_cache.h"
#include "runtime/device/programs.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "runtime/system/parallel.h"
#include <fnmatch.h>
#include <pthread.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Never -cl-fast-relaxed-math: infinities and NaN must keep their meaning. */
#define COMMON_OPTIONS "-cl-std=CL1.2 -cl-mad-enable -cl-no-signed-zeros"

enum { MOST_FILES = 16 }; /* of a program */

/* ---- places in a compiler's log */

/* The name of the file, which ends at a quote, in which a line of the whole text is, and its line there; NULL: it
 * is in no file. */
static const char *find_place(const char *text, unsigned long line, unsigned long *line_there) {
    const char *name = NULL;
    *line_there = 0;
    for (unsigned long at = 1; *text != '\0'; at++) {
        unsigned long next;
        (*line_there)++;
        if (sscanf(text, "#line %lu \"", &next) == 1) {
            name = text + strcspn(text, "\"") + 1;
            *line_there = next - 1;
        }
        if (at == line) {
            return *line_there > 0 ? name : NULL;
        }
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    return NULL;
}

/* Whether a line of the log names a file of the text. */
static bool names_file(const char *text, const char *line) {
    char name[256];
    for (const char *found = strstr(text, "#line "); found != NULL; found = strstr(found + 1, "#line ")) {
        if (sscanf(found, "#line %*u \"%255[^\"\n]", name) == 1 && strstr(line, name) != NULL) {
            return true;
        }
    }
    return false;
}

/* The line that a compiler names: "NAME:LINE:COLUMN:", "(LINE:COLUMN)" or "line LINE". */
#define LINE_PATTERN "[^ \t]+:([0-9]+):[0-9]+:|\\(([0-9]+):[0-9]+\\)|\\<[Ll]ine ([0-9]+)\\>"

char *build_log_locate(const char *text, const char *log) {
    char *located, *copy = memory_string(log), *rest = copy;
    size_t bytes;
    regex_t pattern;
    regmatch_t found[4];
    unsigned long line_there;
    FILE *to = memory_open_stream(&located, &bytes);
    if (regcomp(&pattern, LINE_PATTERN, REG_EXTENDED) != 0) {
        memory_refused(0);
    }
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        line[strcspn(line, "\r")] = '\0';
        fputs(line, to);
        const bool of_text = !names_file(text, line) && !strstr(line, "ptx input"); /* PTX has lines of its own */
        if (of_text && regexec(&pattern, line, COUNT(found), found, 0) == 0) {
            const size_t group = found[1].rm_so >= 0 ? 1 : found[2].rm_so >= 0 ? 2 : 3;
            const char *name = find_place(text, strtoul(line + found[group].rm_so, NULL, 10), &line_there);
            if (name) {
                fprintf(to, " [%.*s:%lu]", (int)strcspn(name, "\"\n"), name, line_there);
            }
        }
        fputs(rest != NULL ? "\n" : "", to);
    }
    regfree(&pattern);
    free(copy);
    memory_close_stream(to);
    return located;
}

/* ---- compiling */

static const struct embedded_text *source_find(const char *name) {
    const struct embedded_text *source = kernel_sources;
    while (source->name && strcmp(source->name, name)) {
        source++;
    }
    return source->name ? source : NULL;
}

/* A program's text as files are added to it. */
struct joined_text {
    FILE *stream;
    const char *const *chosen;     /* what an #include with a * may mean */
    const char *files[MOST_FILES]; /* that are in it */
    size_t count;
};

/* Adds a file once, and in place of its lines `#include "NAME"` those files. */
static int join_file(struct joined_text *text, const char *name) {
    const struct embedded_text *source = source_find(name);
    char included[64];
    for (size_t i = 0; i < text->count; i++) {
        if (!strcmp(text->files[i], name)) {
            return 0;
        }
    }
    if (!source || text->count == MOST_FILES) {
        return error_set("there is no kernel file %s in this program", name);
    }
    text->files[text->count++] = source->name;
    fprintf(text->stream, "#line 1 \"%s\"\n", name);
    unsigned line = 1;
    for (const char *at = source->text; *at; line++) {
        const size_t length = strcspn(at, "\n");
        if (sscanf(at, "#include \"%63[^\"\n]", included) == 1) {
            const char *const *file = text->chosen;
            while (strchr(included, '*') && *file && fnmatch(included, *file, 0)) {
                file++;
            }
            const char *found = !strchr(included, '*') ? included : *file;
            if (found && join_file(text, found)) {
                return -1;
            }
            fprintf(text->stream, "#line %u \"%s\"\n", line + 1, name);
        } else {
            fprintf(text->stream, "%.*s\n", (int)length, at);
        }
        at += length + (at[length] == '\n');
    }
    return 0;
}

static int describe(const struct compute *compute, const char *const *files, const char *options,
                    struct built_program *wanted) {
    const struct device *device = &compute->device;
    char lanes[32] = "";
    size_t size;
    struct joined_text text = {.stream = memory_open_stream(&wanted->text, &size), .chosen = files + 1};
    const int status = join_file(&text, files[0]);
    memory_close_stream(text.stream);
    for (size_t i = 0; i < text.count; i++) {
        const size_t used = strlen(wanted->files);
        snprintf(wanted->files + used, sizeof(wanted->files) - used, "%s%s", used ? ", " : "", text.files[i]);
    }
    options = options ? options : "";
    if (!strstr(options, "-DLANES=")) {
        snprintf(lanes, sizeof lanes, " -DLANES=%u", compute->lanes);
    }
    wanted->options = memory_format(COMMON_OPTIONS "%s%s -DVEC_MAX=%u %s", lanes, device_sub_group_option(device),
                                    compute->vector, options);
    /* everything that the binary depends on */
    const char *const parts[] = {device->name,   device->platform_name, device->version,
                                 device->driver, wanted->options,       wanted->text};
    checksum_strings(parts, COUNT(parts), wanted->key);
    return status;
}

static void release_program(struct built_program *built) {
    if (built->program) {
        clReleaseProgram(built->program);
    }
    built->program = NULL;
}

/* If it does not compile, the first line of the error by itself is enough where a program is only tried. */
static int compile_text(struct compute *compute, struct built_program *wanted, const char *text,
                        const char *options) {
    cl_device_id device = compute->device.id;
    cl_int code;
    size_t size = 0;
    wanted->program = clCreateProgramWithSource(compute->context, 1, &text, NULL, &code);
    if (code != CL_SUCCESS) {
        wanted->program = NULL;
        return error_set("cannot create a program of %s: %s", wanted->files, device_error_name(code));
    }
    code = clBuildProgram(wanted->program, 1, &device, options, NULL, NULL);
    if (code == CL_SUCCESS) {
        return 0;
    }
    clGetProgramBuildInfo(wanted->program, device, CL_PROGRAM_BUILD_LOG, 0, NULL, &size);
    char *log = memory_zeroed(size + 1, 1);
    clGetProgramBuildInfo(wanted->program, device, CL_PROGRAM_BUILD_LOG, size, log, NULL);
    char *located = build_log_locate(wanted->text, *log ? log : "no log");
    error_set("cannot compile %s: %s\n" MESSAGE_QUOTE "device %s, options %s", wanted->files,
              device_error_name(code), compute->device.name, wanted->options);
    error_quote(located);
    if (device_is_pocl(&compute->device) && pocl_cache_check(true)) {
        error_set("%s", device_pocl_problem()); /* PoCL's log does not say that its disk is full */
    }
    free(located);
    free(log);
    return -1;
}

/* PoCL keeps kernels for the work-groups that were launched, and finds them by the text. To give a program's binary
 * it would compile all kernels once more, for work-groups of any size. */
static bool is_kept(const struct compute *compute) {
    return compute->cache_dir && !device_is_pocl(&compute->device);
}

/* Compiles a program, and keeps it for later runs. PoCL gets declarations of the built-in functions that are used
 * in place of a header of all. Should a version of PoCL need its own header, or the program have an error, it is
 * compiled with that. */
static int compile(struct compute *compute, struct built_program *wanted) {
    size_t bytes = 0;
    if (device_is_pocl(&compute->device)) {
        char *text = memory_format("%s%s", source_find("pocl_builtins.cl")->text, wanted->text);
        char *options = memory_format("%s -w -D_OPENCL_H_", wanted->options);
        const int status = compile_text(compute, wanted, text, options);
        free(options);
        free(text);
        if (status == 0) {
            return 0;
        }
        release_program(wanted);
        error_clear();
        compute->programs_refused++;
    }
    if (compile_text(compute, wanted, wanted->text, wanted->options)) {
        return -1;
    }
    if (is_kept(compute) &&
        clGetProgramInfo(wanted->program, CL_PROGRAM_BINARY_SIZES, sizeof(bytes), &bytes, NULL) == CL_SUCCESS &&
        bytes) {
        unsigned char *binary = memory_allocate(bytes, 1);
        if (clGetProgramInfo(wanted->program, CL_PROGRAM_BINARIES, sizeof(binary), &binary, NULL) == CL_SUCCESS) {
            program_cache_write(compute->cache_dir, wanted->key, binary, bytes);
        }
        free(binary);
    }
    return 0;
}

static bool take_from_cache(struct compute *compute, struct built_program *wanted) {
    unsigned char *binary;
    size_t bytes;
    cl_int code;
    if (!is_kept(compute) || !program_cache_read(compute->cache_dir, wanted->key, &binary, &bytes)) {
        return false;
    }
    const unsigned char *constant = binary;
    cl_program program =
        clCreateProgramWithBinary(compute->context, 1, &compute->device.id, &bytes, &constant, NULL, &code);
    free(binary);
    if (code != CL_SUCCESS) {
        return false;
    }
    wanted->program = program;
    if (clBuildProgram(program, 1, &compute->device.id, wanted->options, NULL, NULL) != CL_SUCCESS) {
        release_program(wanted);
        return false;
    }
    return true;
}

/* Compiling takes minutes with some drivers. Without a terminal a line is printed once it has taken two seconds in
 * all. What PoCL finds in its cache takes 10 ms. */
static void show_compiling(struct compute *compute) {
    char text[128], of[24] = "";
    if (device_is_pocl(&compute->device) && compute->compiling_seconds < 0.5) {
        return;
    }
    const unsigned number = compute->programs_compiled + 1;
    if (number <= compute->programs_expected) {
        snprintf(of, sizeof of, " of %u", compute->programs_expected);
    }
    compute->compiling.start = progress_clock() - compute->compiling_seconds;
    snprintf(text, sizeof text, "compiling kernels, program %u%s%s", number, of,
             compute->cache_dir ? "; later runs find them in the cache" : "");
    progress_text(&compute->compiling, text);
}

static void built_release(struct built_program *built) {
    release_program(built);
    free(built->text);
    free(built->options);
    free(built);
}

/* A kernel that kernel_find keeps. */
struct found_kernel {
    struct found_kernel *next;
    char *files[MOST_FILES + 1];
    char *options;
    struct kernel kernel;
};

void programs_release(struct compute *compute) {
    for (struct found_kernel *found = compute->kernels, *next; found; found = next) {
        next = found->next;
        kernel_release(&found->kernel);
        for (size_t i = 0; found->files[i]; i++) {
            free(found->files[i]);
        }
        free(found->options);
        free(found);
    }
    for (struct built_program *built = compute->programs, *next; built; built = next) {
        next = built->next;
        built_release(built);
    }
    compute->kernels = NULL;
    compute->programs = NULL;
}

static struct built_program *find_built(const struct compute *compute, const char *key) {
    struct built_program *built = compute->programs;
    while (built && strcmp(built->key, key)) {
        built = built->next;
    }
    return built;
}

/* ---- several at a time */

/* Programs that are compiled, none of them built before or twice. */
struct preparation {
    struct compute *compute;
    struct built_program **wanted;
    size_t count;
    pthread_mutex_t lock; /* of the compute */
};

/* One that cannot be compiled has no program then. */
static int prepare(void *context, size_t i) {
    struct preparation *all = context;
    struct compute *compute = all->compute;
    struct built_program *wanted = all->wanted[i];
    pthread_mutex_lock(&all->lock);
    show_compiling(compute);
    pthread_mutex_unlock(&all->lock);
    if (compile(compute, wanted)) {
        release_program(wanted);
    }
    error_clear();
    pthread_mutex_lock(&all->lock);
    compute->programs_compiled += wanted->program != NULL;
    pthread_mutex_unlock(&all->lock);
    return 0;
}

static void keep_built(struct compute *compute, struct built_program *built) {
    if (!compute->dry) {
        free(built->text);
        built->text = NULL;
    }
    built->next = compute->programs;
    compute->programs = built;
}

/* PoCL has a lock around its compiler, and oclgrind, whose device is a CPU and a GPU, crashes where several
 * programs are compiled at a time, as the standard asks of it. */
void programs_prepare(struct compute *compute, const struct program_request *requests, size_t count) {
    struct preparation all = {.compute = compute,
                              .wanted = memory_zeroed(count, sizeof *all.wanted),
                              .lock = PTHREAD_MUTEX_INITIALIZER};
    const struct device *device = &compute->device;
    const bool in_parallel = !compute->dry && !device_is_pocl(device) && !(device->is_cpu && device->is_gpu);
    compute->programs_expected = compute->programs_compiled + (unsigned)count;
    for (size_t i = 0; i < count && in_parallel; i++) {
        struct built_program *wanted = memory_zeroed(1, sizeof *wanted);
        const bool failed = describe(compute, requests[i].files, requests[i].options, wanted) != 0;
        bool is_known = failed || find_built(compute, wanted->key);
        for (size_t j = 0; j < all.count && !is_known; j++) {
            is_known = strcmp(all.wanted[j]->key, wanted->key) == 0;
        }
        if (is_known) {
            built_release(wanted);
            error_clear();
        } else if (take_from_cache(compute, wanted)) {
            compute->programs_cached++;
            keep_built(compute, wanted);
        } else {
            all.wanted[all.count++] = wanted;
        }
    }
    if (all.count > 0) {
        const double before = progress_clock();
        compute->programs_expected = compute->programs_compiled + (unsigned)all.count;
        parallel_run(all.count, prepare, &all);
        compute->compiling_seconds += progress_clock() - before;
        progress_end(&compute->compiling);
    }
    for (size_t i = 0; i < all.count; i++) {
        if (all.wanted[i]->program) {
            keep_built(compute, all.wanted[i]);
        } else {
            built_release(all.wanted[i]);
        }
    }
    free(all.wanted);
}

/* ---- one program */

int program_build(struct compute *compute, const char *const *files, const char *options, cl_program *program) {
    struct built_program *wanted = memory_zeroed(1, sizeof *wanted), *built;
    int status = describe(compute, files, options, wanted);
    *program = NULL;
    built = status ? NULL : find_built(compute, wanted->key);
    if (status == 0 && !built && !compute->dry) {
        if (take_from_cache(compute, wanted)) {
            compute->programs_cached++;
        } else {
            show_compiling(compute);
            const double before = progress_clock();
            status = compile(compute, wanted);
            compute->programs_compiled += status == 0;
            compute->compiling_seconds += progress_clock() - before;
            progress_end(&compute->compiling);
        }
    }
    if (status || built) {
        built_release(wanted);
    } else {
        built = wanted;
        keep_built(compute, built);
    }
    if (status) {
        return -1;
    }
    const cl_int code = built->program ? clRetainProgram(built->program) : CL_SUCCESS;
    if (code != CL_SUCCESS) {
        return error_set("device %s: clRetainProgram: %s", compute->device.name, device_error_text(code));
    }
    *program = built->program;
    return 0;
}

int kernel_create(struct compute *compute, cl_program program, const char *name, struct kernel *kernel) {
    cl_int code;
    kernel->handle = NULL;
    if (strlen(name) >= sizeof(kernel->name)) {
        return error_set("kernel name %s is longer than %zu characters", name, sizeof(kernel->name) - 1);
    }
    strcpy(kernel->name, name);
    if (compute->dry) {
        return 0;
    }
    kernel->handle = clCreateKernel(program, name, &code);
    if (code == CL_SUCCESS) {
        return 0;
    }
    return error_set("device %s: cannot create kernel %s: %s", compute->device.name, name, device_error_text(code));
}

void kernel_release(struct kernel *kernel) {
    if (kernel->handle) {
        clReleaseKernel(kernel->handle);
    }
    kernel->handle = NULL;
}

static bool is_of(const struct found_kernel *found, const char *const *files, const char *options,
                  const char *name) {
    size_t i = 0;
    while (files[i] && found->files[i] && !strcmp(files[i], found->files[i])) {
        i++;
    }
    return !files[i] && !found->files[i] && !strcmp(options, found->options) && !strcmp(name, found->kernel.name);
}

const struct kernel *kernel_find(struct compute *compute, const char *const *files, const char *options,
                                 const char *name) {
    static const struct kernel none;
    struct found_kernel *found = compute->kernels;
    while (found && !is_of(found, files, options, name)) {
        found = found->next;
    }
    if (found || compute->failure) {
        return found ? &found->kernel : &none;
    }
    cl_program program;
    struct kernel kernel;
    int status = program_build(compute, files, options, &program);
    status = status || kernel_create(compute, program, name, &kernel);
    if (program) {
        clReleaseProgram(program); /* its kernel keeps it */
    }
    if (status) {
        compute_fail(compute, "%s", error_text());
        return &none;
    }
    found = memory_zeroed(1, sizeof *found);
    *found = (struct found_kernel){.next = compute->kernels, .options = memory_string(options), .kernel = kernel};
    for (size_t i = 0; files[i] && i < MOST_FILES; i++) {
        found->files[i] = memory_string(files[i]);
    }
    compute->kernels = found;
    return &found->kernel;
}
