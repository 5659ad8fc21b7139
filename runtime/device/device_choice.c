#include "runtime/device/device.h"
#include "runtime/system/error.h"
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define VULKAN_WORD "vulkan"

/* ---- cards */

const char *device_address_text(const struct device_address *address, char text[DEVICE_ADDRESS_SIZE]) {
    char domain[16] = "";
    text[0] = '\0';
    if (address->has_domain) {
        snprintf(domain, sizeof(domain), "%04x:", address->domain);
    }
    if (address->known) {
        snprintf(text, DEVICE_ADDRESS_SIZE, "%s%02x:%02x.%x", domain, address->bus, address->device,
                 address->function);
    }
    return text;
}

static bool is_vulkan(const struct device *device) {
    return !strcmp(device->platform_name, VULKAN_PLATFORM);
}

/* A platform that is registered twice lists the same devices again, and Vulkan lists a card once for each of its
 * drivers, such as RADV and AMDVLK. Several devices of another platform at one address are parts of a card (tiles,
 * MIG instances), each with memory and units of its own. Where a driver does not know the domain of an address, the
 * rest decides. */
static bool is_same_card(const struct device *first, const struct device *second) {
    const struct device_address *a = &first->address, *b = &second->address;
    if (first->id && first->id == second->id) {
        return true;
    }
    return (first->platform != second->platform || is_vulkan(first)) && a->known && b->known && a->bus == b->bus &&
           a->device == b->device && a->function == b->function &&
           (!a->has_domain || !b->has_domain || a->domain == b->domain);
}

/* Which of several drivers of one card is taken: the lowest. The vendors' own know the card best, then those that
 * go through the vendor's, then Mesa's, then our own. */
static size_t preference(const struct device *device) {
    static const char *const others[] = {POCL_PLATFORM, "clvk", "rusticl", "Clover", VULKAN_PLATFORM};
    size_t i = 0;
    while (i < COUNT(others) && strcasecmp(device->platform_name, others[i])) {
        i++;
    }
    return i == COUNT(others) ? 0 : i + 1;
}

size_t device_card(const struct device *devices, size_t count, size_t index, bool only_vulkan) {
    size_t best = index;
    for (size_t i = 0; i < count; i++) {
        if (i != index && devices[i].is_gpu && devices[index].is_gpu && (!only_vulkan || is_vulkan(&devices[i])) &&
            is_same_card(&devices[i], &devices[index])) {
            const size_t new = preference(&devices[i]), old = preference(&devices[best]);
            best = new < old || (new == old &&i < best) ? i : best;
        }
    }
    return best;
}

/* Vulkan on a CPU is a GPU that is simulated, which is for tests: whoever wants it names it. */
static bool is_simulated(const struct device *device) {
    return device->is_cpu && is_vulkan(device);
}

size_t device_order_gpus(const struct device *devices, size_t count, bool only_vulkan, size_t *order) {
    size_t gpus = 0;
    for (int integrated = 0; integrated < 2 && gpus == 0; integrated++) {
        for (size_t i = 0; i < count; i++) {
            const struct device *device = &devices[i];
            if (device->is_gpu && !is_simulated(device) && (only_vulkan ? is_vulkan(device) : device->compiles) &&
                device->shares_host_memory == integrated && device_card(devices, count, i, only_vulkan) == i) {
                order[gpus++] = i;
            }
        }
    }
    return gpus;
}

/* ---- choosing */

static const struct device *find_gpu(const struct device *devices, size_t count, bool only_vulkan,
                                     unsigned local_rank) {
    size_t order[DEVICE_MOST];
    const size_t gpus = device_order_gpus(devices, count, only_vulkan, order);
    return gpus ? &devices[order[local_rank % gpus]] : NULL;
}

/* The first CPU device that runs native kernels, since those get the host's BLAS; else the first at all. */
static const struct device *find_cpu(const struct device *devices, size_t count, bool only_pocl) {
    const struct device *found = NULL;
    for (size_t i = 0; i < count; i++) {
        const bool wanted = devices[i].is_cpu && !is_simulated(&devices[i]) &&
                            (!only_pocl || !strcmp(devices[i].platform_name, POCL_PLATFORM));
        if (wanted && (!found || (devices[i].native_kernels && !found->native_kernels))) {
            found = &devices[i];
        }
    }
    return found;
}

/* Whether a word is a number and nothing else. */
static bool read_index(const char *word, unsigned long long *index) {
    if (!*word || word[strspn(word, "0123456789")] != '\0') {
        return false;
    }
    errno = 0;
    *index = strtoull(word, NULL, 10);
    return !errno;
}

/* "vulkan", whose GPUs the ranks share, or "vulkan:N". */
static const struct device *find_vulkan(const struct device *devices, size_t count, const char *rest,
                                        unsigned local_rank) {
    unsigned long long index = 0;
    const struct device *found = *rest ? NULL : find_gpu(devices, count, true, local_rank);
    if (found || (*rest && !read_index(rest + 1, &index))) {
        return found;
    }
    for (size_t i = 0; i < count; i++) {
        if (is_vulkan(&devices[i]) && !index--) {
            return &devices[i];
        }
    }
    return NULL;
}

