/* Files and folders under temporary names, to be moved into place when they are whole. The name is
 * ".tmp-<name>-<identity>-<process>-<number>", so that it tells who made a leftover. The identity is that of a space
 * of process numbers: a boot of a host, or a container. Only there can it be asked whether the process is still
 * alive, and only what such a dead process left is ever removed, by files_stage_clean. */
#include "runtime/files/destination.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/random.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <regex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_ATTEMPTS = 10000 }; /* at a free name */

static char identity[17]; /* hexadecimal */

static void find_identity(void) {
    char host[256] = "", boot[64] = "", all[512];
    struct stat space = {0};
    gethostname(host, sizeof host - 1);
    const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        files_read_all(file, boot, sizeof boot - 1);
        close(file);
    }
    stat("/proc/self/ns/pid", &space);
    snprintf(all, sizeof all, "%s %s %ju %ju", host, boot, (uintmax_t)space.st_dev, (uintmax_t)space.st_ino);
    snprintf(identity, sizeof identity, "%016" PRIx64, random_key(0, all));
}

static const char *own_identity(void) {
    static pthread_once_t found = PTHREAD_ONCE_INIT;
    pthread_once(&found, find_identity);
    return identity;
}

char *temporary_make(const struct destination *destination, int *descriptor) {
    static unsigned number;
    if (descriptor != NULL && destination_check_file(destination->path.text) != 0) {
        return NULL;
    }
    for (int attempt = 0; attempt < MOST_ATTEMPTS; attempt++) {
        const struct path path =
            path_of("%s/.tmp-%s-%s-%ld-%u", destination->parent.text, destination->name, own_identity(),
                    (long)getpid(), __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED));
        const int result = descriptor != NULL
                               ? (*descriptor = open(path.text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666))
                               : mkdir(path.text, 0777);
        if (result >= 0) {
            return memory_string(path.text);
        }
        if (errno != EEXIST) {
            error_set_errno("cannot write %s: cannot make a temporary %s in %s", destination->path.text,
                            descriptor != NULL ? "file" : "folder", destination->parent.text);
            return NULL;
        }
    }
    error_set("cannot write %s: %s is full of temporary files", destination->path.text, destination->parent.text);
    return NULL;
}

/* Whether a temporary name of this space of processes was left behind by one of this user that runs no more. */
static bool is_leftover(const regex_t *own, const char *path, const char *name) {
    struct stat status;
    regmatch_t found[2]; /* all, and the process */
    if (regexec(own, name, 2, found, 0) != 0 || lstat(path, &status) != 0 || status.st_uid != geteuid()) {
        return false;
    }
    const long process = strtol(name + found[1].rm_so, NULL, 10);
    return process > 0 && process != (long)getpid() && kill((pid_t)process, 0) != 0 && errno == ESRCH;
}

void files_stage_clean(const char *parent) {
    char form[64];
    regex_t own;
    snprintf(form, sizeof form, "^\\.tmp-.+-%s-([0-9]{1,9})-[0-9]+$", own_identity());
    if (regcomp(&own, form, REG_EXTENDED) != 0) {
        return;
    }
    DIR *folder = opendir(parent);
    const struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        const struct path path = path_of("%s/%s", parent, entry->d_name);
        if (is_leftover(&own, path.text, entry->d_name)) {
            files_remove(path.text);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    regfree(&own);
}
