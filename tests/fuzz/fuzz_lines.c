/* Any bytes as a file of JSON lines, perhaps compressed: what comes out of it is UTF-8, and its lines are counted
 * right. */
#include "runtime/system/error.h"
#include "runtime/system/utf8.h"
#include "src/text/json_lines.h"
#include "tests/fuzz/fuzz_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Small files can be large when decompressed. */
static const uint64_t most_lines = 20000;

static void read_lines(struct json_lines *lines) {
    struct text_buffer text = {0}, valid = {0};
    const char *line;
    size_t bytes;
    uint64_t last = 0;
    int found = 0;
    while (last < most_lines && (found = json_lines_next(lines, &line, &bytes)) == 1) {
        fuzz_require(lines->line > last, "a line has no number of its own");
        fuzz_require(!memchr(line, '\n', bytes), "a line has an end in it");
        last = lines->line;
        valid.size = 0;
        text_append_utf8(&valid, line, bytes);
        fuzz_require(utf8_prefix(valid.bytes ? valid.bytes : "", valid.size) == valid.size,
                     "invalid text was not replaced");
        if (json_lines_field(&line, &bytes, "text", "--field", last % 2 == 0, &text) == 0) {
            fuzz_require(text.size == 0 || utf8_prefix(text.bytes, text.size) == text.size,
                         "the text is not UTF-8");
        } else {
            fuzz_require(*error_text() != '\0', "a failure without a reason");
        }
    }
    fuzz_require(found >= 0 || *error_text() != '\0', "a failure without a reason");
    text_free(&text);
    text_free(&valid);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct json_lines lines = {0};
    struct input_status status;
    char digest[CHECKSUM_SIZE];
    const char *path = fuzz_file(data, bytes);
    error_clear();
    fuzz_require(input_examine(path, &status) == 0 && status.regular && status.bytes == bytes,
                 "the file is not what it is");
    if (input_open(path, -1, &lines.input) == 0) {
        read_lines(&lines);
        fuzz_require(strcmp(input_label(lines.input), path) == 0, "the file has another name");
        fuzz_require(input_stored_bytes(lines.input) <= bytes, "more was read than there is");
        input_digest(lines.input, digest);
        json_lines_free(&lines);
        input_close(lines.input);
    }
    return 0;
}
