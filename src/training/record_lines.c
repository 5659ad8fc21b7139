#include "src/training/record_lines.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "src/checkpoint/checkpoint_state.h"
#include <stdlib.h>

/* The object of a line, NULL if it is none. A line that memory lacks for is not one that is damaged, which would be cut off. */
static int parse(const char *text, size_t bytes, json_t **object) {
    json_error_t error;
    if (json_file_parse(text, bytes, 0, object, &error) == -1) {
        return -1;
    }
    if (!checkpoint_is_count(json_object_get(*object, "iter"), 0)) {
        json_decref(*object);
        *object = NULL;
    }
    return 0;
}

int record_lines_read(FILE *file, void (*take)(void *context, const struct record_line *line), void *context) {
    struct record_line line = {0};
    char *text = NULL;
    size_t room = 0;
    ssize_t bytes;
    while ((bytes = getline(&text, &room, file)) > 0 && text[bytes - 1] == '\n') {
        line.number++;
        line.end += (uint64_t)bytes;
        if (parse(text, (size_t)bytes, &line.object)) {
            free(text);
            return -1;
        }
        take(context, &line);
        json_decref(line.object);
    }
    free(text);
    return ferror(file)               ? error_set_errno("cannot read")
           : !feof(file) && bytes < 0 ? error_set("out of memory")
                                      : 0;
}
