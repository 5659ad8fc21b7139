#include "runtime/device/build_log.h"
#include "runtime/device/compute.h"
#include "runtime/device/kernel_sources.h"
#include "runtime/device/program_cache.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Never -cl-fast-relaxed-math: infinities and NaN must keep their meaning. */
#define COMMON_OPTIONS "-cl-std=CL1.2 -cl-mad-enable -cl-no-signed-zeros"

/* What is to be compiled. */
struct recipe {
    char names[256]; /* of the files, for messages */
    char *text;      /* all of them, with #line directives, so that compilers name file and line */
    char *options;   /* complete */
    char key[CHECKSUM_SIZE];
};

static const char *source_find(const char *name) {
    for (const struct kernel_source *source = kernel_sources; source->name; source++) {
        if (!strcmp(source->name, name)) {
            return source->text;
        }
    }
    return NULL;
}

static int join_files(struct recipe *recipe, const char *const *files) {
    size_t size;
    FILE *text = memory_open_stream(&recipe->text, &size);
    int status = 0;
    for (const char *const *file = files; *file && status == 0; file++) {
        const char *source = source_find(*file);
        const size_t used = strlen(recipe->names);
        snprintf(recipe->names + used, sizeof(recipe->names) - used, "%s%s", used ? ", " : "", *file);
        if (source) {
            fprintf(text, "#line 1 \"%s\"\n%s\n", *file, source);
        } else {
            status = error_set("there is no kernel file %s in this program", *file);
        }
    }
    memory_close_stream(text);
    return status;
}

static int recipe_make(const struct compute *compute, const char *const *files, const char *options,
                       struct recipe *recipe) {
    const struct device *device = &compute->device;
    if (join_files(recipe, files)) {
        return -1;
    }
    char lanes[32] = "";
    if (!options || !strstr(options, "-DLANES=")) {
        snprintf(lanes, sizeof lanes, " -DLANES=%u", compute->lanes);
    }
    if (asprintf(&recipe->options, COMMON_OPTIONS "%s -DVEC_MAX=%u %s", lanes, compute->vector,
                 options ? options : "") < 0) {
        recipe->options = NULL;
        return error_set("out of memory");
    }
    /* everything that the binary depends on; PoCL adds what is in the environment to the options */
    const char *extra = getenv("POCL_EXTRA_BUILD_FLAGS");
    const char *const parts[] = {device->name,    device->platform_name, device->version,   device->driver,
                                 recipe->options, recipe->text,          extra ? extra : ""};
    return checksum_strings(parts, sizeof parts / sizeof *parts, recipe->key);
}

static void recipe_free(struct recipe *recipe) {
    free(recipe->text);
    free(recipe->options);
}

/* The compiler's log as heap memory, NULL when there is none. */
static char *build_log(const struct compute *compute, cl_program program) {
    size_t size = 0;
    clGetProgramBuildInfo(program, compute->device.id, CL_PROGRAM_BUILD_LOG, 0, NULL, &size);
    char *log = size ? calloc(1, size + 1) : NULL;
    if (log) {
        clGetProgramBuildInfo(program, compute->device.id, CL_PROGRAM_BUILD_LOG, size, log, NULL);
    }
    return log;
}

static int compile(struct compute *compute, const struct recipe *recipe, cl_program *program) {
    cl_int code;
    const char *text = recipe->text;
    *program = clCreateProgramWithSource(compute->context, 1, &text, NULL, &code);
    if (code != CL_SUCCESS) {
        return error_set("cannot create a program of %s: %s", recipe->names, device_error_name(code));
    }
    code = clBuildProgram(*program, 1, &compute->device.id, recipe->options, NULL, NULL);
    if (code == CL_SUCCESS) {
        return 0;
    }
    char *log = build_log(compute, *program), *located = log ? build_log_locate(recipe->text, log) : NULL;
    /* the first line by itself says enough where a program is only tried */
    error_set("cannot compile %s: %s\n" MESSAGE_QUOTE "device %s, options %s", recipe->names,
              device_error_name(code), compute->device.name, recipe->options);
    error_quote(located ? located : log ? log : "no log");
    free(located);
    free(log);
    clReleaseProgram(*program);
    *program = NULL;
    return -1;
}

