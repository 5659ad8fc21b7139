/* Finding and choosing devices, and the environment. */
#include "runtime/device/device.h"
#include "runtime/system/error.h"
#include "tests/support/test.h"
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct device *devices;
static size_t device_count;

static int list_devices(void **state) {
    (void)state;
    return device_list(false, &devices, &device_count) || !device_count;
}

static int free_devices(void **state) {
    (void)state;
    free(devices);
    return 0;
}

UNIT_TEST(test_description) {
    for (size_t i = 0; i < device_count; i++) {
        const struct device *device = &devices[i];
        assert_true(*device->name && *device->platform_name && *device->version);
        assert_true(device->compute_units > 0 && device->vector_width > 0 && device->max_work_group > 0);
        assert_true(device->memory_bytes > (1 << 20) && device->max_buffer_bytes > (1 << 20));
        assert_true(!device->native_kernels || device->shares_host_memory);
    }
}

UNIT_TEST(test_index) {
    struct device chosen;
    for (size_t i = 0; i < device_count; i++) {
        char word[32];
        snprintf(word, sizeof(word), "%zu", i);
        assert_int_equal(device_choose(word, 0, &chosen), 0);
        assert_ptr_equal(chosen.id, devices[i].id);
    }
}

UNIT_TEST(test_substring) {
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
    assert_error(device_choose(word, 0, &chosen), word);
    for (size_t i = 0; i < device_count; i++) {
        assert_error_text(devices[i].name);
    }
}

UNIT_TEST(test_missing) {
    check_missing("no-such-device");
    check_missing("987654");
    check_missing("99999999999999999999999999");
    check_missing("-1");
    check_missing("");
}

UNIT_TEST(test_words) {
    struct device chosen, again;
    size_t order[DEVICE_MOST];
    size_t gpus = device_order_gpus(devices, device_count, false, order);
    assert_int_equal(device_choose("auto", 0, &chosen), 0);
    assert_true(chosen.is_gpu == (gpus > 0));
    if (!device_choose("cpu", 0, &chosen)) {
        assert_true(chosen.is_cpu);
    }
    if (!device_choose("pocl", 0, &chosen)) {
        assert_string_equal(chosen.platform_name, "Portable Computing Language");
    }
    if (!gpus) {
        assert_error(device_choose("gpu", 0, &chosen), "there is no GPU with an OpenCL or Vulkan driver");
        return;
    }
    assert_int_equal(device_choose("gpu", 1, &chosen), 0);
    assert_true(chosen.is_gpu && chosen.gpus == gpus);
    assert_int_equal(device_choose("gpu", (unsigned)gpus + 1, &again), 0);
    assert_ptr_equal(chosen.id, again.id);
}

/* ---- which GPU, in machines that are not here */

#define AT(bus_number)          .address = {.known = true, .has_domain = true, .bus = bus_number}
#define AT_BUS_ONLY(bus_number) .address = {.known = true, .bus = bus_number}
/* The device's own number is its id, by which the chosen one is known. */
#define HANDLE(type, number) ((type)(uintptr_t)(number))
#define MADE(platform_number, platform_text, number)                                                               \
    .platform = HANDLE(cl_platform_id, platform_number), .id = HANDLE(cl_device_id, number), .name = "made",       \
    .platform_name = platform_text, .compiles = true

static const struct device host = {MADE(90, "Portable Computing Language", 900), .is_cpu = true,
                                   .native_kernels = true, .shares_host_memory = true};
static const struct device integrated = {MADE(1, "Intel(R) OpenCL Graphics", 100), .is_gpu = true,
                                         .shares_host_memory = true, AT(0x10)};

/* That "gpu" goes through the devices with these ids (0 ends them), again and again, and so does "auto". */
static void check_order(const struct device *list, size_t count, const uintptr_t *ids) {
    size_t expected = 0, order[DEVICE_MOST];
    while (ids[expected]) {
        expected++;
    }
    assert_int_equal(device_order_gpus(list, count, false, order), expected);
    for (unsigned rank = 0; rank < 2 * expected + 1; rank++) {
        static const char *const words[] = {"gpu", "auto"};
        for (size_t i = 0; i < 2; i++) {
            struct device chosen;
            assert_int_equal(device_choose_from(list, count, words[i], rank, &chosen), 0);
            assert_int_equal((uintptr_t)chosen.id, ids[rank % expected]);
            assert_int_equal(chosen.gpus, expected);
        }
    }
}

#define CHECK_ORDER(list, ...) check_order((list), COUNT(list), (const uintptr_t[]){__VA_ARGS__, 0})

