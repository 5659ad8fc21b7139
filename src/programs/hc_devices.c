/* hc_devices: lists OpenCL devices, and shows which one each --device word picks. */
#include "runtime/device/device.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include "runtime/system/message.h"
#include "src/operations/policy.h"
#include "src/programs/program.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct program program = {
    .info.name = "hc_devices",
    .info.summary =
        "Lists the OpenCL devices of this machine, numbered as --device N takes them, and the limits of containers "
        "and jobs, and shows which device each word that --device takes picks for this process. Exit status 1 "
        "means that there is none. --compile fills the cache of kernels for later runs.",
    .info.usage = "[OPTIONS]",
    .info.examples = "hc_devices\nRUSTICL_ENABLE=llvmpipe hc_devices\n"
                     "hc_devices --compile configs/M.conf",
    .computes = true,
};

static bool verbose;
static char *compiled;

static struct option_spec options[] = {
    BOOL("verbose", &verbose, "false",
         "also show what kernels do differently on each device: vectors, work-groups, tiles, what is fused"),
    TEXT("compile", &compiled, NULL,
         "config file of a run: compile the kernels that it needs, as hc_train --compile-only does, and stop"),
};

static void print_device(const struct device *devices, size_t count, size_t index) {
    const double mebibyte = 1024.0 * 1024.0;
    const struct device *device = &devices[index];
    const char *type = device->is_gpu ? "GPU" : "accelerator";
    if (device->is_cpu) {
        type = device->is_gpu ? "simulator" : "CPU";
    }
    message_print(stdout, "%zu: %s\n", index, device->name);
    message_print(stdout, "   platform      %s\n", device->platform_name);
    message_print(stdout, "   version       %s, driver %s\n", device->version, device->driver);
    message_print(stdout, "   type          %s, %s, float vectors of %u\n", type,
                  message_count(device->compute_units, "compute unit").text, device->vector_width);
    if (device->address.known) {
        char text[DEVICE_ADDRESS_SIZE];
        const size_t card = device_card(devices, count, index, false);
        message_print(stdout, "   PCI address   %s", device_address_text(&device->address, text));
        if (card != index) {
            message_print(stdout, ": the same card as %zu, which --device gpu takes for it", card);
        }
        putchar('\n');
    }
    message_print(stdout, "   memory        %.0f MiB%s, buffers up to %.0f MiB\n",
                  (double)device->memory_bytes / mebibyte,
                  device->shares_host_memory ? " (the host's, available now)" : "",
                  (double)device->max_buffer_bytes / mebibyte);
    message_print(stdout, "   work-groups   up to %zu work-items, %.0f KiB of local memory\n",
                  device->max_work_group, (double)device->local_bytes / 1024.0);
    const char *bf16 = device->matrix_cores.names[ELEMENT_BF16], *fp16 = device->matrix_cores.names[ELEMENT_FP16];
    if (device->native_kernels && !*bf16 && !*fp16) {
        message_print(stdout, "   16 bits       this CPU has no instructions for them: fp32 is faster\n");
    }
    if (device->native_kernels && *bf16) {
        message_print(stdout, "   bf16          %s\n", bf16);
    }
    if (device->native_kernels && *fp16) {
        message_print(stdout, "   fp16          %s\n", fp16);
    }
    message_print(stdout, "   host kernels  %s\n", device->native_kernels ? "yes: --gemm cblas works" : "no");
}

/* For the shape of GPT-2 small with 4 streams. */
static void print_policy(const struct device *device, size_t index) {
    char word[24];
    struct compute *compute;
    const struct operation_shape shape = {.streams = 4,
                                          .channels = 768,
                                          .heads = 12,
                                          .vocabulary = 50304,
                                          .type = ELEMENT_BF16,
                                          .residual = residual_find("mhc"),
                                          .settings = residual_settings_default()};
    snprintf(word, sizeof word, "%zu", index);
    message_print(stdout, "   kernels of GPT-2 small in bf16, mhc with 4 streams:\n");
    if (compute_open(&compute, &(struct compute_options){.device = word, .cache_dir = ""})) {
        message_print(stdout, "   %s cannot be opened: %s\n", device->name, error_text());
        return;
    }
    const struct policy policy = policy_make(compute, &shape);
    policy_print(stdout, &policy);
    compute_close(compute);
}

