/* event_file: checksums, record framing, and the messages decoded by an independent reader. */
#include "runtime/files/event_file.h"
#include "runtime/system/error.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <dirent.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* CRC-32C (Castagnoli), bit by bit, for the records that are read back. */
static uint32_t crc32c(const void *data, size_t bytes) {
    uint32_t crc = UINT32_MAX;
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        const uint32_t next = (uint32_t)((const unsigned char *)data)[bit / 8] >> bit % 8 & 1;
        crc = (crc ^ next) & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
    }
    return ~crc;
}

/* RFC 3720, B.4, and the check value of the CRC catalogue. */
UNIT_TEST(test_crc32c) {
    unsigned char bytes[32];
    assert_int_equal(crc32c("", 0), 0);
    assert_int_equal(crc32c("123456789", 9), 0xE3069283);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(crc32c(bytes, sizeof bytes), 0x8A9136AA);
    memset(bytes, 0xFF, sizeof bytes);
    assert_int_equal(crc32c(bytes, sizeof bytes), 0x62A8AB43);
    for (int i = 0; i < 32; i++) {
        bytes[i] = (unsigned char)i;
    }
    assert_int_equal(crc32c(bytes, sizeof bytes), 0x46DD794E);
}

/* ---- a reader */

struct piece {
    const unsigned char *at;
    size_t bytes;
};

static uint64_t take_number(struct piece *piece, size_t bytes) {
    uint64_t value = 0;
    assert_true(piece->bytes >= bytes);
    for (size_t i = 0; i < bytes; i++) {
        value |= (uint64_t)piece->at[i] << (8 * i);
    }
    piece->at += bytes;
    piece->bytes -= bytes;
    return value;
}

static uint64_t take_varint(struct piece *piece) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        const uint64_t byte = take_number(piece, 1);
        value |= shift < 64 ? (byte & 0x7F) << shift : 0;
        if (byte < 0x80) {
            return value;
        }
    }
    fail();
    return 0;
}

static struct piece take_piece(struct piece *piece, size_t bytes) {
    assert_true(piece->bytes >= bytes);
    const struct piece taken = {piece->at, bytes};
    piece->at += bytes;
    piece->bytes -= bytes;
    return taken;
}

static void check_masked(uint32_t masked, const void *data, size_t bytes) {
    const uint32_t rotated = masked - 0xA282EAD8u;
    assert_int_equal(rotated >> 17 | rotated << 15, crc32c(data, bytes));
}

static struct piece take_record(struct piece *file) {
    const unsigned char *head = file->at;
    const uint64_t length = take_number(file, 8);
    check_masked((uint32_t)take_number(file, 4), head, 8);
    const struct piece record = take_piece(file, (size_t)length);
    check_masked((uint32_t)take_number(file, 4), record.at, record.bytes);
    return record;
}

/* The payload of the index-th field of this number in a message, whatever stands beside it; numbers are 8 bytes. */
static struct piece field_of(struct piece message, uint64_t number, size_t index) {
    static unsigned char numbers[8][8];
    static size_t next;
    while (message.bytes > 0) {
        const uint64_t key = take_varint(&message);
        struct piece payload;
        if ((key & 7) == 2) {
            payload = take_piece(&message, (size_t)take_varint(&message));
        } else {
            const uint64_t value =
                (key & 7) == 0 ? take_varint(&message) : take_number(&message, (key & 7) == 1 ? 8 : 4);
            unsigned char *bytes = numbers[next++ % 8];
            memcpy(bytes, &value, sizeof value);
            payload = (struct piece){bytes, sizeof value};
        }
        if (key >> 3 == number && index-- == 0) {
            return payload;
        }
    }
    fail_msg("there is no field %d", (int)number);
    return message;
}

static void assert_text(struct piece piece, const char *text) {
    assert_int_equal(piece.bytes, strlen(text));
    assert_memory_equal(piece.at, text, piece.bytes);
}

static double double_field(struct piece message, uint64_t number) {
    double value;
    memcpy(&value, field_of(message, number, 0).at, sizeof value);
    return value;
}

/* An event has this step, and so many scalars and nothing else beside its time. */
static void check_event(struct piece event, int64_t step, size_t scalars) {
    struct piece summary = field_of(event, 5, 0);
    int64_t found;
    memcpy(&found, field_of(event, 2, 0).at, sizeof found);
    assert_true(found == step);
    for (; scalars > 0; scalars--) {
        assert_int_equal(take_varint(&summary), 1 << 3 | 2);
        take_piece(&summary, (size_t)take_varint(&summary));
    }
    assert_int_equal(summary.bytes, 0);
}

static float scalar_of(struct piece event, size_t index, const char *tag) {
    const struct piece scalar = field_of(field_of(event, 5, 0), 1, index);
    float value;
    assert_text(field_of(scalar, 1, 0), tag);
    memcpy(&value, field_of(scalar, 2, 0).at, sizeof value);
    return value;
}

/* The path of the only event file in a folder. */
static void find_events(const char *folder, char *path, size_t bytes) {
    DIR *opened = opendir(folder);
    const struct dirent *entry;
    unsigned found = 0;
    assert_non_null(opened);
    while ((entry = readdir(opened)) != NULL) {
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0) {
            snprintf(path, bytes, "%s/%s", folder, entry->d_name);
            found++;
        }
    }
    closedir(opened);
    assert_int_equal(found, 1);
}

