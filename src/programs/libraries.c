#include "src/programs/libraries.h"
#include "runtime/gemm/gemm_libraries.h"
#include "runtime/system/array.h"
#include "runtime/system/message.h"
#include <stdio.h>

/* ---- versions, as texts; OpenCL's loader would load all drivers to report its own, and CLBlast reports none */

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

static void no_version(void *library, char *text) {
    (void)library, (void)text;
}

/* ---- the table */

static const struct library {
    const char *title;
    const char *const *names; /* of a library that is loaded while the program runs; NULL: it is linked */
    const char *functions[2]; /* one of them tells its file */
    void (*version)(void *library, char *text);
} libraries[] = {
    {"OpenCL loader", NULL, {"clGetPlatformIDs"}, no_version},
    {"CLBlast", NULL, {"CLBlastSgemm"}, no_version},
    {"MPI", NULL, {"MPI_Init"}, mpi_version},
    {"OpenBLAS", blas_names, {"cblas_sgemm", "scipy_cblas_sgemm"}, blas_version},
    {"oneDNN", onednn_names, {"dnnl_version"}, onednn_version},
};

static bool has_path(const struct library *row, void *library, char path[PATH_MAX]) {
    return library_path(library, row->functions[0], path) ||
           (row->functions[1] && library_path(library, row->functions[1], path));
}

void libraries_print(bool computes) {
    char path[PATH_MAX];
    for (size_t i = 0; i < COUNT(libraries); i++) {
        const struct library *row = &libraries[i];
        void *library = row->names && computes ? library_load(row->names) : RTLD_DEFAULT; /* which is NULL */
        if (has_path(row, library, path)) {
            char text[VERSION_BYTES] = "";
            row->version(library, text);
            message_print(stdout, "%-14s %s%s%s\n", row->title, text, *text ? ": " : "", path);
        } else if (computes) {
            message_print(stdout, "%-14s none\n", row->title);
        }
    }
}
