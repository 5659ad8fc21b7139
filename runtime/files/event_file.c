#include "runtime/files/event_file.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The formats, as far as they are used here:
 *   record:  u64 length, u32 masked CRC of the length, bytes, u32 masked CRC of the bytes; little-endian
 *   Event:   1 wall_time (double), 2 step (varint), 3 file_version (string), 5 summary (Summary) or 7 session_log
 *   Summary: 1 value (Value), repeated;  Value: 1 tag (string), 2 simple_value (float)
 *   SessionLog: 1 status (varint), 1 for START
 * tensorflow/core/lib/io/record_writer.cc, core/util/event.proto, core/framework/summary.proto. */
enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

enum { SESSION_START = 1 }; /* SessionLog's word for it */

enum { MOST_FILES_PER_SECOND = 1000 };

struct event_file {
    FILE *stream;
    char *path;
};

struct message {
    unsigned char *bytes;
    size_t size, capacity;
    int failed; /* out of memory */
};

static void message_append(struct message *message, const void *data, size_t bytes) {
    if (message->failed || bytes == 0) {
        return;
    }
    if (message->capacity - message->size < bytes) {
        const size_t capacity = 2 * (message->size + bytes) + 64;
        unsigned char *grown = realloc(message->bytes, capacity);
        if (grown == NULL) {
            message->failed = 1;
            return;
        }
        message->bytes = grown;
        message->capacity = capacity;
    }
    memcpy(message->bytes + message->size, data, bytes);
    message->size += bytes;
}

static void message_varint(struct message *message, uint64_t value) {
    do {
        const unsigned char byte = (unsigned char)((value & 0x7F) | (value > 0x7F ? 0x80 : 0));
        message_append(message, &byte, 1);
        value >>= 7;
    } while (value != 0);
}

static void message_key(struct message *message, unsigned field, unsigned wire) {
    message_varint(message, field << 3 | wire);
}

static void message_field(struct message *message, unsigned field, const void *data, size_t bytes) {
    message_key(message, field, WIRE_BYTES);
    message_varint(message, bytes);
    message_append(message, data, bytes);
}

static void little_endian(unsigned char *bytes, uint64_t value, size_t count) {
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (unsigned char)(value >> (8 * i));
    }
}

static void message_double(struct message *message, unsigned field, double value) {
    unsigned char bytes[8];
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    little_endian(bytes, bits, sizeof bytes);
    message_key(message, field, WIRE_64);
    message_append(message, bytes, sizeof bytes);
}

static void message_float(struct message *message, unsigned field, float value) {
    unsigned char bytes[4];
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    little_endian(bytes, bits, sizeof bytes);
    message_key(message, field, WIRE_32);
    message_append(message, bytes, sizeof bytes);
}

uint32_t event_file_crc32c(const void *data, size_t bytes) {
    /* Bit by bit: events are a hundred bytes, a few times a second at most. */
    const unsigned char *at = data;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (0x82F63B78u & (0 - (crc & 1)));
        }
    }
    return ~crc;
}

static uint32_t masked_crc(const void *data, size_t bytes) {
    const uint32_t crc = event_file_crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

/* Writes the message as one record and releases it. */
static int write_record(struct event_file *file, struct message *message) {
    unsigned char head[12], tail[4];
    little_endian(head, message->size, 8);
    little_endian(head + 8, masked_crc(head, 8), 4);
    int result = 0;
    if (message->failed) {
        result = error_set("out of memory writing %s", file->path);
    } else {
        little_endian(tail, masked_crc(message->bytes, message->size), 4);
        errno = 0;
        if (fwrite(head, sizeof head, 1, file->stream) != 1 ||
            fwrite(message->bytes, message->size, 1, file->stream) != 1 ||
            fwrite(tail, sizeof tail, 1, file->stream) != 1 || fflush(file->stream) != 0) {
            result = error_set_errno("cannot write %s", file->path);
        }
    }
    free(message->bytes);
    return result;
}

bool event_file_is_name(const char *name) {
    static const char first[] = "events.out.tfevents.", digits[] = "0123456789";
    const size_t prefix = sizeof first - 1, length = strlen(name);
    if (strncmp(name, first, prefix) != 0) {
        return false;
    }
    const char *end = name + length;
    for (int i = 0; i < 2; i++) { /* ".<pid>.<number>" */
        const char *at = end;
        while (at > name + prefix && strchr(digits, at[-1]) != NULL) {
            at--;
        }
        if (at == end || at[-1] != '.') {
            return false;
        }
        end = at - 1;
    }
    const size_t seconds = strspn(name + prefix, digits);
    return seconds > 0 && name[prefix + seconds] == '.' && name + prefix + seconds + 1 < end;
}

static int write_version(struct event_file *file) {
    static const char version[] = "brain.Event:2";
    struct message event = {0};
    message_double(&event, 1, (double)time(NULL));
    message_field(&event, 3, version, sizeof version - 1);
    return write_record(file, &event);
}

/* Creates the first free name; -1 with an error text. */
static int create_file(const char *folder, struct event_file *file) {
    char host[256] = "localhost";
    if (gethostname(host, sizeof host - 1) != 0 || strchr(host, '/') != NULL) {
        strcpy(host, "localhost");
    }
    for (int number = 0; number < MOST_FILES_PER_SECOND; number++) {
        free(file->path);
        file->path = files_path("%s/events.out.tfevents.%lld.%s.%ld.%d", folder, (long long)time(NULL), host,
                                (long)getpid(), number);
        if (file->path == NULL) {
            return -1;
        }
        file->stream = fopen(file->path, "wbxe");
        if (file->stream != NULL) {
            return 0;
        }
        if (errno != EEXIST) {
            break;
        }
    }
    return error_set_errno("cannot create %s", file->path);
}

int event_file_create(const char *folder, struct event_file **created) {
    *created = NULL;
    struct event_file *file = calloc(1, sizeof *file);
    if (file == NULL) {
        return error_set("out of memory creating an event file in %s", folder);
    }
    if (create_file(folder, file) != 0 || write_version(file) != 0) {
        if (file->stream != NULL) {
            fclose(file->stream);
        }
        free(file->path);
        free(file);
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
        message_field(&value, 1, scalars[i].tag, strlen(scalars[i].tag));
        message_float(&value, 2, scalars[i].value);
        if (value.failed) {
            summary.failed = 1;
        } else {
            message_field(&summary, 1, value.bytes, value.size);
        }
        free(value.bytes);
    }
    struct message event = {.failed = summary.failed};
    message_double(&event, 1, wall_time);
    message_key(&event, 2, WIRE_VARINT);
    message_varint(&event, (uint64_t)step);
    if (!summary.failed) {
        message_field(&event, 5, summary.bytes, summary.size);
    }
    free(summary.bytes);
    return write_record(file, &event);
}

int event_file_restart(struct event_file *file, int64_t step) {
    struct message log = {0}, event = {0};
    message_key(&log, 1, WIRE_VARINT);
    message_varint(&log, SESSION_START);
    message_double(&event, 1, (double)time(NULL));
    message_key(&event, 2, WIRE_VARINT);
    message_varint(&event, (uint64_t)step);
    message_field(&event, 7, log.bytes, log.size);
    event.failed = event.failed || log.failed;
    free(log.bytes);
    return write_record(file, &event);
}

int event_file_close(struct event_file *file) {
    if (file == NULL) {
        return 0;
    }
    errno = 0;
    const int result = fclose(file->stream) == 0 ? 0 : error_set_errno("cannot write %s", file->path);
    free(file->path);
    free(file);
    return result;
}
