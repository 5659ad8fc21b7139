/* PoCL's cache of compiled kernels: what is whole, and what is said where it was not. */
#include "runtime/device/pocl_cache.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <elf.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

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

UNIT_TEST_MAIN(scratch_begin, scratch_end)
