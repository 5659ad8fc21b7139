/* Any bytes as a compiled program for Vulkan. What is accepted keeps all limits that launches rely on. */
#include "runtime/vulkan/objects.h"
#include "tests/fuzz/fuzz_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_argument(const struct module *module, const struct entry *entry,
                           const struct argument *argument) {
    const size_t end = (size_t)argument->offset + argument->size;
    fuzz_require(argument->kind != ARGUMENT_PUSHED || end <= module->push_bytes,
                 "an argument is behind what is pushed");
    fuzz_require(!argument->is_address || (argument->kind != ARGUMENT_BUFFER && argument->size == 8), "no address");
    fuzz_require(argument->kind != ARGUMENT_PLAIN || end <= entry->plain_bytes,
                 "an argument is behind the plain ones");
}

/* Vulkan takes a binding once. */
static void check_bindings(const struct entry *entry) {
    for (unsigned i = 0; i < entry->count; i++) {
        if (entry->arguments[i].kind != ARGUMENT_BUFFER) {
            continue;
        }
        const uint32_t binding = entry->arguments[i].binding;
        fuzz_require(!entry->plain_bytes || binding != entry->plain_binding,
                     "a buffer has the plain arguments' binding");
        for (unsigned j = 0; j < i; j++) {
            fuzz_require(entry->arguments[j].kind != ARGUMENT_BUFFER || entry->arguments[j].binding != binding,
                         "two buffers have one binding");
        }
    }
}

static void check(const struct module *module) {
    fuzz_require(module->push_bytes <= PLAIN_BYTES && module->push_bytes % 4 == 0, "too much is pushed");
    fuzz_require(!module->has_offset || module->offset_at + 12 <= module->push_bytes, "the offset is not pushed");
    for (unsigned i = 0; i < module->count; i++) {
        const struct entry *entry = &module->entries[i];
        fuzz_require(memchr(entry->name, 0, sizeof entry->name), "a name does not end");
        fuzz_require(entry->count <= KERNEL_ARGUMENTS && entry->plain_bytes <= PLAIN_BYTES, "too many arguments");
        check_bindings(entry);
        for (unsigned j = 0; j < entry->count; j++) {
            check_argument(module, entry, &entry->arguments[j]);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const struct device_features features = {0};
    struct module module;
    const char *problem = NULL;
    uint32_t *words = malloc(bytes ? bytes : 1); /* words are where they may be, and nothing is behind them */
    fuzz_require(words, "out of memory");
    memcpy(words, data, bytes);
    if (vulkan_reflect(words, bytes, &module, &problem) == 0) {
        check(&module);
        vulkan_missing(words, bytes, &features);
        vulkan_module_release(&module);
    } else {
        fuzz_require(problem && *problem, "a failure without a reason");
        fuzz_require(!module.entries && !module.count, "a failure leaves kernels");
    }
    free(words);
    return 0;
}
