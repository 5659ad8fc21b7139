/* Runs kernels of a PTX text for test_opcodes.py, each with the parameters (input, output, count of work-items):
 *
 *   ptx_launch --list                              the opcodes of the interpreter's table, one per line
 *   ptx_launch FILE LANES ITEMS GROUPS SEED        runs every kernel; standard input and output are the input and
 *                                                  output of all kernels, one behind the other, of as many bytes as
 *                                                  INPUT_BYTES and OUTPUT_BYTES for each work-item
 *
 * A fault is printed to standard error, and ends the run with exit status 1. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "tests/emulator/ptx_machine.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INPUT_BYTES = 256, OUTPUT_BYTES = 64, LARGEST_FILE = 1 << 30 };

static int run_kernel(const struct ptx_kernel *kernel, size_t items, size_t groups, uint64_t seed) {
    const size_t count = items * groups;
    char *input = memory_allocate(count, INPUT_BYTES), *output = memory_zeroed(count, OUTPUT_BYTES);
    struct ptx_touched *touched = memory_zeroed(ptx_touched_size(count * OUTPUT_BYTES), 1);
    const struct ptx_range ranges[] = {{input, count * INPUT_BYTES, NULL}, {output, count * OUTPUT_BYTES, touched}};
    const char *parameters[] = {input, output};
    const struct ptx_launch launch = {.kernel = kernel,
                                      .groups = {groups, 1, 1},
                                      .items = {items, 1, 1},
                                      .parameters = (const char *)parameters,
                                      .ranges = ranges,
                                      .range_count = COUNT(ranges),
                                      .number = 1,
                                      .seed = seed};
    int status = fread(input, INPUT_BYTES, count, stdin) == count ? 0 : error_set("the input is too short");
    status = status || ptx_run(&launch) ? -1 : 0;
    if (status == 0 && fwrite(output, OUTPUT_BYTES, count, stdout) != count) {
        status = error_set("cannot write");
    }
    free(input);
    free(output);
    free(touched);
    return status;
}

int main(int count, char **arguments) {
    if (count == 2 && strcmp(arguments[1], "--list") == 0) {
        for (size_t i = 0; opcode_name(i); i++) {
            puts(opcode_name(i));
        }
        return 0;
    }
    if (count != 6) {
        fputs("usage: ptx_launch --list | FILE LANES ITEMS GROUPS SEED\n", stderr);
        return 2;
    }
    char *text = NULL;
    size_t bytes;
    int status = files_read(arguments[1], LARGEST_FILE, &text, &bytes);
    struct ptx_module *module = status ? NULL : ptx_parse(text, (unsigned)strtoul(arguments[2], NULL, 10));
    status = module ? 0 : -1;
    for (size_t i = 0; status == 0 && ptx_kernel_at(module, i); i++) {
        status = run_kernel(ptx_kernel_at(module, i), strtoul(arguments[3], NULL, 10),
                            strtoul(arguments[4], NULL, 10), strtoull(arguments[5], NULL, 10));
    }
    if (status) {
        fprintf(stderr, "%s\n", error_text());
    }
    if (module) {
        ptx_free(module);
    }
    free(text);
    return status ? 1 : 0;
}
