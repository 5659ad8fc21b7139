/* safetensors: round trips, conversions, and hostile files. */
#include "runtime/files/safetensors.h"
#include "runtime/system/error.h"
#include "tests/support/scratch.h"
#include "tests/support/tensors.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file of this header and `data_bytes` bytes 0, 1, 2, ...; returns its path. */
static const char *make_file(const char *header, size_t header_bytes, size_t data_bytes) {
    unsigned char *bytes = malloc(8 + header_bytes + data_bytes);
    const uint64_t length = header_bytes;
    assert_non_null(bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) {
        bytes[8 + header_bytes + i] = (unsigned char)i;
    }
    const char *path = scratch_write("made.safetensors", bytes, 8 + header_bytes + data_bytes);
    free(bytes);
    return path;
}

static struct safetensors *open_made(const char *header, const void *data, size_t bytes) {
    const char *path = make_file(header, strlen(header), bytes);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, 8 + (long)strlen(header), SEEK_SET);
    fwrite(data, 1, bytes, file);
    fclose(file);
    struct safetensors *opened;
    require(safetensors_open(path, &opened));
    return opened;
}

static void refused(const char *path, const char *expected) {
    struct safetensors *file = (struct safetensors *)1;
    assert_int_equal(safetensors_open(path, &file), -1);
    assert_null(file);
    assert_error_text(path);
    assert_error_text(expected);
}

/* A tensor's entry in a header, and a header of one tensor "a". */
#define ENTRY(name, dtype, shape, offsets)                                                                         \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define ONE(dtype, shape, offsets) "{" ENTRY("a", dtype, shape, offsets) "}"

