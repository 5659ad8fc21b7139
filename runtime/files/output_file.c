#include "runtime/files/output_file.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <stdlib.h>
#include <string.h>

int output_file_open(struct output_file *file, const char *path) {
    *file = (struct output_file){0};
    if (strcmp(path, "-") == 0) {
        file->stream = stdout;
        return 0;
    }
    file->path = memory_string(path);
    if (files_stage_file(path, &file->temporary) == 0) {
        file->stream = fopen(file->temporary, "we");
        if (file->stream) {
            return 0;
        }
        error_set_errno("cannot write %s", path);
    }
    output_file_abandon(file);
    return -1;
}

int output_file_commit(struct output_file *file) {
    if (!file->stream) {
        return 0;
    }
    int status = files_flush(file->stream, file->path ? file->path : "to standard output");
    if (file->path && status == 0) {
        status = files_stage_commit(file->path, file->temporary);
        file->temporary = NULL;
    }
    output_file_abandon(file);
    return status;
}

void output_file_abandon(struct output_file *file) {
    if (file->path && file->stream) {
        fclose(file->stream);
    }
    files_stage_abandon(file->temporary);
    free(file->path);
    *file = (struct output_file){0};
}