UNIT_TEST(test_events) {
    char path[1024];
    const char *folder = scratch_path("events");
    mkdir(folder, 0777);
    struct event_file *file;
    assert_int_equal(event_file_create(folder, &file), 0);
    const struct event_scalar scalars[] = {{"train/loss", 3.25f}, {"lr", 6e-4f}};
    assert_int_equal(event_file_add(file, 1700000000.5, 0, scalars, 2), 0);
    assert_int_equal(event_file_add(file, 1700000001.5, INT64_C(1) << 40, scalars, 1), 0);
    assert_int_equal(event_file_add(file, 2.0, 5, NULL, 0), 0);
    const struct event_scalar odd = {"", NAN};
    assert_int_equal(event_file_add(file, 3.0, 6, &odd, 1), 0);

    /* Everything is there before closing. */
    find_events(folder, path, sizeof path);
    size_t bytes;
    char *text = scratch_read(path, &bytes);
    assert_non_null(text);
    struct piece rest = {(const unsigned char *)text, bytes};
    struct piece event = take_record(&rest);
    assert_text(field_of(event, 3, 0), "brain.Event:2");
    assert_true(double_field(event, 1) > 1.6e9);
    event = take_record(&rest);
    assert_true(double_field(event, 1) == 1700000000.5);
    check_event(event, 0, 2);
    assert_true(scalar_of(event, 0, "train/loss") == 3.25f);
    assert_true(scalar_of(event, 1, "lr") == 6e-4f);
    event = take_record(&rest);
    check_event(event, INT64_C(1) << 40, 1);
    check_event(take_record(&rest), 5, 0);
    assert_true(isnan(scalar_of(take_record(&rest), 0, "")));
    assert_int_equal(rest.bytes, 0);
    free(text);
    assert_int_equal(event_file_close(file), 0);
}

static double value_of_entry(struct piece session, size_t index, const char *name, uint64_t kind) {
    const struct piece entry = field_of(session, 1, index), value = field_of(entry, 2, 0);
    assert_text(field_of(entry, 1, 0), name);
    return kind == 2 ? double_field(value, kind) : (double)field_of(value, kind, 0).at[0];
}

/* Settings are a text, and a row of hyperparameters with a type each. */
UNIT_TEST(test_settings) {
    char path[1024];
    const char *folder = scratch_path("settings");
    mkdir(folder, 0777);
    struct event_file *file;
    assert_int_equal(event_file_create(folder, &file), 0);
    assert_int_equal(event_file_add_settings(file, 7,
                                             "# Data\nresidual = \"shc\"\nrate = 0.5\nbias = true\nodd = {\n"),
                     0);
    assert_int_equal(event_file_close(file), 0);
    find_events(folder, path, sizeof path);
    size_t bytes;
    char *text = scratch_read(path, &bytes);
    struct piece rest = {(const unsigned char *)text, bytes};
    take_record(&rest);
    const struct piece summary = field_of(take_record(&rest), 5, 0), words = field_of(summary, 1, 0),
                       row = field_of(summary, 1, 1);
    assert_int_equal(rest.bytes, 0);
    assert_text(field_of(words, 1, 0), "settings");
    assert_text(field_of(field_of(field_of(words, 9, 0), 1, 0), 1, 0), "text");
    assert_text(field_of(field_of(words, 8, 0), 8, 0),
                "    # Data\n    residual = \"shc\"\n    rate = 0.5\n    bias = true\n    odd = {\n");
    assert_text(field_of(row, 1, 0), "_hparams_/session_start_info");
    const struct piece plugin = field_of(field_of(row, 9, 0), 1, 0),
                       session = field_of(field_of(plugin, 2, 0), 3, 0);
    assert_text(field_of(plugin, 1, 0), "hparams");
    assert_text(field_of(field_of(field_of(session, 1, 0), 2, 0), 3, 0), "shc");
    assert_true(value_of_entry(session, 1, "rate", 2) == 0.5);
    assert_true(value_of_entry(session, 2, "bias", 4) == 1.0);
    assert_true(double_field(session, 5) > 1.6e9);
    free(text);
}

UNIT_TEST(test_files_are_exclusive) {
    const char *folder = scratch_path("two");
    struct event_file *first, *second;
    mkdir(folder, 0777);
    assert_int_equal(event_file_create(folder, &first), 0);
    assert_int_equal(event_file_create(folder, &second), 0);
    assert_int_equal(scratch_entries(folder), 2);
    assert_int_equal(event_file_close(first), 0);
    assert_int_equal(event_file_close(second), 0);
    assert_int_equal(event_file_close(NULL), 0);
}

UNIT_TEST(test_names) {
    assert_true(event_file_is_name("events.out.tfevents.1700000000.host.example.123.0"));
    static const char *const others[] = {"",
                                         "events.out.tfevents.",
                                         "events.out.tfevents.1.host.2",
                                         "events.out.tfevents.1..2.3",
                                         "events.out.tfevents..host.2.3",
                                         "events.out.tfevents.1.host.2.3.v2",
                                         "events.out.tfevents.1.host.2.x",
                                         "my-events.out.tfevents.1.host.2.3",
                                         "eventsXoutXtfevents.1.host.2.3"};
    for (size_t i = 0; i < COUNT(others); i++) {
        assert_false(event_file_is_name(others[i]));
    }
}

UNIT_TEST(test_failures) {
    struct event_file *file;
    assert_int_equal(event_file_create(scratch_path("no/such"), &file), -1);
    assert_null(file);
    assert_error_text("no/such");

    const char *folder = scratch_path("full");
    mkdir(folder, 0777);
    const struct event_scalar scalar = {"train/loss", 3.25f};
    assert_int_equal(event_file_create(folder, &file), 0);
    scratch_limit_file_size(64);
    assert_error(event_file_add(file, 0, 0, &scalar, 1), "File too large");
    event_file_close(file);
    assert_int_equal(event_file_create(folder, &file), 0);
    event_file_close(file);
    scratch_limit_file_size(10);
    assert_int_equal(event_file_create(folder, &file), -1);
    assert_null(file);
    scratch_limit_file_size(UINT64_MAX);
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
