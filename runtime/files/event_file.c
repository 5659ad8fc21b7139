#include "runtime/files/event_file.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <errno.h>
#include <fnmatch.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The formats, as far as they are used here:
 *   record:  u64 length, u32 masked CRC of the length, bytes, u32 masked CRC of the bytes; little-endian
 *   Event:   1 wall_time (double), 2 step (varint), 3 file_version (string), 5 summary (Summary) or 7 session_log
 *   Summary: 1 value (Value), repeated;  Value: 1 tag (string), 2 simple_value (float), or 8 tensor and 9 metadata
 *   TensorProto: 1 dtype (varint), 2 tensor_shape, 5 float_val (packed), 8 string_val
 *   SummaryMetadata: 1 plugin_data, 4 data_class (varint);  PluginData: 1 plugin_name, 2 content
 *   SessionLog: 1 status (varint), 1 for START
 *   content of hyperparameters: 3 session_start_info;  SessionStartInfo: 1 map entries, 5 start_time_secs (double)
 *   an entry: 1 name (string), 2 value, which is 2 number (double), 3 string or 4 bool (varint)
 * tensorflow/core/lib/io/record_writer.cc, core/util/event.proto, core/framework/summary.proto and tensor.proto;
 * tensorboard/plugins/hparams/plugin_data.proto, google/protobuf/struct.proto. */
enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

/* Of SessionLog, of TensorProto, and of SummaryMetadata. */
static const uint64_t SESSION_START = 1, TYPE_FLOAT = 1, TYPE_STRING = 7, CLASS_TENSOR = 2;

enum { MOST_FILES_PER_SECOND = 1000 };

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "numbers are written as the machine has them, which must be little-endian"
#endif

struct event_file {
    FILE *stream;
    struct path path;
};

struct message {
    unsigned char *bytes;
    size_t size;
};

static void message_append(struct message *message, const void *data, size_t bytes) {
    if (bytes > 0) {
        message->bytes = memory_resize(message->bytes, message->size + bytes, 1);
        memcpy(message->bytes + message->size, data, bytes);
        message->size += bytes;
    }
}

static void append_varint(struct message *message, uint64_t value) {
    do {
        const unsigned char byte = (unsigned char)((value & 0x7F) | (value > 0x7F ? 0x80 : 0));
        message_append(message, &byte, 1);
        value >>= 7;
    } while (value != 0);
}

/* Appends a field of this wire type: its key, for bytes their number, and the data as the machine has it, which is
 * little-endian. */
static void append_field(struct message *message, unsigned field, enum wire wire, const void *data, size_t bytes) {
    append_varint(message, field << 3 | wire);
    if (wire == WIRE_BYTES) {
        append_varint(message, bytes);
    }
    message_append(message, data, bytes);
}

/* Appends fields, for each of which `fields` has a digit and the type of its argument: d, a double; f, a double
 * that is written as a float; i, a uint64_t; s, a string; m, a message, which is released. */
static void pack(struct message *message, const char *fields, ...) {
    va_list arguments;
    va_start(arguments, fields);
    for (; *fields != '\0'; fields += 2) {
        const unsigned field = (unsigned)(*fields - '0');
        if (fields[1] == 'd') {
            append_field(message, field, WIRE_64, &(double){va_arg(arguments, double)}, sizeof(double));
        } else if (fields[1] == 'f') {
            append_field(message, field, WIRE_32, &(float){(float)va_arg(arguments, double)}, sizeof(float));
        } else if (fields[1] == 'i') {
            append_field(message, field, WIRE_VARINT, NULL, 0);
            append_varint(message, va_arg(arguments, uint64_t));
        } else if (fields[1] == 's') {
            const char *text = va_arg(arguments, const char *);
            append_field(message, field, WIRE_BYTES, text, strlen(text));
        } else {
            const struct message *inner = va_arg(arguments, const struct message *);
            append_field(message, field, WIRE_BYTES, inner->bytes, inner->size);
            free(inner->bytes);
        }
    }
    va_end(arguments);
}

/* CRC-32C (Castagnoli), masked. */
static uint32_t masked_crc(const void *data, size_t bytes) {
    /* Bit by bit: events are a hundred bytes, a few times a second at most. */
    const unsigned char *at = data;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (0x82F63B78u & (0 - (crc & 1)));
        }
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

/* Writes the message as one record and releases it. */
static int write_record(struct event_file *file, struct message *message) {
    const uint64_t length = message->size;
    const uint32_t length_crc = masked_crc(&length, sizeof length);
    const uint32_t crc = masked_crc(message->bytes, message->size);
    const bool written = fwrite(&length, sizeof length, 1, file->stream) == 1 &&
                         fwrite(&length_crc, sizeof length_crc, 1, file->stream) == 1 &&
                         fwrite(message->bytes, message->size, 1, file->stream) == 1 &&
                         fwrite(&crc, sizeof crc, 1, file->stream) == 1 && fflush(file->stream) == 0;
    free(message->bytes);
    return written ? 0 : error_set_errno("cannot write %s", file->path.text);
}

bool event_file_is_name(const char *name) {
    return fnmatch("events.out.tfevents.+([0-9]).?*.+([0-9]).+([0-9])", name, FNM_EXTMATCH) == 0;
}

static int write_version(struct event_file *file) {
    struct message event = {0};
    pack(&event, "1d3s", (double)time(NULL), "brain.Event:2");
    return write_record(file, &event);
}

