/* The environment that OpenCL's implementations for CPUs read: cores, threads, and where PoCL keeps its kernels. */
#include "runtime/device/device.h"
#include "runtime/device/programs.h"
#include "runtime/files/files.h"
#include "runtime/system/host.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_PATH 4096

/* Without a folder for its kernels PoCL silently offers no device. */
static char problem[MOST_PATH + 200];

const char *device_pocl_problem(void) {
    return *problem ? problem : NULL;
}

static void set_problem(const char *folder) {
    snprintf(problem, sizeof problem,
             "PoCL, the OpenCL for CPUs, cannot be used: it keeps its compiled kernels in %.*s, which cannot be "
             "written; set POCL_CACHE_DIR to a folder that can",
             MOST_PATH - 1, folder);
}

/* Whether PoCL can keep its kernels where it does by default: in pocl/kcache, beside where ours are kept. */
static bool has_cache_home(void) {
    char *ours = program_cache_locate(NULL);
    const bool has =
        ours && program_cache_make(path_of("%.*s/pocl/kcache", (int)(strrchr(ours, '/') - ours), ours).text);
    free(ours);
    return has;
}

/* Makes the folder, or accepts it if it is one that only this user can write. */
static bool claim_folder(const char *path) {
    struct stat status;
    if (!mkdir(path, 0700)) {
        return true;
    }
    return errno == EEXIST && !lstat(path, &status) && S_ISDIR(status.st_mode) && status.st_uid == geteuid() &&
           !(status.st_mode & (S_IWGRP | S_IWOTH));
}

/* A private folder for PoCL's kernels below the temporary folder; one per user, so that it is found again. */
static void move_pocl_cache(void) {
    const char *base = getenv("TMPDIR");
    if (!base || *base != '/') {
        base = "/tmp";
    }
    struct path path = path_of("%s/hctrain-pocl-%lu", base, (unsigned long)geteuid());
    if (!claim_folder(path.text)) {
        path = path_of("%s/hctrain-pocl-XXXXXX", base);
        if (!mkdtemp(path.text)) {
            set_problem(base);
            return;
        }
    }
    setenv("POCL_CACHE_DIR", path.text, 0);
}

/* A folder that the user chose is not replaced. */
static void check_pocl_cache(void) {
    const char *chosen = getenv("POCL_CACHE_DIR");
    if (chosen && !*chosen) {
        unsetenv("POCL_CACHE_DIR"); /* PoCL takes "" for a path */
        chosen = NULL;
    }
    if (!chosen && !has_cache_home()) {
        move_pocl_cache();
    } else if (chosen && !program_cache_make(chosen)) {
        set_problem(chosen);
    }
}

void device_prepare_environment(void) {
    char cores[16];
    host_claim_cores();
    snprintf(cores, sizeof(cores), "%u", host_cores());
    /* PoCL starts a thread per core of the machine, however few of them this rank owns. */
    setenv("POCL_MAX_PTHREAD_COUNT", cores, 0);
    /* The same for Intel's driver for CPUs. Kernels have vectors already, and its compiler (2026.2) crashes where
     * it makes vectors of work-items that convert bf16. */
    setenv("CL_CONFIG_CPU_TBB_NUM_WORKERS", cores, 0);
    setenv("CL_CONFIG_USE_VECTORIZER", "False", 0);
    /* OpenBLAS's threads spin after a GEMM, on the cores that PoCL's threads need for the next kernel; with this
     * they sleep at once. Read when runtime/gemm/gemm_cblas.c loads the library. */
    setenv("OPENBLAS_THREAD_TIMEOUT", "4", 0);
    /* The same for oneDNN, whose threads are OpenMP's. */
    setenv("OMP_NUM_THREADS", cores, 0);
    setenv("OMP_WAIT_POLICY", "passive", 0);
    check_pocl_cache();
}