UNIT_TEST(discrete_gpus_come_before_integrated_ones) {
    const struct device list[] = {host, integrated, {MADE(2, "NVIDIA CUDA", 200), .is_gpu = true, AT(0x41)}};
    struct device chosen;
    CHECK_ORDER(list, 200);
    assert_int_equal(device_choose_from(list, 3, "1", 0, &chosen), 0); /* who names it gets it */
    assert_ptr_equal(chosen.id, integrated.id);
    assert_int_equal(device_choose_from(list, 3, "intel", 0, &chosen), 0);
    assert_ptr_equal(chosen.id, integrated.id);
    assert_int_equal(device_choose_from(list, 3, "cpu", 0, &chosen), 0);
    assert_ptr_equal(chosen.id, host.id);
}

UNIT_TEST(integrated_gpus_are_taken_where_there_are_no_others) {
    const struct device one[] = {host, integrated};
    const struct device two[] = {integrated,
                                 host,
                                 {MADE(2, "Apple", 200), .is_gpu = true, .shares_host_memory = true}};
    CHECK_ORDER(one, 100);
    CHECK_ORDER(two, 100, 200);
}

UNIT_TEST(a_card_of_two_platforms_counts_once) {
    const struct device nvidia[2] = {{MADE(1, "NVIDIA CUDA", 101), .is_gpu = true, AT(0x41)},
                                     {MADE(1, "NVIDIA CUDA", 102), .is_gpu = true, AT(0x42)}};
    const struct device mesa[2] = {{MADE(2, "rusticl", 201), .is_gpu = true, AT(0x42)},
                                   {MADE(2, "rusticl", 202), .is_gpu = true, AT(0x41)}};
    const struct device pocl[2] = {{MADE(3, "Portable Computing Language", 301), .is_gpu = true, AT(0x41)},
                                   {MADE(3, "Portable Computing Language", 302), .is_gpu = true, AT(0x42)}};
    const struct device all[] = {mesa[0], mesa[1], pocl[0], nvidia[0], pocl[1], nvidia[1]};
    const struct device others[] = {mesa[0], pocl[1], mesa[1], pocl[0]};
    const struct device some[] = {mesa[0], nvidia[0], mesa[1]}; /* the vendor's driver knows one of them only */
    CHECK_ORDER(all, 101, 102);
    CHECK_ORDER(others, 302, 301);
    CHECK_ORDER(some, 201, 101);
    assert_int_equal(device_card(all, 6, 0, false), 5);
    assert_int_equal(device_card(all, 6, 2, false), 3);
    assert_int_equal(device_card(all, 6, 3, false), 3);
    /* an integrated card in Mesa's list is not a second one either */
    struct device both[] = {integrated, integrated};
    both[0].platform = HANDLE(cl_platform_id, 2);
    both[0].id = HANDLE(cl_device_id, 203);
    strcpy(both[0].platform_name, "rusticl");
    CHECK_ORDER(both, 100);
    /* a platform that is registered twice */
    const struct device twice[] = {nvidia[0], nvidia[1], nvidia[0], nvidia[1]};
    CHECK_ORDER(twice, 101, 102);
}

UNIT_TEST(equal_cards_are_told_apart) {
    struct device list[] = {{MADE(1, "NVIDIA CUDA", 101), .is_gpu = true, AT(0x41)},
                            {MADE(1, "NVIDIA CUDA", 102), .is_gpu = true, AT(0x61)}};
    CHECK_ORDER(list, 101, 102);
    list[1].address = list[0].address; /* parts of one card, each with memory of its own */
    CHECK_ORDER(list, 101, 102);
}

UNIT_TEST(eight_ranks_get_eight_cards) {
    struct device list[18] = {host, integrated};
    for (unsigned i = 0; i < 8; i++) {
        const struct device mesa = {MADE(2, "rusticl", 201 + i), .is_gpu = true, AT(0xc0 - 0x10 * i)};
        const struct device amd = {MADE(3, "AMD Accelerated Parallel Processing", 301 + i), .is_gpu = true,
                                   AT(0x10 * (i + 1) + 0x40)};
        list[2 + i] = mesa;
        list[10 + i] = amd;
    }
    CHECK_ORDER(list, 301, 302, 303, 304, 305, 306, 307, 308);
}

UNIT_TEST(without_an_address_cards_are_different) {
    const struct device list[] = {{MADE(1, "NVIDIA CUDA", 101), .is_gpu = true},
                                  {MADE(2, "rusticl", 201), .is_gpu = true},
                                  {MADE(2, "rusticl", 202), .is_gpu = true, AT(0x41)}};
    CHECK_ORDER(list, 101, 201, 202);
}

