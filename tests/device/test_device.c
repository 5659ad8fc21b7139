/* Finding and choosing devices, and what the environment says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/device/device.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct device *devices;
static size_t device_count;

static int list_devices(void **state) {
    (void)state;
    return device_list(&devices, &device_count) || !device_count;
}

static int free_devices(void **state) {
    (void)state;
    free(devices);
    return 0;
}

static void test_description(void **state) {
    (void)state;
    for (size_t i = 0; i < device_count; i++) {
        const struct device *device = &devices[i];
        assert_true(*device->name && *device->platform_name && *device->version);
        assert_true(device->compute_units > 0 && device->vector_width > 0 && device->max_work_group > 0);
        assert_true(device->memory_bytes > (1 << 20) && device->max_buffer_bytes > (1 << 20));
        assert_true(!device->native_kernels || device->shares_host_memory);
    }
}

static void test_index(void **state) {
    (void)state;
    struct device chosen;
    for (size_t i = 0; i < device_count; i++) {
        char word[32];
        snprintf(word, sizeof(word), "%zu", i);
        assert_int_equal(device_choose(word, 0, &chosen), 0);
        assert_ptr_equal(chosen.id, devices[i].id);
    }
}

static void test_substring(void **state) {
    (void)state;
    struct device chosen;
    char part[256];
    snprintf(part, sizeof(part), "%s", devices[0].platform_name + 1);
    for (char *letter = part; *letter; letter++) {
        *letter = (char)(isupper((unsigned char)*letter) ? tolower((unsigned char)*letter)
                                                         : toupper((unsigned char)*letter));
    }
    assert_int_equal(device_choose(part, 0, &chosen), 0);
    assert_ptr_equal(chosen.id, devices[0].id);
}

static void check_missing(const char *word) {
    struct device chosen;
    assert_int_equal(device_choose(word, 0, &chosen), -1);
    assert_non_null(strstr(error_text(), word));
    for (size_t i = 0; i < device_count; i++) {
        assert_non_null(strstr(error_text(), devices[i].name));
    }
}

static void test_missing(void **state) {
    (void)state;
    check_missing("no-such-device");
    check_missing("987654");
    check_missing("99999999999999999999999999");
    check_missing("-1");
    check_missing("");
}

static size_t count_gpus(void) {
    size_t gpus = 0;
    for (size_t i = 0; i < device_count; i++) {
        gpus += devices[i].is_gpu;
    }
    return gpus;
}

static void test_words(void **state) {
    (void)state;
    struct device chosen, again;
    size_t gpus = count_gpus();
    assert_int_equal(device_choose("auto", 0, &chosen), 0);
    assert_true(chosen.is_gpu == (gpus > 0));
    if (!device_choose("cpu", 0, &chosen)) {
        assert_true(chosen.is_cpu);
    }
    if (!device_choose("pocl", 0, &chosen)) {
        assert_string_equal(chosen.platform_name, "Portable Computing Language");
    }
    if (!gpus) {
        check_missing("gpu");
        return;
    }
    assert_int_equal(device_choose("gpu", 1, &chosen), 0);
    assert_true(chosen.is_gpu);
    assert_int_equal(device_choose("gpu", (unsigned)gpus + 1, &again), 0);
    assert_ptr_equal(chosen.id, again.id);
}

static void test_local_rank(void **state) {
    (void)state;
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
    for (size_t i = 0; i < 3; i++) {
        unsetenv(names[i]);
    }
    assert_int_equal(host_local_rank(), 0);
    for (size_t i = 0; i < 3; i++) {
        setenv(names[i], "3", 1);
        assert_int_equal(host_local_rank(), 3);
        setenv(names[i], "-3", 1);
        assert_int_equal(host_local_rank(), 0);
        setenv(names[i], "3x", 1);
        assert_int_equal(host_local_rank(), 0);
        unsetenv(names[i]);
    }
    setenv("SLURM_LOCALID", "5", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "2", 1);
    assert_int_equal(host_local_rank(), 2);
    unsetenv("SLURM_LOCALID");
    unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");
}

static void test_host_cores(void **state) {
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    assert_int_equal(host_cores(), CPU_COUNT(&all));
    int first = 0;
    while (!CPU_ISSET(first, &all)) {
        first++;
    }
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(host_cores(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

/* Without a home, PoCL's cache goes to a private folder; what the user set stays. */
static void test_environment(void **state) {
    (void)state;
    char folder[] = "/tmp/hc-test-device-XXXXXX", trap[256];
    struct stat status;
    assert_non_null(mkdtemp(folder));
    unsetenv("HOME");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("POCL_CACHE_DIR");
    setenv("TMPDIR", folder, 1);
    setenv("POCL_MAX_PTHREAD_COUNT", "1", 1);
    device_prepare_environment();
    assert_string_equal(getenv("POCL_MAX_PTHREAD_COUNT"), "1");
    const char *chosen = getenv("POCL_CACHE_DIR");
    assert_non_null(chosen);
    assert_int_equal(strncmp(chosen, folder, strlen(folder)), 0);
    assert_int_equal(stat(chosen, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0700);

    /* A folder of that name that others can write is not taken. */
    snprintf(trap, sizeof(trap), "%s", chosen);
    assert_int_equal(chmod(trap, 0777), 0);
    unsetenv("POCL_CACHE_DIR");
    device_prepare_environment();
    assert_string_not_equal(getenv("POCL_CACHE_DIR"), trap);
    rmdir(getenv("POCL_CACHE_DIR"));
    rmdir(trap);
    rmdir(folder);

    setenv("POCL_CACHE_DIR", "/nowhere", 1);
    device_prepare_environment();
    assert_string_equal(getenv("POCL_CACHE_DIR"), "/nowhere");
}

static void test_error_names(void **state) {
    (void)state;
    assert_string_equal(device_error_name(CL_SUCCESS), "CL_SUCCESS");
    assert_string_equal(device_error_name(CL_OUT_OF_RESOURCES), "CL_OUT_OF_RESOURCES");
    assert_string_equal(device_error_name(CL_INVALID_DEVICE_PARTITION_COUNT), "CL_INVALID_DEVICE_PARTITION_COUNT");
    assert_string_equal(device_error_name(-12345), "OpenCL error -12345");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_description), cmocka_unit_test(test_index),       cmocka_unit_test(test_substring),
        cmocka_unit_test(test_missing),     cmocka_unit_test(test_words),       cmocka_unit_test(test_local_rank),
        cmocka_unit_test(test_host_cores),  cmocka_unit_test(test_error_names), cmocka_unit_test(test_environment),
    };
    device_prepare_environment();
    return cmocka_run_group_tests(tests, list_devices, free_devices);
}
