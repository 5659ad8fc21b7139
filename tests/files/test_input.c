/* Inputs, decompressed as they are read: every form, in one piece and in several, and what is damaged. */
#include "runtime/files/input.h"
#include "runtime/system/error.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { TEXT_BYTES = 700000, STORED_BYTES = 2 * TEXT_BYTES, GZIP_WINDOW = 15 + 16 };

static char text[TEXT_BYTES];
static unsigned char stored[STORED_BYTES];

/* Words, and in the middle what does not compress. */
static void make_text(void) {
    uint32_t state = 1;
    for (size_t i = 0; i < TEXT_BYTES; i++) {
        state = state * 1664525u + 1013904223u;
        const bool noise = i > TEXT_BYTES / 3 && i < TEXT_BYTES / 2;
        text[i] = noise ? (char)(state >> 24) : "the words of a text\n"[i % 20];
    }
}

static size_t compress_gzip(const char *data, size_t bytes, unsigned char *to) {
    z_stream stream = {.next_in = (unsigned char *)(uintptr_t)data,
                       .avail_in = (uInt)bytes,
                       .next_out = to,
                       .avail_out = STORED_BYTES / 2};
    assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, GZIP_WINDOW, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    const size_t written = STORED_BYTES / 2 - stream.avail_out;
    deflateEnd(&stream);
    return written;
}

static size_t compress_zstd(const char *data, size_t bytes, unsigned char *to) {
    ZSTD_CCtx *context = ZSTD_createCCtx();
    assert_non_null(context);
    assert_false(ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1))); /* as the program zstd */
    const size_t written = ZSTD_compress2(context, to, STORED_BYTES / 2, data, bytes);
    assert_false(ZSTD_isError(written));
    ZSTD_freeCCtx(context);
    return written;
}

/* Reads all in steps of this size; the bytes got, or SIZE_MAX after a failure. */
static size_t read_input(const char *path, size_t step, char *into, char digest[CHECKSUM_SIZE]) {
    struct input *input;
    assert_int_equal(input_open(path, -1, &input), 0);
    size_t total = 0, got = step;
    while (got == step) {
        const size_t left = TEXT_BYTES + 10 - total;
        if (input_read(input, into + total, step < left ? step : left, &got)) {
            total = SIZE_MAX;
            break;
        }
        total += got;
    }
    if (total != SIZE_MAX && digest) {
        input_digest(input, digest);
    }
    input_close(input);
    return total;
}

static void check(const char *name, size_t stored_bytes, const char *expected, size_t bytes) {
    static char got[TEXT_BYTES + 10];
    static const size_t steps[] = {1000, 4096, 262144, TEXT_BYTES + 10};
    char digest[CHECKSUM_SIZE], whole[CHECKSUM_SIZE];
    const char *path = scratch_write(name, stored, stored_bytes);
    checksum_memory(stored, stored_bytes, whole);
    for (size_t i = 0; i < COUNT(steps); i++) {
        assert_int_equal(read_input(path, steps[i], got, digest), bytes);
        assert_memory_equal(got, expected, bytes);
        assert_string_equal(digest, whole);
    }
}

UNIT_TEST(test_plain) {
    memcpy(stored, text, TEXT_BYTES);
    check("plain", TEXT_BYTES, text, TEXT_BYTES);
    check("empty", 0, text, 0);
    check("one", 1, text, 1);
}

static void check_fails(const char *name, const void *data, size_t bytes, const char *expected) {
    static char got[TEXT_BYTES + 10];
    const char *path = scratch_write(name, data, bytes);
    assert_int_equal(read_input(path, 65536, got, NULL), SIZE_MAX);
    assert_error_text(expected);
    assert_error_text(name);
}

typedef size_t (*compressor)(const char *data, size_t bytes, unsigned char *to);

static void check_members(compressor compress) {
    const size_t whole = compress(text, TEXT_BYTES, stored);
    check("whole", whole, text, TEXT_BYTES);
    memset(stored + whole, 0, 1000); /* blocks of tapes are filled up with zeros */
    check("filled", whole + 1000, text, TEXT_BYTES);
    const size_t first = compress(text, 5000, stored);
    const size_t none = compress(text, 0, stored + first);
    const size_t second = compress(text + 5000, TEXT_BYTES - 5000, stored + first + none);
    check("members", first + none + second, text, TEXT_BYTES);
    check("nothing", compress(text, 0, stored), text, 0);
}

/* A frame of zstd's that has no data, as pzstd writes one before each frame of data. */
static size_t add_skippable(unsigned char *to, unsigned char kind) {
    const unsigned char frame[] = {0x50 + kind, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4};
    memcpy(to, frame, sizeof frame);
    return sizeof frame;
}