/* Clouds give each card a domain of its own, and the same bus. */
UNIT_TEST(domains_count_where_they_are_known) {
    struct device list[] = {{MADE(1, "AMD Accelerated Parallel Processing", 101), .is_gpu = true, AT_BUS_ONLY(1)},
                            {MADE(1, "AMD Accelerated Parallel Processing", 102), .is_gpu = true, AT_BUS_ONLY(1)},
                            {MADE(2, "rusticl", 201), .is_gpu = true, AT(1)},
                            {MADE(2, "rusticl", 202), .is_gpu = true, AT(1)}};
    list[3].address.domain = 1;
    CHECK_ORDER(list, 101, 102); /* those of two platforms may be the same: never two ranks on one card */
    list[0].address.has_domain = list[1].address.has_domain = true;
    list[1].address.domain = 2;
    CHECK_ORDER(list, 101, 102, 202);
}

UNIT_TEST(no_gpu_is_none) {
    struct device chosen;
    const struct device two[] = {host, {MADE(1, "FPGA", 100)}};
    assert_error(device_choose_from(two, 2, "gpu", 0, &chosen),
                 "there is no GPU with an OpenCL or Vulkan driver (docs/troubleshooting.md); "
                 "--device cpu uses the processor. Devices: 0: ");
    assert_error_text(", 1: ");
    assert_int_equal(device_choose_from(two, 2, "auto", 3, &chosen), 0);
    assert_ptr_equal(chosen.id, host.id);
    assert_int_equal(chosen.gpus, 0);
    assert_int_equal(device_choose_from(two + 1, 1, "auto", 3, &chosen), 0); /* better than nothing */
    assert_int_equal(device_choose_from(two, 0, "auto", 0, &chosen), -1);
}

/* Vulkan on a CPU is for whoever names it; Vulkan on a card is a driver like others, and the last choice. */
UNIT_TEST(simulated_vulkan_is_chosen_by_name_only) {
    struct device chosen;
    struct device list[] = {{MADE(3, "hctrain Vulkan", 301), .is_cpu = true, .is_gpu = true,
                             .shares_host_memory = true},
                            host,
                            {MADE(3, "hctrain Vulkan", 302), .is_gpu = true, AT(1)},
                            {MADE(2, "rusticl", 201), .is_gpu = true, AT(1)}};
    assert_int_equal(device_choose_from(list, 1, "auto", 0, &chosen), -1);
    assert_int_equal(device_choose_from(list, 1, "cpu", 0, &chosen), -1);
    assert_int_equal(device_choose_from(list, 1, "gpu", 0, &chosen), -1);
    assert_int_equal(device_choose_from(list, 2, "vulkan", 0, &chosen), 0);
    assert_ptr_equal(chosen.id, list[0].id);
    assert_int_equal(device_choose_from(list, 2, "auto", 0, &chosen), 0);
    assert_ptr_equal(chosen.id, host.id);
    assert_int_equal(device_choose_from(list, 2, "cpu", 0, &chosen), 0);
    assert_ptr_equal(chosen.id, host.id);
    assert_int_equal(device_choose_from(list, 3, "auto", 0, &chosen), 0);
    assert_ptr_equal(chosen.id, list[2].id);
    CHECK_ORDER(list, 201);
}

/* "vulkan" deals out cards as "gpu" does, whoever else offers them; without a compiler only its words choose
 * one. */
UNIT_TEST(vulkan_is_dealt_out_and_numbered) {
    struct device chosen;
    struct device list[] = {{MADE(2, "NVIDIA CUDA", 200), .is_gpu = true, AT(1)},
                            {MADE(3, "hctrain Vulkan", 300), .is_cpu = true, .is_gpu = true,
                             .shares_host_memory = true},
                            {MADE(3, "hctrain Vulkan", 301), .is_gpu = true, .shares_host_memory = true, AT(3)},
                            {MADE(3, "hctrain Vulkan", 302), .is_gpu = true, AT(1)},
                            {MADE(3, "hctrain Vulkan", 303), .is_gpu = true, AT(2)}};
    const size_t count = COUNT(list);
    static const struct {
        const char *word;
        unsigned rank;
        int number;
    } cases[] = {{"vulkan", 0, 3}, {"VULKAN", 1, 4}, {"vulkan", 2, 3}, {"vulkan:0", 5, 1}, {"vulkan:1", 0, 2},
                 {"gpu", 0, 0},    {"gpu", 1, 4},    {"auto", 0, 0},   {"4", 0, 4}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(device_choose_from(list, count, cases[i].word, cases[i].rank, &chosen), 0);
        assert_ptr_equal(chosen.id, list[cases[i].number].id);
        assert_int_equal(chosen.gpus, 2);
    }
    static const char *const refused[] = {"vulkan:4", "vulkan:", "vulkan:x", "vulkan:-1",
                                          "vulkan:99999999999999999999"};
    for (size_t i = 0; i < COUNT(refused); i++) {
        assert_error(device_choose_from(list, count, refused[i], 0, &chosen), refused[i]);
    }
    struct device twice[] = {{MADE(3, "hctrain Vulkan", 300), .is_gpu = true, AT(1)},
                             {MADE(3, "hctrain Vulkan", 301), .is_gpu = true, AT(1)}};
    assert_int_equal(device_choose_from(twice, 2, "vulkan", 1, &chosen), 0); /* two drivers of a card */
    assert_ptr_equal(chosen.id, twice[0].id);
    list[4].compiles = false;
    assert_int_equal(device_choose_from(list, count, "gpu", 1, &chosen), 0);
    assert_ptr_equal(chosen.id, list[0].id);
    assert_int_equal(device_choose_from(list, count, "vulkan", 1, &chosen), 0);
    assert_ptr_equal(chosen.id, list[4].id);
}

