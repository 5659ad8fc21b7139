/* Which backend runs the GEMMs of a device, and what it is like. */
#include "runtime/gemm/gemm_backend.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <stdlib.h>
#include <string.h>

static const struct gemm_backend *const backends[] = {&gemm_backend_cblas, &gemm_backend_clblast, &gemm_backend_mma,
                                                      &gemm_backend_onednn, &gemm_backend_portable};

static int open_backend(struct compute *compute, const struct gemm_backend *backend) {
    struct gemm_state *state = gemm_state(compute);
    state->fp32 = backend;
    if (backend->open(compute)) {
        if (state->fp32 != backend && state->fp32->close) {
            state->fp32->close(compute);
        }
        return -1;
    }
    state->backend = backend;
    const char *refused = compute->device.is_gpu ? "; no matrix cores: " : "; 16 bits in fp32: ";
    snprintf(state->description, sizeof(state->description), "%s%s%s%s%s%s%s", backend->name,
             *state->runs_on ? " on " : "", state->runs_on, *state->refusal ? refused : "", state->refusal,
             *state->passed_over ? "; without oneDNN: " : "", state->passed_over);
    return 0;
}

int gemm_identify(struct gemm_state *state, const void *data, size_t bytes) {
    char digest[CHECKSUM_SIZE];
    const char *const parts[] = {state->identity, digest};
    return checksum_memory(data, bytes, digest) || checksum_strings(parts, 2, state->identity) ? -1 : 0;
}

void gemm_keep_reason(char reason[REASON_SIZE]) {
    snprintf(reason, REASON_SIZE, "%.*s", (int)strcspn(error_text(), "\n"), error_text());
}

/* The rule of "auto". The backend of the first row that suits the device, and that opens there, is taken:
 *
 *   device                          | operands      | backend
 *   GPU by Intel's driver           | any           | onednn
 *   GPU                             | bf16, fp16    | mma, if its matrix cores pass their self-test
 *   CPU with instructions for them  | bf16, fp16    | onednn, which leaves fp32 to cblas
 *   CPU                             | any           | cblas
 *   on Vulkan                       | any           | portable
 *   any                             | any           | clblast
 *
 * CLBlast's kernels are written for the vendors' compilers of OpenCL: what clspv makes of them for Vulkan is slow
 * (a tenth of the portable GEMM's rate on lavapipe). */
static int choose_backend(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    const struct device *device = &compute->device;
    const bool has_16_bits = state->operands != ELEMENT_FP32;
    const bool is_cpu = device->native_kernels && !device->is_gpu && !compute->dry;
    const bool on_vulkan = !strcmp(device->platform_name, VULKAN_PLATFORM);
    const struct {
        bool suits;
        const struct gemm_backend *backend;
        char *reason; /* why it was not opened is kept here; NULL: nowhere */
    } rows[] = {
        {device->is_gpu && device_by_intel(device) && !device->model, &gemm_backend_onednn, state->passed_over},
        {device->is_gpu && has_16_bits, &gemm_backend_mma, state->refusal},
        {is_cpu && *device->matrix_cores.names[state->operands], &gemm_backend_onednn, state->refusal},
        {true, &gemm_backend_cblas, NULL},
        {on_vulkan, &gemm_backend_portable, NULL},
        {true, &gemm_backend_clblast, NULL},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (rows[i].suits && open_backend(compute, rows[i].backend) == 0) {
            return 0;
        }
        if (rows[i].suits && rows[i].reason) {
            gemm_keep_reason(rows[i].reason);
        }
    }
    return error_prefix("GEMM backend %s", gemm_backend_clblast.name);
}

void gemm_close(struct compute *compute) {
    struct gemm_state *state = gemm_state(compute);
    const struct gemm_backend *backend = state->backend;
    if (backend && state->fp32 != backend && state->fp32->close) {
        state->fp32->close(compute);
    }
    if (backend && backend->close) {
        backend->close(compute);
    }
    for (size_t i = 0; i < 3; i++) {
        buffer_release(compute, &state->copies[i]);
    }
    buffer_release(compute, &state->scratch);
    buffer_release(compute, &state->partial);
    free(state);
    compute->attached = NULL;
    compute->close_attached = NULL;
}

int gemm_open(struct compute *compute, const char *name, enum element_type operands) {
    struct gemm_state *state = memory_zeroed(1, sizeof(*state));
    compute->attached = state;
    compute->close_attached = gemm_close;
    state->operands = operands;
    state->automatic = !strcmp(name, "auto");
    if (state->automatic) {
        return choose_backend(compute);
    }
    for (size_t i = 0; i < COUNT(backends); i++) {
        if (!strcmp(name, backends[i]->name)) {
            return open_backend(compute, backends[i]) ? error_prefix("GEMM backend %s", name) : 0;
        }
    }
    return error_set("no GEMM backend \"%s\"; there are: auto, cblas, clblast, mma, onednn, portable", name);
}

int gemm_compute_open(struct compute **opened, const struct compute_options *options) {
    if (compute_open(opened, options)) {
        return -1;
    }
    if (gemm_open(*opened, options->gemm ? options->gemm : "auto", options->operands)) {
        error_prefix("cannot open device %s", (*opened)->device.name);
        compute_close(*opened);
        *opened = NULL;
        return -1;
    }
    return 0;
}

bool gemm_copies(const struct compute *compute, enum element_type type) {
    const struct gemm_backend *backend = gemm_state(compute)->backend;
    return type != ELEMENT_FP32 && !(backend->takes_type && backend->takes_type(compute, type));
}

size_t gemm_parts_bytes(const struct compute *compute, enum element_type type) {
    const struct gemm_state *state = gemm_state(compute);
    if (state->backend == &gemm_backend_portable && gemm_blocks_suit(compute)) {
        return GEMM_PARTS_BYTES;
    }
    return type != ELEMENT_FP32 && state->backend == &gemm_backend_mma ? MMA_PARTS_BYTES : 0;
}

bool gemm_fuses(const struct compute *compute, enum element_type type) {
    return type != ELEMENT_FP32 && gemm_state(compute)->backend->fuses;
}

bool gemm_uses_matrix_cores(const struct compute *compute) {
    return gemm_state(compute)->backend->uses_matrix_cores;
}

const char *gemm_name(const struct compute *compute) {
    return gemm_state(compute)->backend->name;
}

const char *gemm_description(const struct compute *compute) {
    return gemm_state(compute)->description;
}

struct gemm_matrix_cores gemm_matrix_cores(const struct compute *compute) {
    const struct gemm_state *state = gemm_state(compute);
    return (struct gemm_matrix_cores){.name = state->matrix_cores,
                                      .refusal = *state->refusal ? state->refusal : NULL,
                                      .failed = *state->refusal && state->tried};
}