/* Writes an event of this step with one message, which is released; `fields` is "1d2i" and the message's. */
static int write_step(struct event_file *file, double wall_time, int64_t step, const char *fields,
                      struct message *message) {
    struct message event = {0};
    pack(&event, fields, wall_time, (uint64_t)step, message);
    return write_record(file, &event);
}

/* Creates the first free name; -1 with an error text. */
static int create_file(const char *folder, struct event_file *file) {
    char host[256] = "localhost";
    if (gethostname(host, sizeof host - 1) != 0 || strchr(host, '/') != NULL) {
        strcpy(host, "localhost");
    }
    for (int number = 0; number < MOST_FILES_PER_SECOND; number++) {
        file->path = path_of("%s/events.out.tfevents.%lld.%s.%ld.%d", folder, (long long)time(NULL), host,
                             (long)getpid(), number);
        file->stream = fopen(file->path.text, "wbxe");
        if (file->stream != NULL) {
            return 0;
        }
        if (errno != EEXIST) {
            break;
        }
    }
    return error_set_errno("cannot create %s", file->path.text);
}

int event_file_create(const char *folder, struct event_file **created) {
    *created = NULL;
    struct event_file *file = memory_zeroed(1, sizeof *file);
    if (create_file(folder, file) != 0 || write_version(file) != 0) {
        event_file_close(file);
        return -1;
    }
    *created = file;
    return 0;
}

int event_file_add(struct event_file *file, double wall_time, int64_t step, const struct event_scalar *scalars,
                   size_t count) {
    struct message summary = {0};
    for (size_t i = 0; i < count; i++) {
        struct message value = {0};
        pack(&value, "1s2f", scalars[i].tag, (double)scalars[i].value);
        pack(&summary, "1m", &value);
    }
    return write_step(file, wall_time, step, "1d2i5m", &summary);
}

int event_file_restart(struct event_file *file, int64_t step) {
    struct message log = {0};
    pack(&log, "1i", SESSION_START);
    return write_step(file, (double)time(NULL), step, "1d2i7m", &log);
}

/* ---- settings */

/* Adds a value that a plugin of TensorBoard's shows to a summary; content and tensor are released. */
static void add_plugin_value(struct message *summary, const char *tag, const char *plugin, struct message *content,
                             struct message *tensor) {
    struct message value = {0}, metadata = {0}, data = {0};
    pack(&data, "1s2m", plugin, content);
    pack(&metadata, "1m4i", &data, CLASS_TENSOR);
    pack(&value, "1s8m9m", tag, tensor, &metadata);
    pack(summary, "1m", &value);
}

/* One setting as an entry of the map; others than strings, numbers and truths, and NULL, are left out. */
static void add_setting(struct message *session, const char *name, const json_t *setting) {
    struct message entry = {0}, value = {0};
    if (json_is_string(setting)) {
        pack(&value, "3s", json_string_value(setting));
    } else if (json_is_boolean(setting)) {
        pack(&value, "4i", (uint64_t)json_is_true(setting));
    } else if (json_is_number(setting)) {
        pack(&value, "2d", json_number_value(setting));
    } else {
        return;
    }
    pack(&entry, "1s2m", name, &value);
    pack(session, "1m", &entry);
}

/* The settings as a row of the table of hyperparameters. The tensor, one 0, is there because a value needs one. */
static void add_row(struct message *summary, const char *lines) {
    struct message content = {0}, session = {0}, tensor = {0}, shape = {0}, dimension = {0}, values = {0};
    json_t *settings = json_file_settings(lines), *setting;
    const char *name;
    json_object_foreach(settings, name, setting) {
        add_setting(&session, name, setting);
    }
    json_decref(settings);
    pack(&session, "5d", (double)time(NULL));
    pack(&content, "3m", &session);
    pack(&dimension, "1i", (uint64_t)1);
    pack(&shape, "2m", &dimension);
    message_append(&values, &(float){0.0f}, sizeof(float));
    pack(&tensor, "1i2m5m", TYPE_FLOAT, &shape, &values);
    add_plugin_value(summary, "_hparams_/session_start_info", "hparams", &content, &tensor);
}

/* The lines as Markdown's verbatim text, which is set off by four blanks. */
static void add_text(struct message *summary, const char *lines) {
    struct message content = {0}, tensor = {0}, shape = {0}, text = {0};
    for (const char *line = lines; *line;) {
        const size_t bytes = strcspn(line, "\n") + (strchr(line, '\n') != NULL);
        message_append(&text, "    ", 4);
        message_append(&text, line, bytes);
        line += bytes;
    }
    pack(&tensor, "1i2m8m", TYPE_STRING, &shape, &text);
    add_plugin_value(summary, "settings", "text", &content, &tensor);
}

int event_file_add_settings(struct event_file *file, int64_t step, const char *lines) {
    struct message summary = {0};
    add_text(&summary, lines);
    add_row(&summary, lines);
    return write_step(file, (double)time(NULL), step, "1d2i5m", &summary);
}

int event_file_close(struct event_file *file) {
    if (file == NULL) {
        return 0;
    }
    errno = 0;
    const int result =
        file->stream == NULL || fclose(file->stream) == 0 ? 0 : error_set_errno("cannot write %s", file->path.text);
    free(file);
    return result;
}
