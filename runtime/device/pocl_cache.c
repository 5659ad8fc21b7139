#include "runtime/device/pocl_cache.h"
#include "runtime/device/device.h"
#include "runtime/device/programs.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include <elf.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MOST_PATH = 4096,
    NEEDED_BYTES = 4 << 20, /* kernels of a run take some MiB */
    MOST_FILE_BYTES = 64 << 20,
};

/* ---- the folder */

/* Without a folder for its kernels PoCL silently offers no device, or compiles nothing. */
static char problem[MOST_PATH + 300];

const char *device_pocl_problem(void) {
    return *problem ? problem : NULL;
}

static void set_problem(const char *folder, const char *what) {
    snprintf(
        problem, sizeof problem,
        "PoCL, the OpenCL for CPUs, cannot be used: it keeps its compiled kernels in %.*s, %s; set POCL_CACHE_DIR "
        "to a folder that can be written",
        MOST_PATH - 1, folder, what);
}

/* Makes the folder and finds out whether a file of so many bytes has space there, or as many as `ulimit -f` allows.
 * Returns what is wrong; NULL: nothing. */
static const char *try_folder(const char *folder, off_t needed) {
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    if (!program_cache_make(folder)) {
        return "which cannot be written";
    }
    getrlimit(RLIMIT_FSIZE, &limit); /* on failure there is none */
    const off_t bytes = limit.rlim_cur < (rlim_t)needed ? (off_t)limit.rlim_cur : needed;
    struct path path = path_of("%s/.hctrain-XXXXXX", folder);
    const int file = mkostemp(path.text, O_CLOEXEC);
    if (file < 0) {
        return errno == ENOSPC || errno == EDQUOT ? "which has no space left" : "which cannot be written";
    }
    unlink(path.text);
    const int code = bytes > 0 ? posix_fallocate(file, 0, bytes) : 0;
    close(file);
    return code == ENOSPC || code == EDQUOT ? "which has no space left" : NULL;
}

char *pocl_cache_locate(void) {
    const char *chosen = getenv("POCL_CACHE_DIR");
    if (chosen) {
        return memory_string(chosen);
    }
    char *ours = program_cache_locate(NULL); /* PoCL's is beside it */
    char *folder = ours ? memory_format("%.*s/pocl/kcache", (int)(strrchr(ours, '/') - ours), ours) : NULL;
    free(ours);
    return folder;
}

/* A private folder for PoCL's kernels below the temporary folder; one per user, so that it is found again. One that
 * is there already is taken if only this user can write it. */
static void move_cache(void) {
    const char *base = getenv("TMPDIR"), *wrong;
    struct stat status;
    if (!base || *base != '/') {
        base = "/tmp";
    }
    struct path path = path_of("%s/hctrain-pocl-%lu", base, (unsigned long)geteuid());
    if (mkdir(path.text, 0700) && !(errno == EEXIST && !lstat(path.text, &status) && S_ISDIR(status.st_mode) &&
                                    status.st_uid == geteuid() && !(status.st_mode & (S_IWGRP | S_IWOTH)))) {
        path = path_of("%s/hctrain-pocl-XXXXXX", base);
        if (!mkdtemp(path.text)) {
            set_problem(base, "which cannot be written");
            return;
        }
    }
    if ((wrong = try_folder(path.text, NEEDED_BYTES)) != NULL) {
        set_problem(path.text, wrong);
    }
    setenv("POCL_CACHE_DIR", path.text, 0);
}

/* A folder that the user chose is not replaced. */
void pocl_cache_prepare(void) {
    const char *chosen = getenv("POCL_CACHE_DIR");
    if (chosen && *chosen) {
        pocl_cache_check(false);
        return;
    }
    unsetenv("POCL_CACHE_DIR"); /* PoCL takes "" for a path */
    char *folder = pocl_cache_locate();
    if (!folder || try_folder(folder, NEEDED_BYTES)) {
        move_cache();
    }
    free(folder);
}

const char *pocl_cache_check(bool compiles) {
    char *folder = pocl_cache_locate();
    if (folder) {
        const char *wrong = try_folder(folder, compiles ? NEEDED_BYTES : 0);
        problem[0] = '\0';
        if (wrong) {
            set_problem(folder, wrong);
        }
    }
    free(folder);
    return device_pocl_problem();
}

/* ---- damage */

/* Whether there is a run of `least` zero bytes that begins at a multiple of `step`. */
static bool has_zeros(const unsigned char *data, size_t bytes, size_t least, size_t step) {
    static const unsigned char zeros[4096];
    for (size_t at = 0; at < bytes && bytes - at >= least; at += step) {
        if (!memcmp(data + at, zeros, least)) {
            return true;
        }
    }
    return false;
}

