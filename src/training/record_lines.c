#include "src/training/record_lines.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/checkpoint.h"
#include <stdlib.h>

/* The object of a line, or NULL if the line is no object with an iteration. */
static json_t *parse(const char *text, size_t bytes) {
    json_t *object = json_loadb(text, bytes, 0, NULL);
    if (!checkpoint_is_count(json_object_get(object, "iter"), 0)) {
        json_decref(object);
        return NULL;
    }
    return object;
}

int record_lines_read(FILE *file, void (*take)(void *context, const struct record_line *line), void *context) {
    struct record_line line = {0};
    char *text = NULL;
    size_t room = 0;
    ssize_t bytes;
    while ((bytes = getline(&text, &room, file)) > 0 && text[bytes - 1] == '\n') {
        line.number++;
        line.end += (uint64_t)bytes;
        line.object = parse(text, (size_t)bytes);
        take(context, &line);
        json_decref(line.object);
    }
    free(text);
    if (bytes < 0 && !feof(file) && !ferror(file)) {
        memory_refused(0);
    }
    return ferror(file) ? error_set_errno("cannot read") : 0;
}