UNIT_TEST(test_skippable) {
    for (unsigned char kind = 0; kind < 16; kind++) {
        size_t bytes = add_skippable(stored, kind);
        check("only", bytes, text, 0);
        bytes += compress_zstd(text, 5000, stored + bytes);
        check("before", bytes, text, 5000);
        bytes += add_skippable(stored + bytes, kind);
        check("behind", bytes, text, 5000);
        bytes += compress_zstd(text + 5000, 5000, stored + bytes);
        check("between", bytes, text, 10000);
        check_fails("truncated", stored, 10, "truncated, get it again");
    }
}

UNIT_TEST(test_compressed) {
    check_members(compress_gzip);
    check_members(compress_zstd);
}

static void check_damage(compressor compress) {
    const size_t bytes = compress(text, TEXT_BYTES, stored);
    for (size_t cut = 8; cut < bytes; cut += bytes / 50) {
        check_fails("truncated", stored, cut, "truncated, get it again");
    }
    check_fails("truncated", stored, bytes - 1, "truncated, get it again");
    memcpy(stored + bytes, "garbage", 7);
    check_fails("garbage", stored, bytes + 7, "after its end something else follows");
    stored[bytes / 2] ^= 0x55;
    stored[bytes / 2 + 1] ^= 0x55;
    check_fails("damaged", stored, bytes, "damaged");
}

UNIT_TEST(test_damaged) {
    check_damage(compress_gzip);
    check_damage(compress_zstd);
}

UNIT_TEST(test_other_forms) {
    check_fails("a.xz", "\xfd\x37\x7aXZ\0\0", 7, "xz -dc FILE");
    check_fails("a.bz2", "BZh91AY", 7, "bzip2 -dc FILE");
    check_fails("a.parquet", "PAR1....", 8, "parquet_lines.py");
    check_fails("a.zip", "PK\x03\x04....", 8, "unpack it first");
    check_fails("a.lz4", "\x04\x22\x4d\x18....", 8, "lz4 -dc FILE");
    check_fails("a.txt",
                "\xff\xfe"
                "a\0",
                4, "UTF-16");
    check_fails("a.txt",
                "\xfe\xff\0"
                "a",
                4, "UTF-16");
    char archive[600] = "name";
    memcpy(archive + 257, "ustar", 5);
    check_fails("a.tar", archive, sizeof archive, "tar archive");
    check_fails("a.tar.gz", stored, compress_gzip(archive, sizeof archive, stored), "tar archive");
    unsigned char once[1000];
    check_fails("a.gz.zst", stored, compress_zstd((char *)once, compress_gzip("text", 4, once), stored),
                "compressed twice");
}

/* A byte order mark belongs to the file, not to its text. */
UNIT_TEST(test_byte_order_mark) {
    static const char marked[] = "\xef\xbb\xbfone \xef\xbb\xbf";
    memcpy(stored, marked, sizeof marked - 1);
    check("marked", sizeof marked - 1, marked + 3, sizeof marked - 4);
    check("mark", 3, "", 0);
    check("marked.gz", compress_gzip(marked, sizeof marked - 1, stored), marked + 3, sizeof marked - 4);
}

UNIT_TEST(test_examine) {
    struct input_status status;
    struct input *input;
    assert_int_equal(input_examine(scratch_put("seen", "abc"), &status), 0);
    assert_true(status.regular && status.bytes == 3 && status.modified > 0);
    assert_error(input_examine(scratch_path("missing"), &status), "No such file");
    assert_error(input_open(scratch_path("."), -1, &input), "it is a folder");
    assert_int_equal(symlink("nowhere", scratch_path("link")), 0);
    assert_error(input_examine(scratch_path("link"), &status), "it is a link to nowhere, which does not exist");
    assert_error(input_open(scratch_path("link"), -1, &input), "it is a link to nowhere, which does not exist");
    assert_string_equal(input_name("-"), "standard input");
}

/* Somebody truncates the file while it is read: what there is left is not the input. */
UNIT_TEST(test_became_shorter) {
    static char got[TEXT_BYTES];
    size_t count;
    struct input *input;
    const char *path = scratch_write("shrinking", text, TEXT_BYTES);
    assert_int_equal(input_open(path, -1, &input), 0);
    assert_int_equal(input_read(input, got, 1000, &count), 0);
    assert_int_equal(count, 1000);
    assert_int_equal(truncate(path, 4096), 0);
    assert_error(input_read(input, got, TEXT_BYTES - 1000, &count), "became shorter");
    assert_error_text("shrinking");
    input_close(input);
}

static int begin(void **state) {
    make_text();
    return scratch_begin(state);
}

UNIT_TEST_MAIN(begin, scratch_end)
