#include "runtime/device/recorder.h"
#include "runtime/system/error.h"
#include <stdlib.h>

void recorder_release(struct recorder *recorder) {
    if (recorder) {
        free(recorder->records);
        free(recorder);
    }
}

void recorder_clear(struct recorder *recorder) {
    recorder->count = 0;
}

int recorder_add(struct recorder *recorder, const struct record *record) {
    if (recorder->count == recorder->capacity) {
        const size_t capacity = recorder->capacity ? 2 * recorder->capacity : 1024;
        struct record *records = realloc(recorder->records, capacity * sizeof *records);
        if (!records) {
            return error_set("out of memory for the record of launches");
        }
        recorder->records = records;
        recorder->capacity = capacity;
    }
    recorder->records[recorder->count++] = *record;
    return 0;
}