static const struct device *find(const struct device *devices, size_t count, const char *word,
                                 unsigned local_rank) {
    const size_t vulkan = strlen(VULKAN_WORD);
    unsigned long long index;
    if (!strcasecmp(word, "gpu")) {
        return find_gpu(devices, count, false, local_rank);
    }
    if (!strncasecmp(word, VULKAN_WORD, vulkan) && (!word[vulkan] || word[vulkan] == ':')) {
        return find_vulkan(devices, count, word + vulkan, local_rank);
    }
    if (!strcasecmp(word, "cpu") || !strcasecmp(word, "pocl")) {
        return find_cpu(devices, count, !strcasecmp(word, "pocl"));
    }
    if (!strcasecmp(word, "auto")) {
        const struct device *gpu = find_gpu(devices, count, false, local_rank);
        const struct device *found = gpu ? gpu : find_cpu(devices, count, false);
        /* an accelerator is better than nothing */
        return found || !count || is_simulated(&devices[0]) ? found : &devices[0];
    }
    if (read_index(word, &index) && index < count) {
        return &devices[index];
    }
    for (size_t i = 0; i < count && *word; i++) {
        if (strcasestr(devices[i].name, word) || strcasestr(devices[i].platform_name, word)) {
            return &devices[i];
        }
    }
    return NULL;
}

/* Names the variables that are set of those by which drivers and loaders hide devices, beginning with "; "; "" if
 * there is none. */
static const char *hidden_text(void) {
    static const char *const names[] = {"OCL_ICD_VENDORS",     "OCL_ICD_FILENAMES",    "OPENCL_VENDOR_PATH",
                                        "POCL_DEVICES",        "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                                        "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",   "ZE_AFFINITY_MASK"};
    static char text[1024];
    text[0] = '\0';
    for (size_t i = 0; i < COUNT(names); i++) {
        const char *value = getenv(names[i]);
        const size_t used = strlen(text);
        if (value) {
            snprintf(text + used, sizeof text - used, "%s%s=%.80s", used ? ", " : "; devices may be hidden by ",
                     names[i], value);
        }
    }
    const size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s", used ? " in the environment" : "");
    return text;
}

const char *device_missing_text(void) {
    static char text[2048];
    const char *problem = device_pocl_problem();
    snprintf(text, sizeof text,
             "there is no OpenCL device on this machine; install a GPU's OpenCL driver, or for the CPU PoCL or "
             "`pip install hctrain[cpu]`%s",
             hidden_text());
    return problem ? problem : text;
}

static int fail_choice(const struct device *devices, size_t count, const char *word) {
    const bool is_gpu = !strcasecmp(word, "gpu");
    const bool on_vulkan = is_gpu || !strncasecmp(word, VULKAN_WORD, strlen(VULKAN_WORD));
    const char *problem = on_vulkan ? vulkan_driver_problem() : device_pocl_problem();
    char list[4096] = "";
    for (size_t i = 0; i < count; i++) {
        const size_t used = strlen(list);
        snprintf(list + used, sizeof(list) - used, "%s%zu: %s (%s)", i ? ", " : "", i, devices[i].name,
                 devices[i].platform_name);
    }
    if (!count) {
        return error_set("device \"%s\": %s", word, problem ? problem : device_missing_text());
    }
    if (is_gpu) {
        error_set(
            "there is no GPU with an OpenCL or Vulkan driver (docs/troubleshooting.md); --device cpu uses the "
            "processor. Devices: %s%s",
            list, hidden_text());
    } else {
        error_set("no OpenCL device \"%s\"; there are: %s%s", word, list, hidden_text());
    }
    return problem ? error_set("%s; %s", error_text(), problem) : -1;
}

int device_choose_from(const struct device *devices, size_t count, const char *word, unsigned local_rank,
                       struct device *chosen) {
    size_t order[DEVICE_MOST];
    const struct device *found = find(devices, count, word, local_rank);
    if (!found) {
        return fail_choice(devices, count, word);
    }
    *chosen = *found;
    chosen->gpus = (unsigned)device_order_gpus(devices, count, is_vulkan(found), order);
    return 0;
}

/* Devices on Vulkan are listed only where no other answers the word, and one of theirs could. */
int device_choose(const char *word, unsigned local_rank, struct device *chosen) {
    struct device *devices;
    size_t count;
    unsigned long long index;
    if (device_list(false, &devices, &count)) {
        return -1;
    }
    bool is_answered = !strcasecmp(word, "cpu") || !strcasecmp(word, "pocl");
    if (!strcasecmp(word, "auto")) {
        is_answered = find_gpu(devices, count, false, local_rank) != NULL;
    } else if (read_index(word, &index)) { /* of the list with Vulkan, before it is a part of a name */
        is_answered = index < count;
    } else if (!is_answered) {
        is_answered = find(devices, count, word, local_rank) != NULL;
    }
    if (!is_answered) {
        free(devices);
        if (device_list(true, &devices, &count)) {
            return -1;
        }
    }
    const int status = device_choose_from(devices, count, word, local_rank, chosen);
    free(devices);
    return status;
}
