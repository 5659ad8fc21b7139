/* The environment that OpenCL's implementations for CPUs read: cores, threads, and where PoCL keeps its kernels. */
#include "runtime/device/device.h"
#include "runtime/device/pocl_cache.h"
#include "runtime/system/host.h"
#include <stdio.h>
#include <stdlib.h>

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
    pocl_cache_prepare();
}