/* ---- the addresses that drivers report */

/* How devices report an address: the numbers of values and the values, or bytes. */
struct reported {
    cl_device_info what[3]; /* 0: no more */
    cl_uint values[3];
    unsigned char bytes[24]; /* instead of the first value */
    size_t length;           /* of bytes; 0: none */
    const char *expected;
};

enum { KHRONOS = 0x410F, NVIDIA_BUS = 0x4008, NVIDIA_SLOT, NVIDIA_DOMAIN, AMD = 0x4037 };

static const struct reported addresses[] = {
    {.expected = ""},
    {{KHRONOS}, {0}, {1, 0, 0, 0, 0x41, 0, 0, 0, 2, 0, 0, 0, 3}, 16, "0001:41:02.3"},
    {{KHRONOS}, {0}, {0}, 16, ""},
    /* a domain as virtual machines have it */
    {{NVIDIA_BUS, NVIDIA_SLOT, NVIDIA_DOMAIN}, {0xc1, 0x1f << 3 | 5, 0x10000}, {0}, 0, "10000:c1:1f.5"},
    {{NVIDIA_BUS, NVIDIA_SLOT}, {0xc1, 0x1f << 3 | 5}, {0}, 0, "c1:1f.5"},
    {{NVIDIA_BUS}, {0xc1}, {0}, 0, ""},
    {{AMD}, {0}, {[21] = 0xe3, [22] = 4, [23] = 1}, 24, ""}, /* of an unknown type */
    {{AMD}, {0}, {[0] = 1, [21] = 0xe3, [22] = 4, [23] = 1}, 24, "e3:04.1"},
    {{AMD}, {1}, {0}, 0, ""}, /* of another size */
};

/* What devices report while a test runs. */
static const struct reported *reported = &addresses[0];

/* In the place of the library's, which is behind it. */
cl_int clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t capacity, void *value, size_t *bytes) {
    __typeof__(&clGetDeviceInfo) next;
    void *symbol = dlsym(RTLD_NEXT, "clGetDeviceInfo");
    memcpy(&next, &symbol, sizeof next);
    for (size_t i = 0; i < 3; i++) {
        if (reported->what[i] == what) {
            *bytes = reported->length ? reported->length : sizeof(cl_uint);
            assert_true(capacity >= *bytes);
            memcpy(value, reported->length ? (const void *)reported->bytes : &reported->values[i], *bytes);
            return CL_SUCCESS;
        }
    }
    return next(id, what, capacity, value, bytes);
}

UNIT_TEST(addresses_are_read_as_each_driver_reports_them) {
    for (size_t i = 0; i < COUNT(addresses); i++) {
        struct device *list;
        size_t count;
        char text[DEVICE_ADDRESS_SIZE];
        reported = &addresses[i];
        assert_int_equal(device_list(false, &list, &count), 0);
        assert_true(count > 0);
        assert_string_equal(device_address_text(&list[0].address, text), reported->expected);
        assert_true(list[0].address.known == (*reported->expected != '\0'));
        free(list);
    }
    reported = &addresses[0];
}

/* ---- the environment, and names of errors */

/* Without a home, PoCL's cache goes to a private folder; what the user set stays. */
UNIT_TEST(test_environment) {
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

UNIT_TEST(test_error_names) {
    assert_string_equal(device_error_name(CL_SUCCESS), "CL_SUCCESS");
    assert_string_equal(device_error_name(CL_OUT_OF_RESOURCES), "CL_OUT_OF_RESOURCES");
    assert_string_equal(device_error_name(CL_INVALID_WORK_GROUP_SIZE), "CL_INVALID_WORK_GROUP_SIZE");
    assert_string_equal(device_error_name(-12345), "OpenCL error -12345");
}

DEVICE_TEST_MAIN(list_devices, free_devices)
