#include "runtime/device/self_test.h"
#include "runtime/device/programs.h"
#include "runtime/system/error.h"
#include <stdlib.h>
#include <string.h>

static const unsigned char passed[] = "passed"; /* what an entry holds */

/* The key covers the texts of all kernels, which change between two releases, and the address of the card: of two
 * cards of one model one may be broken. */
static int make_key(const struct compute *compute, const char *what, char key[CHECKSUM_SIZE]) {
    const struct device *device = &compute->device;
    const char *flags = getenv("POCL_EXTRA_BUILD_FLAGS");
    char address[DEVICE_ADDRESS_SIZE], shape[128];
    struct checksum *checksum = checksum_create();
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
    return checksum_finish(checksum, key);
}

bool self_test_passed(const struct compute *compute, const char *what, char key[CHECKSUM_SIZE]) {
    unsigned char *kept;
    size_t bytes;
    key[0] = '\0';
    if (!compute->cache_dir || make_key(compute, what, key) ||
        !program_cache_read(compute->cache_dir, key, &kept, &bytes)) {
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
