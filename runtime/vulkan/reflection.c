#include "runtime/system/memory.h"
#include "runtime/vulkan/objects.h"
#include <stdlib.h>
#include <string.h>

enum {
    SPIRV_MAGIC = 0x07230203,
    HEADER_WORDS = 5,
    MOST_IDS = 1 << 22,
    MOST_ENTRIES = 256,
    OP_STRING = 7,
    OP_EXTENDED_IMPORT = 11,
    OP_EXTENDED = 12,
    OP_CAPABILITY = 17,
    OP_CONSTANT = 43,
    CAPABILITY_FLOAT64 = 10,
};

/* Instructions of NonSemantic.ClspvReflection. */
enum {
    REFLECT_KERNEL = 1,
    REFLECT_ARGUMENT_INFO = 2,
    REFLECT_STORAGE_BUFFER = 3,
    REFLECT_UNIFORM_BUFFER = 4,
    REFLECT_PLAIN_STORAGE = 5,
    REFLECT_PLAIN_UNIFORM = 6,
    REFLECT_PLAIN_PUSHED = 7,
    REFLECT_SIZE_CONSTANTS = 12,
    REFLECT_GLOBAL_OFFSET = 15,
    REFLECT_REQUIRED_SIZE = 24,
    REFLECT_ADDRESS_PUSHED = 26,
    REFLECT_ADDRESS_UNIFORM = 27,
    REFLECT_LOCAL_SIZE = 42, /* of a variable in local memory */
};

/* An instruction: its words, and what it may refer to by id. */
struct reader {
    const uint32_t *words; /* of the whole module */
    size_t count;
    uint32_t bound;       /* ids are smaller */
    uint32_t *constants;  /* by id, 0 for what is none */
    const char **strings; /* by id, within the module and ended there; NULL for what is none */
    uint32_t set;         /* the id of the reflection's import, 0: none yet */
    struct module *module;
    const char *problem;
};

static int fail(struct reader *reader, const char *problem) {
    reader->problem = problem;
    return -1;
}

/* The text that begins at a word of an instruction; NULL where the instruction ends before it does. */
static const char *text_at(const uint32_t *words, size_t first, size_t length) {
    const char *text = (const char *)(words + first);
    return first < length && memchr(text, 0, (length - first) * sizeof *words) ? text : NULL;
}

static uint32_t constant(const struct reader *reader, uint32_t id) {
    return id < reader->bound ? reader->constants[id] : 0;
}

/* operands: function, name, number of arguments, ... */
static int add_entry(struct reader *reader, uint32_t id, const uint32_t *operands, size_t count) {
    struct module *module = reader->module;
    const char *name = count > 1 && operands[1] < reader->bound ? reader->strings[operands[1]] : NULL;
    const uint32_t arguments = count > 2 ? constant(reader, operands[2]) : KERNEL_ARGUMENTS;
    if (!name || strlen(name) >= sizeof module->entries->name) {
        return fail(reader, "a kernel has no name, or a long one");
    }
    if (arguments > KERNEL_ARGUMENTS || module->count == MOST_ENTRIES) {
        return fail(reader, "there are too many kernels, or arguments of one");
    }
    module->entries = memory_resize(module->entries, module->count + 1, sizeof *module->entries);
    struct entry *entry = &module->entries[module->count++];
    *entry = (struct entry){.id = id, .count = arguments};
    strcpy(entry->name, name);
    return 0;
}

static void raise(uint32_t *most, uint32_t value) {
    *most = value > *most ? value : *most;
}

/* operands: kernel, ordinal, then descriptor set and binding of a buffer; offset and size of what is pushed; or
 * set, binding, offset and size of another plain argument. */