/* A library ends with its table of sections; no page of it is all zeros. Only those of this machine are known. */
static bool is_whole_library(const unsigned char *data, size_t bytes) {
    Elf64_Ehdr header;
    Elf64_Shdr section;
    if (bytes < sizeof header || memcmp(data, ELFMAG, SELFMAG)) {
        return false;
    }
    memcpy(&header, data, sizeof header);
    if (header.e_ident[EI_CLASS] != ELFCLASS64) {
        return true;
    }
    const size_t table = (size_t)header.e_shnum * sizeof section;
    if (header.e_shentsize != sizeof section || header.e_shstrndx >= header.e_shnum || header.e_shoff > bytes ||
        bytes - header.e_shoff < table) {
        return false;
    }
    memcpy(&section, data + header.e_shoff + header.e_shstrndx * sizeof section, sizeof section);
    const bool has_gaps = header.e_machine != EM_X86_64; /* linkers fill pages of 64 KiB with zeros */
    return section.sh_type == SHT_STRTAB && (has_gaps || !has_zeros(data, bytes, 4096, 4096));
}

/* Bitcode is a number and blocks: a word that says so, their length in words, and as many words. What a disk has
 * lost are sectors of zeros. */
static bool is_whole_bitcode(const unsigned char *data, size_t bytes) {
    static const unsigned char magic[] = {'B', 'C', 0xC0, 0xDE};
    uint32_t words[2];
    size_t at = sizeof magic;
    if (bytes <= sizeof magic || memcmp(data, magic, sizeof magic)) {
        return false;
    }
    while (bytes - at >= sizeof words) {
        memcpy(words, data + at, sizeof words);
        at += sizeof words;
        const size_t length = le32toh(words[1]);
        if ((le32toh(words[0]) & 3) != 1 || (bytes - at) / 4 < length) {
            return false;
        }
        at += length * 4;
    }
    return at == bytes && !has_zeros(data, bytes, 512, 512);
}

static bool ends_in(const char *name, const char *ending) {
    const char *end = strrchr(name, '.');
    return end && !strcmp(end, ending);
}

bool pocl_cache_is_whole(const unsigned char *data, size_t bytes, const char *name) {
    return ends_in(name, ".so") ? is_whole_library(data, bytes)
                                : !ends_in(name, ".bc") || is_whole_bitcode(data, bytes);
}

/* Removes damaged libraries and bitcode. What cannot be read stays. What another process is just writing has a name
 * that begins with "temp". */
static size_t remove_damaged(const char *folder) {
    char *roots[] = {(char *)(uintptr_t)folder, NULL}, *data;
    size_t removed = 0, bytes;
    FTSENT *entry;
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, NULL);
    while (tree && (entry = fts_read(tree))) {
        const char *name = entry->fts_name;
        if (!strncmp(name, "temp", 4)) {
            fts_set(tree, entry, FTS_SKIP);
        } else if (entry->fts_info == FTS_F && (ends_in(name, ".so") || ends_in(name, ".bc")) &&
                   files_read(entry->fts_path, MOST_FILE_BYTES, &data, &bytes) == 0) {
            removed += !pocl_cache_is_whole((unsigned char *)data, bytes, name) && unlink(entry->fts_path) == 0;
            free(data);
        }
    }
    if (tree) {
        fts_close(tree);
    }
    return removed;
}

/* A file of the last check holds the number of that boot. There may be a hundred thousand files, and in the same
 * boot power has not failed since. */
void pocl_cache_mend(const char *folder) {
    const struct path stamp = path_of("%s/.hctrain-checked", folder);
    char *boot = host_boot(), *last = NULL;
    size_t bytes;
    const bool is_checked = *boot && files_read(stamp.text, 63, &last, &bytes) == 0 && !strcmp(boot, last);
    const size_t removed = is_checked ? 0 : remove_damaged(folder);
    if (*boot && !is_checked) {
        files_write(stamp.text, boot, strlen(boot));
    }
    free(boot);
    free(last);
    error_clear();
    if (removed) {
        message_print(stderr,
                      "warning  kernels that PoCL had compiled were damaged, and are compiled again: %zu in %s\n",
                      removed, folder);
    }
}

/* ---- crashes */

static char crash_text[MOST_PATH + 400];

static struct crash {
    int number;
    struct sigaction before;
} crashes[] = {{.number = SIGABRT}, {.number = SIGBUS}, {.number = SIGSEGV}, {.number = SIGILL}};

/* Then what happened without this handler does. */
static void explain(int number) {
    if (write(STDERR_FILENO, crash_text, strlen(crash_text)) >= 0) {
        crash_text[0] = '\0'; /* other threads may crash, too */
    }
    for (size_t i = 0; i < COUNT(crashes); i++) {
        if (crashes[i].number == number) {
            sigaction(number, &crashes[i].before, NULL);
        }
    }
    raise(number); /* which is blocked until this handler has returned */
}

void pocl_cache_explain_crashes(const char *folder) {
    char shown[MOST_PATH];
    snprintf(shown, sizeof shown, "%s", folder);
    for (char *at = shown; *at; at++) {
        *at = (unsigned char)*at < ' ' || *at == 0x7f ? '?' : *at; /* a terminal obeys control characters */
    }
    snprintf(crash_text, sizeof crash_text,
             "\nhctrain: this process has crashed while it used PoCL, the OpenCL for CPUs. If that happens again, "
             "remove PoCL's compiled kernels, which may be damaged: %s\n",
             shown);
    for (size_t i = 0; i < COUNT(crashes); i++) {
        struct sigaction action = {.sa_handler = explain};
        sigemptyset(&action.sa_mask);
        sigaction(crashes[i].number, &action, &crashes[i].before);
    }
}
