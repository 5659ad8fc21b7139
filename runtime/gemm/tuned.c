#include "runtime/gemm/tuned.h"
#include "runtime/files/checksum.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_LIMIT   65536
#define NUMBER_LIMIT 65536
#define NAME_DIGITS  16 /* of the checksum, in the file's name */

char *tuned_path(const struct tuned_target *target, const char *folder) {
    const struct device *device = target->device;
    const char *const parts[] = {device->name, device->platform_name, device->version, device->driver,
                                 target->unit ? target->unit->name : NULL};
    char digest[CHECKSUM_SIZE];
    if (checksum_strings(parts, target->unit ? 5 : 4, digest)) {
        return NULL;
    }
    return memory_format("%s/%s-%.*s.json", folder, target->kind->backend, NAME_DIGITS, digest);
}

/* The object of the file that has number `i`. */
static json_t *object_of(const struct tuned_kind *kind, json_t *json, size_t i) {
    return i < kind->grouped ? json_object_get(json, kind->group) : json;
}

static bool take(const struct tuned_kind *kind, json_t *json, union tuned_values *values) {
    bool whole = !kind->group || json_object_size(json_object_get(json, kind->group)) == kind->grouped;
    *values = (union tuned_values){{0}};
    for (size_t i = 0; i < kind->count && whole; i++) {
        const json_t *item = json_object_get(object_of(kind, json, i), kind->numbers[i].name);
        const json_int_t number = json_integer_value(item);
        values->at[i] = (size_t)number;
        whole = json_is_integer(item) && number >= 0 && number <= NUMBER_LIMIT;
    }
    return whole;
}

int tuned_read(const struct tuned_target *target, const char *path, union tuned_values *values, bool *found) {
    const struct tuned_kind *kind = target->kind;
    json_t *json = NULL;
    *found = access(path, F_OK) == 0; /* a cache that may not be searched is none */
    if (!*found) {
        return 0;
    }
    int status = json_file_read(path, FILE_LIMIT, &json);
    if (status == 0 && (!take(kind, json, values) || !kind->allowed(target, values))) {
        status = error_set("%s: these are no %s for %s %s %s", path, kind->what,
                           target->unit ? target->unit->name : "CLBlast", target->unit ? "of" : "on",
                           target->device->name);
    }
    json_decref(json);
    return status ? error_set("%s; remove the file, or write a new one by %s", error_text(), kind->command) : 0;
}

int tuned_load(const struct tuned_target *target, const char *folder, union tuned_values *values, bool *found) {
    *found = false;
    if (!folder) {
        return 0;
    }
    char *path = tuned_path(target, folder);
    const int status = path ? tuned_read(target, path, values, found) : -1;
    free(path);
    return status;
}

int tuned_write(const struct tuned_target *target, const char *path, const union tuned_values *values) {
    const struct tuned_kind *kind = target->kind;
    char *folder = strndup(path, (size_t)(strrchr(path, '/') - path));
    int status = folder ? files_make_folder(folder) : error_set("out of memory");
    free(folder);
    json_t *json = json_pack("{s:s, s:s}", "device", target->device->name, "driver", target->device->driver);
    for (size_t i = kind->grouped; i < kind->count; i++) {
        json_object_set_new(json, kind->numbers[i].name, json_integer((json_int_t)values->at[i]));
    }
    if (kind->group) {
        json_object_set_new(json, kind->group, json_object());
    }
    for (size_t i = 0; i < kind->grouped; i++) {
        json_object_set_new(object_of(kind, json, i), kind->numbers[i].name,
                            json_integer((json_int_t)values->at[i]));
    }
    status = status || json_file_write(path, json, JSON_INDENT(1)) ? -1 : 0;
    json_decref(json);
    return status;
}
