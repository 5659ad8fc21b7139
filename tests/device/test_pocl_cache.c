/* PoCL's cache of compiled kernels, as a power failure leaves it. */
#include "runtime/device/compute.h"
#include "runtime/device/pocl_cache.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <elf.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const loop_files[] = {"loops.cl", NULL};

/* Runs a kernel on PoCL in a process of its own, whose stderr goes to a file. Returns its exit status, or minus the
 * signal that ended it; 77 where there is no PoCL. */
static int run_kernel(void) {
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct compute *compute;
        struct buffer sums;
        const uint32_t zeros[5] = {0};
        if (!freopen(scratch_path("stderr"), "w", stderr) ||
            device_list(false, &(struct device *){NULL}, &(size_t){0})) {
            _exit(2);
        }
        if (compute_open(&compute, &(struct compute_options){.device = "pocl", .cache_dir = ""})) {
            fprintf(stderr, "%s\n", error_text());
            fflush(stderr);
            _exit(strstr(error_text(), "no OpenCL device") ? 77 : 1);
        }
        const struct kernel *kernel = kernel_find(compute, loop_files, "", "loop_turns");
        const int failed =
            buffer_create(compute, &sums, 1024) || buffer_write(compute, &sums, 0, zeros, sizeof zeros);
        KERNEL_RUN(compute, kernel, 1, 1, ARG_U32(1), ARG_U32(1), ARG_IN_OUT(&sums, 5));
        if (failed || compute_finish(compute)) {
            fprintf(stderr, "%s\n", error_text());
            _exit(1);
        }
        fflush(stderr);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static const char *damaged_end; /* of names of files */
static long kept_bytes;         /* of each; the rest is cut off, or with `zeroed` replaced by zeros */
static bool zeroed;
static int damaged_files;

static int damage(const char *path, const struct stat *status, int type, struct FTW *where) {
    (void)where;
    if (type == FTW_F && strstr(path, damaged_end)) {
        damaged_files++;
        assert_int_equal(truncate(path, kept_bytes < status->st_size ? kept_bytes : 0), 0);
        assert_int_equal(zeroed ? truncate(path, status->st_size) : 0, 0);
    }
    return 0;
}

UNIT_TEST(damaged_kernels_are_compiled_again) {
    static const struct {
        const char *end;
        long bytes;
        bool zeroed;
    } rows[] = {{".so", 9000, false}, {".so", 9000, true}, {".bc", 0, true}};
    const int status = run_kernel();
    if (status == 77) {
        skip();
    }
    assert_int_equal(status, 0);
    for (size_t i = 0; i < COUNT(rows); i++) {
        damaged_end = rows[i].end;
        kept_bytes = rows[i].bytes;
        zeroed = rows[i].zeroed;
        damaged_files = 0;
        nftw(scratch_path("kernels"), damage, 8, FTW_PHYS);
        assert_true(damaged_files > 0);
        assert_int_equal(run_kernel(), 0);
        assert_non_null(strstr(scratch_text(scratch_path("stderr"), NULL), scratch_path("kernels")));
    }
    assert_int_equal(run_kernel(), 0);
    assert_string_equal(scratch_text(scratch_path("stderr"), NULL), ""); /* whole ones are left alone */
}

/* Random bytes in the code of a kernel are not seen before. */
UNIT_TEST(crash_names_the_folder) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (freopen(scratch_path("stderr"), "w", stderr)) {
            signal(SIGBUS, SIG_DFL); /* cmocka has its own */
            pocl_cache_explain_crashes("/a/folder\033[1m");
            raise(SIGBUS);
        }
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    assert_non_null(strstr(scratch_text(scratch_path("stderr"), NULL), "remove PoCL's compiled kernels"));
    assert_non_null(strstr(scratch_text(scratch_path("stderr"), NULL), ": /a/folder?[1m\n"));
}

/* ---- what is whole, by the smallest files */

UNIT_TEST(libraries) {
    struct library {
        Elf64_Ehdr header;
        unsigned char code[8192];
        Elf64_Shdr sections[2];
    } library = {.header = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64},
                            .e_machine = EM_X86_64,
                            .e_shentsize = sizeof(Elf64_Shdr),
                            .e_shnum = 2,
                            .e_shstrndx = 1}};
    const unsigned char *data = (const unsigned char *)&library;
    library.header.e_shoff = offsetof(struct library, sections);
    library.sections[1].sh_type = SHT_STRTAB;
    assert_false(pocl_cache_is_whole(data, sizeof library, "a.so")); /* a page of zeros */
    memset(library.code, 0x90, sizeof library.code);
    assert_true(pocl_cache_is_whole(data, sizeof library, "a.so"));
    for (size_t bytes = 0; bytes < sizeof library; bytes++) {
        assert_false(pocl_cache_is_whole(data, bytes, "a.so"));
    }
    library.header.e_shoff = UINT64_MAX;
    assert_false(pocl_cache_is_whole(data, sizeof library, "a.so"));
    library.header.e_shoff = offsetof(struct library, sections);
    library.sections[1].sh_type = 0;
    assert_false(pocl_cache_is_whole(data, sizeof library, "a.so"));
    library.header.e_shstrndx = 2;
    assert_false(pocl_cache_is_whole(data, sizeof library, "a.so"));
    assert_true(pocl_cache_is_whole(data, 0, "last_accessed"));
    assert_true(pocl_cache_is_whole(data, 0, "build.log"));
}

/* A table of zeros is no damage; a sector is. */
UNIT_TEST(bitcode_with_zeros) {
    unsigned char data[4 + 8 + 2048] = {'B', 'C', 0xC0, 0xDE, 0x35, 0x14, 0, 0, 0, 2};
    memset(data + 12, 1, 2048);
    assert_true(pocl_cache_is_whole(data, sizeof data, "a.bc"));
    memset(data + 600, 0, 300);
    assert_true(pocl_cache_is_whole(data, sizeof data, "a.bc"));
    memset(data + 1024, 0, 512);
    assert_false(pocl_cache_is_whole(data, sizeof data, "a.bc"));
}

UNIT_TEST(bitcode) {
    unsigned char data[4 + 8 + 80 + 8] = {'B', 'C', 0xC0, 0xDE, 0x35, 0x14, 0, 0, 20};
    memset(data + 12, 1, 80);
    data[92] = 0x61;
    assert_true(pocl_cache_is_whole(data, sizeof data, "a.bc"));
    for (size_t bytes = 0; bytes < sizeof data; bytes++) {
        assert_true(bytes == 92 || !pocl_cache_is_whole(data, bytes, "a.bc"));
    }
    memset(data + 8, 0xff, 4);
    assert_false(pocl_cache_is_whole(data, sizeof data, "a.bc"));
}

static int begin(void **state) {
    const int status = scratch_begin(state);
    setenv("POCL_CACHE_DIR", scratch_path("kernels"), 1);
    device_prepare_environment();
    return status;
}

UNIT_TEST_MAIN(begin, scratch_end)