static int add_argument(struct reader *reader, uint32_t what, struct entry *entry, const uint32_t *operands,
                        size_t count) {
    const bool is_buffer = what == REFLECT_STORAGE_BUFFER;
    const bool is_pushed = what == REFLECT_PLAIN_PUSHED || what == REFLECT_ADDRESS_PUSHED;
    const bool is_address = what == REFLECT_ADDRESS_PUSHED || what == REFLECT_ADDRESS_UNIFORM;
    const size_t needed = is_buffer || is_pushed ? 4 : 6;
    if (count < needed || constant(reader, operands[1]) >= entry->count) {
        return fail(reader, "an argument of a kernel is not described");
    }
    uint32_t numbers[6] = {0};
    for (size_t i = 1; i < needed; i++) {
        numbers[i] = constant(reader, operands[i]);
    }
    struct argument *argument = &entry->arguments[numbers[1]];
    if (!is_pushed && numbers[2] != 0) {
        return fail(reader, "a kernel has several descriptor sets");
    }
    if (is_buffer) {
        *argument = (struct argument){ARGUMENT_BUFFER, .binding = numbers[3]};
        return 0;
    }
    const uint32_t offset = numbers[needed - 2], size = numbers[needed - 1];
    if (offset > PLAIN_BYTES || size > PLAIN_BYTES - offset) {
        return fail(reader, "a kernel has too many arguments");
    }
    if (is_address && size != sizeof(uint64_t)) {
        return fail(reader, "a kernel has a buffer's address of another size than 8 bytes");
    }
    *argument =
        (struct argument){is_pushed ? ARGUMENT_PUSHED : ARGUMENT_PLAIN, is_address, .offset = offset, .size = size};
    if (is_pushed) {
        raise(&reader->module->push_bytes, offset + size);
    } else if (entry->plain_bytes && entry->plain_binding != numbers[3]) {
        return fail(reader, "a kernel has its arguments in several places");
    } else {
        raise(&entry->plain_bytes, offset + size);
        entry->plain_is_uniform = what != REFLECT_PLAIN_STORAGE;
        entry->plain_binding = numbers[3];
    }
    return 0;
}

static int reflect_one(struct reader *reader, const uint32_t *instruction, size_t length) {
    struct module *module = reader->module;
    const uint32_t what = instruction[4], *operands = instruction + 5;
    const size_t count = length - 5;
    struct entry *entry = NULL; /* of the kernel that the first operand names */
    for (unsigned i = 0; i < module->count && count; i++) {
        entry = module->entries[i].id == operands[0] ? &module->entries[i] : entry;
    }
    switch (what) {
    case REFLECT_KERNEL:
        return add_entry(reader, instruction[2], operands, count);
    case REFLECT_ARGUMENT_INFO:
    case REFLECT_LOCAL_SIZE:
        return 0;
    case REFLECT_GLOBAL_OFFSET: /* operands: offset, size */
        if (count < 2 || constant(reader, operands[1]) != 3 * sizeof(uint32_t) ||
            constant(reader, operands[0]) > PLAIN_BYTES / 2) {
            return fail(reader, "the global offset is not described");
        }
        module->has_offset = true;
        module->offset_at = constant(reader, operands[0]);
        raise(&module->push_bytes, module->offset_at + 3 * (uint32_t)sizeof(uint32_t));
        return 0;
    case REFLECT_SIZE_CONSTANTS:
        for (uint32_t i = 0; i < 3; i++) {
            if (count < 3 || constant(reader, operands[i]) != i) {
                return fail(reader, "the size of work-groups is not in the constants 0 to 2");
            }
        }
        return 0;
    case REFLECT_STORAGE_BUFFER:
    case REFLECT_PLAIN_STORAGE:
    case REFLECT_PLAIN_UNIFORM:
    case REFLECT_PLAIN_PUSHED:
    case REFLECT_ADDRESS_PUSHED:
    case REFLECT_ADDRESS_UNIFORM:
        if (entry) {
            return add_argument(reader, what, entry, operands, count);
        }
        break;
    case REFLECT_REQUIRED_SIZE:
        if (entry && count < 4) {
            return fail(reader, "a kernel's size of work-groups is not described");
        }
        for (size_t i = 0; entry && i < 3; i++) {
            entry->required[i] = constant(reader, operands[1 + i]);
        }
        if (entry) {
            return 0;
        }
        break;
    default:
        break;
    }
    return fail(reader, "it has constants or arguments of a kind that is not known");
}

/* Vulkan takes a binding once. */
static bool has_own_bindings(const struct entry *entry) {
    for (unsigned i = 0; i < entry->count; i++) {
        const struct argument *one = &entry->arguments[i];
        if (one->kind == ARGUMENT_BUFFER && entry->plain_bytes && one->binding == entry->plain_binding) {
            return false;
        }
        for (unsigned j = 0; j < i && one->kind == ARGUMENT_BUFFER; j++) {
            const struct argument *other = &entry->arguments[j];
            if (other->kind == ARGUMENT_BUFFER && other->binding == one->binding) {
                return false;
            }
        }
    }
    return true;
}

