#include "src/corpus/prepare_move.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_NOTE_BYTES = 1 << 28 };

/* The note in the work folder that a move has begun: all is complete there. */
static char *note_path(const char *work) {
    return files_path("%s/moving.json", work);
}

static int remove_old_val(const char *folder) {
    char *path = files_path("%s/val.bin", folder);
    const int result = !path                                  ? -1
                       : unlink(path) == 0 || errno == ENOENT ? 0
                                                              : error_set_errno("cannot remove the old %s", path);
    free(path);
    return result;
}

static int move(const char *folder, const char *work, bool has_val) {
    static const char *const all[] = {"train.bin", "val.bin", "meta.json", NULL};
    static const char *const without_val[] = {"train.bin", "meta.json", NULL};
    return files_move_into(folder, work, has_val ? all : without_val) || (!has_val && remove_old_val(folder)) ||
                   files_remove_folder(work)
               ? -1
               : 0;
}

int prepare_move(const char *folder, const char *work, bool has_val, const json_t *task) {
    char *path = note_path(work);
    json_t *note = json_pack("{s:b, s:O}", "val", has_val, "task", task);
    const int result = path ? json_file_write(path, note, JSON_REAL_PRECISION(17)) : -1;
    free(path);
    json_decref(note);
    return result || move(folder, work, has_val) ? -1 : 0;
}

int prepare_finish_move(const char *folder, const char *work, json_t **task) {
    char *path = note_path(work);
    json_t *note = NULL;
    int result = path ? 0 : -1;
    *task = NULL;
    if (path && files_exist(path)) {
        result = json_file_read(path, MOST_NOTE_BYTES, &note) ||
                         move(folder, work, json_is_true(json_object_get(note, "val")))
                     ? -1
                     : 1;
    }
    if (result == 1) {
        *task = json_incref(json_object_get(note, "task"));
    }
    json_decref(note);
    free(path);
    return result;
}