static bool take_from_cache(struct compute *compute, const struct recipe *recipe, cl_program *program) {
    unsigned char *binary;
    size_t bytes;
    cl_int code;
    if (!compute->cache_dir || !program_cache_read(compute->cache_dir, recipe->key, &binary, &bytes)) {
        return false;
    }
    const unsigned char *constant = binary;
    *program = clCreateProgramWithBinary(compute->context, 1, &compute->device.id, &bytes, &constant, NULL, &code);
    free(binary);
    if (code != CL_SUCCESS) {
        return false;
    }
    if (clBuildProgram(*program, 1, &compute->device.id, recipe->options, NULL, NULL) == CL_SUCCESS) {
        return true;
    }
    clReleaseProgram(*program);
    return false;
}

static void put_into_cache(struct compute *compute, const struct recipe *recipe, cl_program program) {
    size_t bytes = 0;
    if (!compute->cache_dir ||
        clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(bytes), &bytes, NULL) != CL_SUCCESS || !bytes) {
        return;
    }
    unsigned char *binary = malloc(bytes);
    if (binary && clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(binary), &binary, NULL) == CL_SUCCESS) {
        program_cache_write(compute->cache_dir, recipe->key, binary, bytes);
    }
    free(binary);
}

/* Minutes may pass with some drivers. What a user who looks at no terminal hears of has taken two seconds of compiling so far. */
static void show_compiling(struct compute *compute) {
    char text[128];
    compute->compiling.start = progress_clock() - compute->compiling_seconds;
    snprintf(text, sizeof text, "compiling kernels, program %u%s", compute->programs_compiled + 1,
             compute->cache_dir ? "; later runs find them in the cache" : "");
    progress_text(&compute->compiling, text);
}

static int obtain(struct compute *compute, const struct recipe *recipe, cl_program *program) {
    if (take_from_cache(compute, recipe, program)) {
        compute->programs_cached++;
        return 0;
    }
    show_compiling(compute);
    const double before = progress_clock();
    const int status = compile(compute, recipe, program);
    if (status == 0) {
        compute->programs_compiled++;
        put_into_cache(compute, recipe, *program);
    }
    compute->compiling_seconds += progress_clock() - before;
    progress_end(&compute->compiling);
    return status;
}

/* A program that was built since the device was opened: models of one process share many. */
struct built_program {
    struct built_program *next;
    cl_program program;
    char key[CHECKSUM_SIZE];
};

static cl_program find_built(const struct compute *compute, const char *key) {
    const struct built_program *built = compute->programs;
    while (built && strcmp(built->key, key)) {
        built = built->next;
    }
    return built ? built->program : NULL;
}

static int build(struct compute *compute, const struct recipe *recipe, cl_program *program) {
    struct built_program *built = malloc(sizeof *built);
    if (!built) {
        return error_set("out of memory");
    }
    if (obtain(compute, recipe, program)) {
        free(built);
        return -1;
    }
    *built = (struct built_program){.next = compute->programs, .program = *program};
    strcpy(built->key, recipe->key);
    compute->programs = built;
    return 0;
}

void programs_release(struct compute *compute) {
    for (struct built_program *built = compute->programs, *next; built; built = next) {
        next = built->next;
        clReleaseProgram(built->program);
        free(built);
    }
    compute->programs = NULL;
}

int program_build(struct compute *compute, const char *const *files, const char *options, cl_program *program) {
    struct recipe recipe = {0};
    cl_int code;
    int status = recipe_make(compute, files, options, &recipe);
    *program = status ? NULL : find_built(compute, recipe.key);
    if (status == 0 && !*program && !compute->dry) {
        status = build(compute, &recipe, program);
    }
    if (*program && (code = clRetainProgram(*program)) != CL_SUCCESS) {
        *program = NULL;
        status = error_set("device %s: clRetainProgram: %s", compute->device.name, device_error_text(code));
    }
    recipe_free(&recipe);
    return status;
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

int kernel_build(struct compute *compute, const char *const *files, const char *options, const char *name,
                 struct kernel *kernel) {
    cl_program program;
    if (program_build(compute, files, options, &program)) {
        return -1;
    }
    const int status = kernel_create(compute, program, name, kernel);
    clReleaseProgram(program); /* its kernel keeps it */
    return status;
}

void kernel_release(struct kernel *kernel) {
    if (kernel->handle) {
        clReleaseKernel(kernel->handle);
    }
    kernel->handle = NULL;
}