UNIT_TEST(test_hostile_headers) {
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *error;
    } cases[] = {
        {"[]", 0, "not a JSON object"},
        {" {}", 0, "not a JSON object"},
        {"{", 0, "does not fit"},
        {"{}x", 0, "not valid JSON"},
        {"{\"a\"", 0, "not valid JSON"},
        {"{\"a\":\xFF}", 0, "not valid JSON"},
        {"{\"\xC3\x28\":1}", 0, "not valid JSON"},
        {"{\"a\\u0000b\":1}", 0, "not valid JSON"},
        {"{\"a\":1}", 0, "tensor 'a': its entry in the header is not a dtype"},
        {"{\"a\":null}", 0, "Expected object"},
        {"{\"a\":{}}", 0, "not found: dtype"},
        {"{\"a\":{\"dtype\":4}}", 0, "Expected string"},
        {ONE("F31", "[]", "[0,4]"), 4, "dtype 'F31' is not supported"},
        {ONE("I8", "[]", "[0,1]"), 1, "dtype 'I8' is not supported"},
        {"{\"a\":{\"dtype\":\"F32\"}}", 0, "not found: shape"},
        {ONE("F32", "{}", "[0,4]"), 4, "shape is not a list"},
        {ONE("F32", "[-1]", "[0,4]"), 4, "whole numbers, or a negative one"},
        {ONE("F32", "[1.0]", "[0,4]"), 4, "something else than whole numbers"},
        {ONE("F32", "[\"1\"]", "[0,4]"), 4, "something else than whole numbers"},
        {ONE("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "9 dimensions"},
        {ONE("F32", "[4294967296,4294967296]", "[0,0]"), 0, "shape is too large"},
        {ONE("F64", "[2305843009213693952]", "[0,0]"), 0, "shape is too large"},
        {ONE("F32", "[9223372036854775807,3]", "[0,4]"), 4, "shape is too large"},
        {ONE("F32", "[99999999999999999999]", "[0,4]"), 4, "something else than whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "not found: data_offsets"},
        {ONE("F32", "[1]", "[0]"), 4, "two data_offsets"},
        {ONE("F32", "[1]", "[0,2,4]"), 4, "two data_offsets"},
        {ONE("F32", "[1]", "[-4,0]"), 4, "-4 .. 0 are not inside of the file"},
        {ONE("F32", "[1]", "[0,\"4\"]"), 4, "two data_offsets"},
        {ONE("F32", "[1]", "4"), 4, "two data_offsets"},
        {ONE("F32", "[1]", "[4,0]"), 4, "not inside of the file"},
        {ONE("F32", "[1]", "[0,4]"), 3, "not inside of the file"},
        {ONE("F32", "[1]", "[9223372036854775803,9223372036854775807]"), 4, "not inside of the file"},
        {ONE("F32", "[2]", "[0,4]"), 4, "8 bytes, but data_offsets span 4"},
        {ONE("F32", "[1]", "[0,4]"), 5, "1 bytes after the last tensor"},
        {ONE("F32", "[1]", "[1,5]"), 5, "unused bytes before it"},
        {"{}", 1, "1 bytes after the last tensor"},
        {"{" ENTRY("a", "U8", "[4]", "[0,4]") "," ENTRY("b", "U8", "[4]", "[2,6]") "}", 6, "tensor 'b' overlaps"},
        {"{" ENTRY("a", "U8", "[4]", "[0,4]") "," ENTRY("b", "U8", "[4]", "[0,4]") "}", 4, "tensor 'b' overlaps"},
        {"{" ENTRY("a", "U8", "[0]", "[2,2]") "," ENTRY("b", "U8", "[4]", "[0,4]") "}", 4, "overlaps"},
        {"{" ENTRY("a", "U8", "[1]", "[0,1]") "," ENTRY("a", "U8", "[1]", "[1,2]") "}", 2, "duplicate object key"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         "duplicate object key"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        refused(make_file(cases[i].header, strlen(cases[i].header), cases[i].data_bytes), cases[i].error);
    }
    refused(make_file("{\"a\0\":1}", 9, 0), "not valid JSON");
}

UNIT_TEST(test_deep_header) {
    enum { DEPTH = 1000000 };
    char *deep = malloc(DEPTH + 8);
    assert_non_null(deep);
    memcpy(deep, "{\"a\":", 5);
    memset(deep + 5, '[', DEPTH);
    refused(make_file(deep, DEPTH + 5, 0), "not valid JSON");
    free(deep);
}

UNIT_TEST(test_long_name_in_message) {
    enum { LENGTH = 100000 };
    char *header = malloc(LENGTH + 32);
    assert_non_null(header);
    memcpy(header, "{\"", 2);
    memset(header + 2, 'n', LENGTH);
    memcpy(header + 2 + LENGTH, "\":1}", 4);
    refused(make_file(header, LENGTH + 6, 0), "nnn': its entry");
    assert_true(strlen(error_text()) < 600);
    free(header);
}

UNIT_TEST(test_hostile_files) {
    static const unsigned char largest[16] = {255, 255, 255, 255, 255, 255, 255, 255, '{', '}'};
    static const unsigned char too_large[16] = {0x01, 0xE1, 0xF5, 0x05, 0, 0, 0, 0, '{', '}'}; /* 100,000,001 */
    static const unsigned char beyond[16] = {9, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    static const unsigned char zero[8] = {0};
    refused(scratch_path("missing"), "No such file");
    refused(scratch_put("f", ""), "only 0 bytes");
    refused(scratch_put("f", "1234567"), "only 7 bytes");
    refused(scratch_write("f", zero, 8), "does not fit");
    refused(scratch_write("f", largest, 16), "at most 100000000 are allowed");
    refused(scratch_write("f", too_large, 16), "at most 100000000 are allowed");
    refused(scratch_write("f", beyond, 16), "does not fit the file");
    refused(scratch_path("."), "a folder");
    assert_int_equal(mkfifo(scratch_path("pipe"), 0600), 0);
    refused(scratch_path("pipe"), "not a regular file");
    assert_int_equal(symlink("nowhere", scratch_path("dangling")), 0);
    refused(scratch_path("dangling"), "it is a link to nowhere, which does not exist");
}

UNIT_TEST(test_unusual_but_valid) {
    struct safetensors *file;
    const char *path = make_file("{}      ", 8, 0);
    assert_int_equal(safetensors_open(path, &file), 0);
    assert_int_equal(file->count, 0);
    assert_null(safetensors_find(file, "a"));
    safetensors_close(file);
    safetensors_close(NULL);

    /* Through a link, out of order, unaligned, empty, scalar, unknown keys, metadata. */
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"last\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[1,5],\"more\":[[]]},"
                                 "\"\":{\"dtype\":\"F64\",\"shape\":[3,0],\"data_offsets\":[1,1]},"
                                 "\"first\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}";
    make_file(header, strlen(header), 5);
    assert_int_equal(symlink("made.safetensors", scratch_path("link")), 0);
    assert_int_equal(safetensors_open(scratch_path("link"), &file), 0);
    assert_int_equal(file->count, 3);
    assert_string_equal(file->infos[0].name, "first");
    assert_int_equal(file->infos[0].rank, 0);
    assert_int_equal(file->infos[0].elements, 1);
    const struct tensor_info *last = safetensors_find(file, "last");
    assert_ptr_equal(last, &file->infos[2]);
    int32_t value;
    assert_int_equal(safetensors_read_i32(file, last, 0, 1, &value), 0);
    assert_int_equal(value, 0x04030201);
    assert_int_equal(safetensors_find(file, "")->elements, 0);
    assert_int_equal(safetensors_find(file, "")->shape[0], 3);
    assert_int_equal(safetensors_read_f32(file, safetensors_find(file, ""), 0, 0, NULL), 0);
    safetensors_close(file);
}

UNIT_TEST(test_conversion_to_float) {
    static const uint16_t half[] = {0x3C00, 0xC000, 0x0001, 0x8000, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x03FF, 0x3555};
    static const uint16_t brain[] = {0x3F80, 0xC000, 0x0001, 0x7F80};
    static const double wide[] = {1.0 / 3, -1e300};
    const float expected[] = {1, -2, 0x1p-24f, -0.0f, 65504};
    float values[10];
    struct safetensors *file =
        open_made("{\"h\":{\"dtype\":\"F16\",\"shape\":[10],\"data_offsets\":[0,20]}}", half, sizeof half);
    assert_int_equal(safetensors_read_f32(file, &file->infos[0], 0, 5, values), 0);
    for (int i = 0; i < 5; i++) {
        assert_true(values[i] == expected[i] && signbit(values[i]) == signbit(expected[i]));
    }
    assert_int_equal(safetensors_read_f32(file, &file->infos[0], 8, 2, values), 0);
    assert_true(values[0] == 1023 * 0x1p-24f && values[1] == 0.333251953125f);
    assert_error(safetensors_read_f32(file, &file->infos[0], 0, 10, values), "element 5 of tensor 'h' is inf");
    assert_error(safetensors_read_f32(file, &file->infos[0], 6, 2, values), "element 6 of tensor 'h' is -inf");
    assert_error(safetensors_read_f32(file, &file->infos[0], 7, 3, values), "element 7 of tensor 'h' is nan");
    safetensors_close(file);

    file = open_made("{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]}}", brain, sizeof brain);
    assert_int_equal(safetensors_read_f32(file, &file->infos[0], 0, 3, values), 0);
    assert_true(values[0] == 1 && values[1] == -2 && values[2] > 0 && values[2] < 1e-40f);
    assert_error(safetensors_read_f32(file, &file->infos[0], 1, 3, values), "element 3 of tensor 'b' is inf");
    safetensors_close(file);

    file = open_made("{\"d\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,16]}}", wide, sizeof wide);
    assert_int_equal(safetensors_read_f32(file, &file->infos[0], 0, 1, values), 0);
    assert_true(values[0] == (float)(1.0 / 3));
    assert_error(safetensors_read_f32(file, &file->infos[0], 0, 2, values), "element 1 of tensor 'd' is -inf");
    int32_t integers[2];
    assert_error(safetensors_read_i32(file, &file->infos[0], 0, 2, integers),
                 "tensor 'd' has dtype F64 where whole numbers are wanted");
    safetensors_close(file);
}

UNIT_TEST(test_conversion_to_int) {
    static const int64_t wide[] = {-1, INT32_MIN, INT32_MAX, INT64_C(1) << 31};
    static const uint16_t narrow[] = {0, 65535};
    int32_t values[4];
    struct safetensors *file =
        open_made("{\"i\":{\"dtype\":\"I64\",\"shape\":[4],\"data_offsets\":[0,32]}}", wide, sizeof wide);
    assert_int_equal(safetensors_read_i32(file, &file->infos[0], 0, 3, values), 0);
    assert_true(values[0] == -1 && values[1] == INT32_MIN && values[2] == INT32_MAX);
    assert_error(safetensors_read_i32(file, &file->infos[0], 1, 3, values),
                 "element 3 of tensor 'i' does not fit 32 bits");
    float number;
    assert_error(safetensors_read_f32(file, &file->infos[0], 0, 1, &number), "floating-point");
    safetensors_close(file);
    file = open_made("{\"u\":{\"dtype\":\"U16\",\"shape\":[2],\"data_offsets\":[0,4]}}", narrow, sizeof narrow);
    assert_int_equal(safetensors_read_i32(file, &file->infos[0], 0, 2, values), 0);
    assert_true(values[0] == 0 && values[1] == 65535);
    safetensors_close(file);
}

UNIT_TEST(test_ranges) {
    static const float data[] = {1, 2, 3};
    float values[3];
    struct safetensors *file =
        open_made("{\"f\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", data, sizeof data);
    const struct tensor_info *info = &file->infos[0];
    assert_int_equal(safetensors_read_f32(file, info, 3, 0, values), 0);
    assert_int_equal(safetensors_read_f32(file, info, 1, 2, values), 0);
    assert_true(values[0] == 2 && values[1] == 3);
    assert_error(safetensors_read_f32(file, info, 1, 3, values), "tensor 'f', which has 3");
    assert_int_equal(safetensors_read_f32(file, info, UINT64_MAX, 2, values), -1);
    assert_int_equal(safetensors_read_f32(file, info, 2, UINT64_MAX, values), -1);
    /* The file gets shorter while it is open. */
    assert_int_equal(truncate(scratch_path("made.safetensors"), 70), 0);
    assert_error(safetensors_read_f32(file, info, 0, 3, values), "ends too early");
    safetensors_close(file);
}

static const struct tensor_info written[] = {
    {.name = "h.0.attn.weight", .type = TENSOR_F32, .rank = 2, .shape = {3, 1000}},
    {.name = "empty", .type = TENSOR_I32, .rank = 1, .shape = {0}},
    {.name = "scalar \"\xC3\xA4\" \n", .type = TENSOR_F32, .rank = 0},
    {.name = "x", .type = TENSOR_I32, .rank = 8, .shape = {1, 1, 1, 1, 1, 1, 1, 2}},
};

UNIT_TEST(test_round_trip) {
    static float weights[3000], weights_read[3000];
    static const int32_t integers[2] = {-7, 8};
    const void *values[4] = {weights, NULL, weights + 1, integers};
    for (int i = 0; i < 3000; i++) {
        weights[i] = (float)i / 7;
    }
    const char *path = scratch_path("written.safetensors");
    assert_int_equal(safetensors_write(path, written, 4, tensors_take, values), 0);

    struct safetensors *file;
    assert_int_equal(safetensors_open(path, &file), 0);
    assert_int_equal(file->count, 4);
    for (size_t i = 0; i < 4; i++) {
        const struct tensor_info *info = safetensors_find(file, written[i].name);
        assert_non_null(info);
        assert_int_equal(info->type, written[i].type);
        assert_int_equal(info->rank, written[i].rank);
        assert_memory_equal(info->shape, written[i].shape, sizeof info->shape);
    }
    const struct tensor_info *info = safetensors_find(file, written[0].name);
    assert_int_equal(info->offset % 8, 0);
    assert_int_equal(safetensors_read_f32(file, info, 0, 3000, weights_read), 0);
    assert_memory_equal(weights, weights_read, sizeof weights);
    int32_t integers_read[2];
    assert_int_equal(safetensors_read_i32(file, safetensors_find(file, "x"), 0, 2, integers_read), 0);
    assert_memory_equal(integers, integers_read, sizeof integers);
    safetensors_close(file);

    /* No tensors at all. */
    assert_int_equal(safetensors_write(path, NULL, 0, tensors_take, NULL), 0);
    assert_int_equal(safetensors_open(path, &file), 0);
    safetensors_close(file);
}

UNIT_TEST(test_failed_writing) {
    static float data[25000];
    const void *values[] = {data};
    const struct tensor_info info = {.name = "a", .rank = 1, .shape = {sizeof data / sizeof *data}};
    assert_error(safetensors_write(scratch_path("no/such"), &info, 1, tensors_take, values),
                 "no/such: No such file");
    scratch_limit_file_size(50000);
    assert_int_equal(safetensors_write(scratch_path("full"), &info, 1, tensors_take, values), -1);
    scratch_limit_file_size(UINT64_MAX);
    assert_error_text("full: File too large");
    refused(scratch_path("full"), "");
}

/* Element i of a tensor is i; tensor *context fails at its second piece. */
static int give_numbers(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    if (tensor == *(size_t *)context && first > 0) {
        return error_set("the device is lost");
    }
    for (uint64_t i = 0; i < count; i++) {
        values[i] = (float)(first + i);
    }
    return 0;
}

UNIT_TEST(test_written_in_pieces) {
    const char *path = scratch_path("pieces");
    const struct tensor_info infos[] = {{.name = "none", .rank = 1, .shape = {0}},
                                        {.name = "scalar"},
                                        {.name = "pieces", .rank = 2, .shape = {3, 700001}}};
    struct safetensors *file;
    size_t failing = 3;
    float values[3];
    assert_int_equal(safetensors_write(path, infos, 3, give_numbers, &failing), 0);
    assert_int_equal(safetensors_open(path, &file), 0);
    const struct tensor_info *info = safetensors_find(file, "pieces");
    for (uint64_t at = 0; at < info->elements; at += 3) {
        assert_int_equal(safetensors_read_f32(file, info, at, 3, values), 0);
        for (uint64_t i = 0; i < 3; i++) {
            assert_true(values[i] == (float)(at + i));
        }
    }
    assert_int_equal(safetensors_find(file, "none")->elements, 0);
    assert_int_equal(safetensors_read_f32(file, safetensors_find(file, "scalar"), 0, 1, values), 0);
    assert_true(values[0] == 0.0f);
    safetensors_close(file);
    failing = 2;
    assert_int_equal(safetensors_write(path, infos, 3, give_numbers, &failing), -1);
    assert_string_equal(error_text(), "the device is lost");
    failing = 3;
    assert_error(safetensors_write("/dev/full", infos, 3, give_numbers, &failing), "No space left on device");
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
