#include "runtime/files/output_file.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Moving a file into the place of a device would remove the device. */
static int check_place(const char *path) {
    struct stat found;
    return stat(path, &found) != 0 || S_ISREG(found.st_mode)
               ? 0
               : error_set("cannot write %s: it is there and is no plain file (- is standard output)", path);
}

int output_file_open(struct output_file *file, const char *path) {
    *file = (struct output_file){0};
    if (strcmp(path, "-") == 0) {
        file->stream = stdout;
        return 0;
    }
    file->path = memory_string(path);
    if (check_place(path) == 0 && files_stage_file(path, &file->temporary) == 0) {
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
