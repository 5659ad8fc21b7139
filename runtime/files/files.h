/* Files and folders: paths, reading with a limit, and writing so that files are whole or absent. Unless stated
 * otherwise, functions return 0, or -1 with an error text that names the path. If a path is a symbolic link, its
 * target is written and the link stays. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* A path as a value, formatted as by printf: path_of("%s/%s", folder, name).text. A path that is longer than the
 * system allows becomes a name that the system refuses (ENAMETOOLONG) wherever it is used. */
struct path {
    char text[4096 + 1];
};
struct path path_of(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* False only if there is certainly nothing. A path that cannot be examined, for lack of permission for example,
 * counts as existing, so that opening it reports the reason. */
bool files_exist(const char *path);

/* The path; if nothing is there and it is relative, PREFIX/share/hctrain/PATH, should that exist, where this
 * program is PREFIX/bin/NAME. */
struct path files_find(const char *path);

/* Whether the path itself is a symbolic link. */
bool files_is_link(const char *path);

/* Whether both paths exist and lead to the same file. */
bool files_are_same(const char *a, const char *b);

/* An error if `output`, which will be written, is the file or folder `input` that the same command reads. */
int files_refuse_same(const char *output, const char *input);

/* An error if `path` is one of the files `names` (ends with NULL) of a folder. */
int files_refuse_members(const char *folder, const char *const *names, const char *path);

/* Makes the folder and its parents (mode 0777 less umask). An existing folder is success. */
int files_make_folder(const char *path);

/* Calls `visit` with every name in a folder except "." and ".." until it returns a value other than 0, which is
 * then the result. It is also an error if the folder cannot be read to its end. */
int files_each(const char *folder, int (*visit)(void *context, const char *name), void *context);

/* As pread (`offset` -1: read) and write, but of all bytes, however often signals interrupt them. files_read_all
 * returns the bytes read, fewer only at the end of the file. On failure both return -1 and set errno, not the error
 * text. */
ssize_t files_read_all(int descriptor, void *data, size_t bytes, int64_t offset);
int files_write_all(int descriptor, const void *data, size_t bytes);

/* After a failure to open the path: the error text that `name` cannot be opened, by errno, or because the path is a
 * link to nothing. Returns -1. */
int files_fail_open(const char *path, const char *name);

/* Opens a regular file for reading: its descriptor, and its size in *bytes; -1 with an error text that calls it
 * `name`. Folders are refused, and pipes, which are not waited for. */
int files_open(const char *path, const char *name, uint64_t *bytes);

/* Reads a whole regular file of at most `limit` bytes into NUL-terminated heap memory. */
int files_read(const char *path, size_t limit, char **text, size_t *bytes);

/* As files_read, but reads to the end whatever size the system reports: also pipes and devices, for which it waits,
 * and files of /proc, which have no size. A pipe cannot be read again. */
int files_read_stream(const char *path, size_t limit, char **text, size_t *bytes);

/* Writes a whole file as with files_stage_begin: if that fails, the old file stays. */
int files_write(const char *path, const void *data, size_t bytes);

/* Flushes a stream. Also fails if an earlier write to it failed; `name` is for the error text. */
int files_flush(FILE *stream, const char *name);

/* Waits until a file, or the names in a folder, are on the disk; files_sync_all includes all files in the
 * folder. */
int files_sync(const char *path);
int files_sync_all(const char *path);

/* A folder or a file written aside and moved into place. files_stage_begin makes a fresh folder beside `path` (and
 * the folder that both are in, if it is missing), or an empty file; staging.c says under which names. The caller
 * fills it. files_stage_end with status 0 syncs all of it, renames it to `path` and syncs the folder that it is in;
 * an older folder is replaced in one step where the file system can exchange names, and removed. With another
 * status, which it returns, or when it fails itself, it removes what was staged and leaves the error text as it is.
 * *staging is heap memory, which files_stage_end frees. */
int files_stage_begin(const char *path, bool folder, char **staging);
int files_stage_end(const char *path, char *staging, int status);

/* Text written to a file that appears when it is complete, and not at all otherwise. Begin with all zero. */
struct output_file {
    const char *path;
    char *staging; /* owned; NULL for standard output */
    FILE *stream;  /* to write to; NULL: not open */
};

/* `path`, which stays the caller's and in use, may be "-" for standard output, of which nothing is held back.
 * Anything but a regular file at `path` is refused. */
int output_file_open(struct output_file *file, const char *path);

/* Closes as files_stage_end does; fails also when an earlier write did. Returns the status if it is not open. */
int output_file_end(struct output_file *file, int status);

/* For folders that may hold other files too: syncs the folder `from`, then moves the files `names` (ends with NULL)
 * out of it into the existing `folder`, in this order, over older ones of their names. The older one of the last
 * name goes first, so that a folder with it is complete; then go the files `old` of `folder` (ends with NULL, or is
 * NULL), as far as they are there. When it failed or was cut off, calling it again goes on: files that are in
 * `folder` only have been moved. Nothing is moved or removed where one of the names in `folder` is something else
 * than a file. */
int files_move_into(const char *folder, const char *from, const char *const *names, const char *const *old);

/* Takes the folder for this process until *descriptor is closed or the process ends: an error if another one has
 * it. Where the file system cannot lock, *descriptor is still open but nobody is kept out. */
int files_lock_folder(const char *path, int *descriptor);

/* Removes from `parent` the temporary files and folders of this user whose process, of this boot of this host (and
 * this container), no longer runs. Leftovers of other hosts, or from before a restart, stay. files_stage_begin
 * calls it before it makes a folder. */
void files_stage_clean(const char *parent);

/* Removes a file, or a folder with its contents; does not follow links. files_remove_folder refuses anything but a
 * folder. */
int files_remove(const char *path);
int files_remove_folder(const char *path);

/* Removes from a folder the regular files `names` (ends with NULL), in this order, and the folder itself if
 * nothing else is in it. In that case it is first moved to a temporary name, where the file system can, so that it
 * is whole or absent at every moment. */
int files_discard_members(const char *folder, const char *const *names);

/* Whether a folder has anything but regular files of these names: 1 or 0; -1 with an error text if it is not
 * readable. */
int files_has_others(const char *folder, const char *const *names);