static int print_all(void) {
    static const char *const words[] = {"auto", "gpu", "cpu", "pocl", "vulkan"};
    const char *problem = vulkan_driver_problem();
    struct group_limits limits;
    struct device *devices;
    size_t count, order[DEVICE_MOST];
    if (device_list(true, &devices, &count)) {
        return PROGRAM_FAILED;
    }
    for (size_t i = 0; i < count; i++) {
        print_device(devices, count, i);
        if (verbose) {
            print_policy(&devices[i], i);
        }
        if (!devices[i].compiles && !problem) {
            problem = "the compiler clspv is missing, so that only programs compiled before can run; "
                      "`pip install pyclspv` or `ci/setup.sh vulkan` installs it";
        }
    }
    if (!count) {
        message_print(stdout, "No device: %s\n", device_missing_text());
    }
    const size_t gpus = device_order_gpus(devices, count, false, order);
    if (gpus) {
        message_print(stdout, "\n--device gpu gives the ranks of a node, in turn:");
        for (size_t i = 0; i < gpus; i++) {
            message_print(stdout, "%s %zu", i ? "," : "", order[i]);
        }
        message_print(stdout, " (%s)\n",
                      devices[order[0]].shares_host_memory ? "integrated GPUs: there is none with memory of its own"
                                                           : "each card once, those with memory of their own");
    }
    if (problem) {
        message_print(stdout, "\nVulkan: %s\n", problem);
    }
    control_groups_read("", &limits); /* what containers and jobs limit */
    if (limits.memory < SIZE_MAX) {
        message_print(stdout,
                      "\nMemory limit of this process's control groups: %zu MiB, of which %zu MiB are left\n",
                      limits.memory >> 20, limits.memory_left >> 20);
    }
    if (limits.cores < (double)INFINITY) {
        message_print(stdout, "\nCores by the CPU quota of this process's control groups: %.3g; threads: %u\n",
                      limits.cores, host_cores());
    }
    free(devices);
    message_print(stdout,
                  count ? "\nWhat the words pick for rank %u of this node:\n"
                        : "What the words pick for rank %u of this node:\n",
                  host_local_rank());
    for (size_t i = 0; i < COUNT(words); i++) {
        struct device device;
        if (device_choose(words[i], host_local_rank(), &device)) {
            message_print(stdout, "   --device %-6s none: %s\n", words[i], error_text());
        } else {
            message_print(stdout, "   --device %-6s %s (%s)\n", words[i], device.name, device.platform_name);
        }
    }
    if (files_flush(stdout, "the list")) {
        return PROGRAM_FAILED;
    }
    error_clear(); /* stdout has it */
    return count ? PROGRAM_DONE : PROGRAM_FAILED;
}

/* Becomes hc_train, which lies beside this program. Returns only on failure. */
static int compile_kernels(void) {
    char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof "hc_train");
    path[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(path, '/');
    if (!slash) {
        error_set_errno("cannot find hc_train beside this program");
        return PROGRAM_FAILED;
    }
    strcpy(slash + 1, "hc_train");
    execv(path, (char *[]){"hc_train", "--config", compiled, "--compile-only", NULL});
    error_set_errno("cannot run %s", path);
    return PROGRAM_FAILED;
}

int main(int argc, char **argv) {
    if (program_begin(&program, options, COUNT(options), argc, argv)) {
        program.status = compiled ? compile_kernels() : print_all();
    }
    return program_end(&program);
}
