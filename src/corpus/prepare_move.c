#include "src/corpus/prepare_move.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int remove_old_val(const char *folder) {
    const struct path path = path_of("%s/val.bin", folder);
    return unlink(path.text) == 0 || errno == ENOENT ? 0 : error_set_errno("cannot remove the old %s", path.text);
}

int prepare_move(const char *folder, const char *work, bool has_val) {
    static const char *const all[] = {"train.bin", "val.bin", "meta.json", NULL};
    static const char *const without_val[] = {"train.bin", "meta.json", NULL};
    return files_move_into(folder, work, has_val ? all : without_val) || (!has_val && remove_old_val(folder)) ||
                   files_remove_folder(work)
               ? -1
               : 0;
}
