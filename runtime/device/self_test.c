#include "runtime/device/self_test.h"
#include "runtime/device/programs.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/random.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- what passed */

#define STALE 0xff /* bytes of NaN in every type */

static const unsigned char passed[] = "passed"; /* what an entry holds */

/* The key covers the texts of all kernels, which change between two releases, and the address of the card: of two
 * cards of one model one may be broken. */
bool self_test_passed(const struct compute *compute, const char *what, char key[CHECKSUM_SIZE]) {
    const struct device *device = &compute->device;
    const char *flags = getenv("POCL_EXTRA_BUILD_FLAGS");
    char address[DEVICE_ADDRESS_SIZE], shape[128];
    unsigned char *kept;
    size_t bytes;
    key[0] = '\0';
    if (!compute->cache_dir) {
        return false;
    }
    EVP_MD_CTX *checksum = checksum_create();
    snprintf(shape, sizeof shape, "%u units, %zu work-items, %zu bytes, %u lanes, vectors of %u",
             device->compute_units, device->max_work_group, device->local_bytes, compute->lanes, compute->vector);
    const char *const parts[] = {"self-test",
                                 HC_VERSION,
                                 device->name,
                                 device->version,
                                 device->platform_name,
                                 device->driver,
                                 shape,
                                 device_address_text(&device->address, address),
                                 flags ? flags : "",
                                 what};
    for (size_t i = 0; i < COUNT(parts); i++) {
        checksum_update(checksum, parts[i], strlen(parts[i]) + 1);
    }
    for (const struct embedded_text *source = kernel_sources; source->name; source++) {
        checksum_update(checksum, source->text, strlen(source->text) + 1);
    }
    checksum_finish(checksum, key);
    if (!program_cache_read(compute->cache_dir, key, &kept, &bytes)) {
        return false;
    }
    const bool is_whole = bytes == sizeof passed && !memcmp(kept, passed, bytes);
    free(kept);
    return is_whole;
}

void self_test_keep(const struct compute *compute, const char key[CHECKSUM_SIZE]) {
    if (*key) {
        program_cache_write(compute->cache_dir, key, passed, sizeof passed);
    }
}

int self_test_refuse(const struct compute *compute, const char *what, const char *instead) {
    const struct device *device = &compute->device;
    return error_set(
        "%s of device %s (%s, driver %s) failed its self-test against sums on the host: %s; a run there would "
        "mean nothing: try %sanother version of the driver, or another device (--device cpu)",
        what, device->name, device->platform_name, device->driver, error_text(), instead);
}

/* ---- numbers */

int self_test_create(struct compute *compute, struct self_test_matrix *matrix, enum element_type type, uint64_t key,
                     float spread) {
    matrix->stride = matrix->stride ? matrix->stride : matrix->columns;
    const size_t count = matrix->rows * matrix->columns;
    const size_t bytes = (matrix->offset + matrix->rows * matrix->stride + SELF_TEST_BEHIND) * element_size(type);
    const uint64_t half = type == ELEMENT_FP32 ? 1 << 23 : 1 << 7;
    unsigned char *elements = memory_allocate(bytes, 1);
    memset(elements, STALE, bytes);
    matrix->numbers = memory_allocate(count, sizeof *matrix->numbers);
    for (size_t i = 0; i < count; i++) {
        float number = NAN;
        if (key) {
            number = ((float)random_below(key, i, 2 * half - 1) - (float)(half - 1)) * 2.0f * spread / (float)half;
            element_put(elements, matrix->offset + i / matrix->columns * matrix->stride + i % matrix->columns,
                        number, type);
        }
        matrix->numbers[i] = (double)number;
    }
    int status = buffer_create(compute, &matrix->buffer, bytes);
    if (status) {
        compute_fail(compute, "%s", error_text()); /* want of memory is no wrong sum */
    } else {
        matrix->buffer.type = type;
        status = buffer_write(compute, &matrix->buffer, 0, elements, bytes);
    }
    free(elements);
    return status;
}

void self_test_release(struct compute *compute, struct self_test_matrix *matrix) {
    buffer_release(compute, &matrix->buffer);
    free(matrix->numbers);
}

int self_test_read(struct compute *compute, const struct self_test_matrix *matrix, const char *name,
                   double *found) {
    const size_t size = element_size(matrix->buffer.type), bytes = matrix->buffer.bytes;
    unsigned char *elements = memory_allocate(bytes, 1);
    int status = buffer_read(compute, &matrix->buffer, 0, elements, bytes);
    for (size_t at = 0; at < bytes / size && status == 0; at++) {
        const size_t inside = at - matrix->offset; /* large before the matrix */
        const size_t row = inside / matrix->stride, column = inside % matrix->stride;
        if (row < matrix->rows && column < matrix->columns) {
            found[row * matrix->columns + column] = (double)element_at(elements, at, matrix->buffer.type);
        } else if (!isnan(element_at(elements, at, matrix->buffer.type))) { /* llvmpipe copies NaN as another one */
            status = error_set("element %zu of %s's buffer, outside of the matrix, was written", at, name);
        }
    }
    free(elements);
    return status;
}

int self_test_compare(const double *found, const double *expected, size_t count, double bound, const char *format,
                      ...) {
    char what[64];
    va_list arguments;
    double squares = 0.0;
    for (size_t i = 0; i < count; i++) {
        squares += (found[i] - expected[i]) * (found[i] - expected[i]);
    }
    if (sqrt(squares) <= bound) {
        return 0;
    }
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return error_set("%s is %.3g away from the sums on the host, and roundings explain no more than %.3g", what,
                     sqrt(squares), bound);
}
