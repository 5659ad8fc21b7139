#include "src/programs/program.h"
#include "runtime/device/device.h"
#include "runtime/files/files.h"
#include "runtime/gemm/gemm_libraries.h"
#include "runtime/ranks/ranks.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "src/training/data_parallel.h"
#include <jansson.h>
#include <stdlib.h>

void program_print_error(const struct program *program) {
    message_print(stderr, "%s: %s\n", program->info.name, error_text());
}

int program_failed(const struct program *program) {
    if (!interrupt_requested()) {
        return PROGRAM_FAILED;
    }
    program_print_error(program);
    return PROGRAM_INTERRUPTED;
}

bool program_agree(struct program *program, int status) {
    const bool failed = ranks_agree(&program->ranks, status) != 0;
    program->status = failed && status == PROGRAM_DONE ? PROGRAM_WRONG : status;
    return !failed;
}

/* ---- the libraries that --version lists, with their versions as texts */

enum { VERSION_BYTES = 8192 /* of MPICH's */ };

/* Up to the first comma: Open MPI goes on with who built it. */
static void mpi_version(void *library, char *text) {
    int (*get)(char *, int *), length = 0;
    if (library_find(library, "MPI_Get_library_version", &get) && get(text, &length) == 0) {
        text[strcspn(text, ",\n")] = '\0';
    }
}

static void blas_version(void *library, char *text) {
    const char *(*get)(void);
    if (blas_find(library, "openblas_get_config", &get)) {
        message_write(text, VERSION_BYTES, "%s", get());
    }
}

static void onednn_version(void *library, char *text) {
    const int *(*get)(void); /* a structure that begins with three numbers */
    if (library_find(library, "dnnl_version", &get)) {
        const int *version = get();
        message_write(text, VERSION_BYTES, "%d.%d.%d", version[0], version[1], version[2]);
    }
}

static const struct library {
    const char *title;
    const char *const *names; /* of a library that is loaded while the program runs; NULL: it is linked */
    const char *functions[2]; /* one of them tells its file */
    /* NULL: CLBlast reports none, and OpenCL's loader would load all drivers to report its own. */
    void (*version)(void *library, char *text);
} libraries[] = {
    {"OpenCL loader", NULL, {"clGetPlatformIDs"}, NULL},
    {"CLBlast", NULL, {"CLBlastSgemm"}, NULL},
    {"MPI", NULL, {"MPI_Init"}, mpi_version},
    {"OpenBLAS", blas_names, {"cblas_sgemm", "scipy_cblas_sgemm"}, blas_version},
    {"oneDNN", onednn_names, {"dnnl_version"}, onednn_version},
};

/* Prints a line for each library that the program is linked with, or loads when it computes: its name, its version
 * where it reports one, and its file. */
static void print_libraries(bool computes) {
    char path[PATH_MAX];
    for (size_t i = 0; i < COUNT(libraries); i++) {
        const struct library *row = &libraries[i];
        void *library = row->names && computes ? library_load(row->names) : RTLD_DEFAULT; /* which is NULL */
        if (library_path(library, row->functions[0], path) ||
            (row->functions[1] && library_path(library, row->functions[1], path))) {
            char text[VERSION_BYTES] = "";
            if (row->version) {
                row->version(library, text);
            }
            message_print(stdout, "%-14s %s%s%s\n", row->title, text, *text ? ": " : "", path);
        } else if (computes) {
            message_print(stdout, "%-14s none\n", row->title);
        }
    }
}

/* ---- the beginning and the end */

/* So that jansson's functions fail for what they are given only. */
static void *allocate_for_json(size_t bytes) {
    return memory_allocate(bytes, 1);
}

bool program_begin(struct program *program, struct option_spec *specs, size_t count, int argc, char **argv) {
    int first_free = argc, status = PROGRAM_DONE;
    json_set_alloc_funcs(allocate_for_json, free);
    program->specs = specs;
    program->spec_count = count;
    program->ranks = ranks_alone;
    const enum options_result asked = options_set_defaults(specs, count)
                                          ? OPTIONS_WRONG
                                          : options_read(specs, count, argc, argv, &first_free, &program->given);
    /* Makes folders, which is too much for --help; has to come before MPI, which starts threads. */
    if (program->computes && asked == OPTIONS_OK) {
        device_prepare_environment();
    }
    if (program->is_job) {
        if (program->heeds_signals && job_is_launched()) {
            interrupt_install(); /* a rank that dies while the others start may leave the launcher waiting */
        }
        if (job_start(&program->ranks)) {
            program_print_error(program);
            exit(PROGRAM_FAILED); /* there is no job that could be left in good order */
        }
        if (program->ranks.index > 0 && !freopen("/dev/null", "w", stdout)) {
            fclose(stdout);
        }
        if (same_job_program(&program->ranks)) {
            program->status = PROGRAM_FAILED;
            return false;
        }
    }
    if (asked == OPTIONS_WRONG || (asked == OPTIONS_OK && options_apply_given(program->given))) {
        status = PROGRAM_WRONG;
    } else if (asked != OPTIONS_OK) { /* --help, --version and the like */
        const bool failed = options_answer(asked, specs, count, &program->info) != 0;
        if (!failed && asked == OPTIONS_VERSION) {
            print_libraries(program->computes);
        }
        status = failed || files_flush(stdout, "the answer") ? PROGRAM_FAILED : PROGRAM_DONE;
    } else if (!program->takes_arguments && first_free < argc) {
        error_set("unexpected argument '%s'; see %s --help", argv[first_free], program->info.name);
        status = PROGRAM_WRONG;
    }
    program->arguments = (const char *const *)argv + first_free;
    program->argument_count = (size_t)(argc - first_free);
    return program_agree(program, status) && asked == OPTIONS_OK;
}

int program_end(struct program *program) {
    const bool failed = program->status == PROGRAM_FAILED || program->status == PROGRAM_WRONG;
    if (failed && *error_text()) {
        ranks_end_others(&program->ranks, program->info.name);
        if (program->ranks.index == 0) {
            program_print_error(program);
        }
    }
    options_given_free(program->given);
    options_free(program->specs, program->spec_count);
    job_stop(&program->ranks);
    return program->status;
}