static int read_module(struct reader *reader) {
    for (size_t i = HEADER_WORDS, length; i < reader->count; i += length) {
        length = reader->words[i] >> 16;
        if (!length || length > reader->count - i) {
            return fail(reader, "an instruction does not end in it");
        }
        const uint32_t *instruction = reader->words + i, operation = instruction[0] & 0xffff;
        if (operation == OP_CONSTANT && length >= 4 && instruction[2] < reader->bound) {
            reader->constants[instruction[2]] = instruction[3];
        } else if (operation == OP_STRING && length >= 3 && instruction[1] < reader->bound) {
            reader->strings[instruction[1]] = text_at(instruction, 2, length);
        } else if (operation == OP_EXTENDED_IMPORT && length >= 3) {
            const char *name = text_at(instruction, 2, length);
            if (name && !strncmp(name, "NonSemantic.ClspvReflection.", 28)) {
                reader->set = instruction[1];
            }
        } else if (operation == OP_EXTENDED && length >= 5 && reader->set && instruction[3] == reader->set &&
                   reflect_one(reader, instruction, length)) {
            return -1;
        }
    }
    for (unsigned i = 0; i < reader->module->count; i++) {
        if (!has_own_bindings(&reader->module->entries[i])) {
            return fail(reader, "two arguments of a kernel have one binding");
        }
    }
    /* the size of their block, whose members are of 8 bytes at most, is a multiple of that */
    reader->module->push_bytes = (reader->module->push_bytes + 7) / 8 * 8;
    return reader->set ? 0 : fail(reader, "it does not describe its kernels");
}

int vulkan_reflect(const uint32_t *words, size_t bytes, struct module *module, const char **problem) {
    struct reader reader = {.words = words, .count = bytes / sizeof *words, .module = module};
    *module = (struct module){0};
    *problem = "it is no SPIR-V";
    if (bytes % sizeof *words || reader.count < HEADER_WORDS || words[0] != SPIRV_MAGIC || words[3] > MOST_IDS) {
        return -1;
    }
    reader.bound = words[3];
    reader.constants = memory_zeroed(reader.bound + 1, sizeof *reader.constants);
    reader.strings = memory_zeroed(reader.bound + 1, sizeof *reader.strings);
    const int status = read_module(&reader);
    free(reader.constants);
    free(reader.strings);
    if (status) {
        *problem = reader.problem;
        vulkan_module_release(module);
    }
    return status;
}

void vulkan_module_release(struct module *module) {
    free(module->entries);
    *module = (struct module){0};
}

/* ---- what a module needs */

#define V1(name)      offsetof(struct device_features, base.features.name)
#define V11(name)     offsetof(struct device_features, v11.name)
#define V12(name)     offsetof(struct device_features, v12.name)
#define BUFFERS_OF_16 V11(storageBuffer16BitAccess), "buffers of 16-bit elements (storageBuffer16BitAccess)"

const struct module_feature vulkan_features[] = {
    {9, V12(shaderFloat16), "numbers of 16 bits (shaderFloat16)"},
    {9, BUFFERS_OF_16},
    {11, V1(shaderInt64), "integers of 64 bits (shaderInt64)"},
    {22, V1(shaderInt16), "integers of 16 bits (shaderInt16)"},
    {22, BUFFERS_OF_16},
    {39, V12(shaderInt8), "integers of 8 bits (shaderInt8)"},
    {4433, BUFFERS_OF_16},
    {4434, V11(uniformAndStorageBuffer16BitAccess), "arguments of 16 bits (uniformAndStorageBuffer16BitAccess)"},
    {4435, V11(storagePushConstant16), "arguments of 16 bits (storagePushConstant16)"},
    {4441, V11(variablePointersStorageBuffer), "variablePointersStorageBuffer"},
    {4442, V11(variablePointers), "variablePointers"},
    {4448, V12(storageBuffer8BitAccess), "buffers of 8-bit elements (storageBuffer8BitAccess)"},
    {4449, V12(uniformAndStorageBuffer8BitAccess), "arguments of 8 bits (uniformAndStorageBuffer8BitAccess)"},
    {4450, V12(storagePushConstant8), "arguments of 8 bits (storagePushConstant8)"},
    {5347, V12(bufferDeviceAddress), "addresses of buffers (bufferDeviceAddress)"},
    {0, V12(uniformBufferStandardLayout), "uniformBufferStandardLayout"},
    {0, V12(scalarBlockLayout), "scalarBlockLayout"},
    {0, V12(timelineSemaphore), "timeline semaphores"},
    {0, 0, NULL},
};

const char *vulkan_missing(const uint32_t *words, size_t bytes, const struct device_features *features) {
    for (size_t i = HEADER_WORDS, count = bytes / sizeof *words; i < count; i += words[i] >> 16) {
        if (words[i] != (2U << 16 | OP_CAPABILITY)) {
            continue;
        }
        if (words[i + 1] == CAPABILITY_FLOAT64) {
            return "numbers of 64 bits (shaderFloat64)";
        }
        for (const struct module_feature *row = vulkan_features; row->name; row++) {
            VkBool32 has;
            memcpy(&has, (const char *)features + row->offset, sizeof has);
            if (row->capability && words[i + 1] == row->capability && !has) {
                return row->name;
            }
        }
    }
    return NULL;
}
