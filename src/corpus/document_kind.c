#include "src/corpus/document_kind.h"
#include "runtime/system/error.h"
#include <fnmatch.h>
#include <stdbool.h>

static const char *const kind_names[] = {"chunks", "files", "jsonl"};

const char *document_kind_name(enum document_kind kind) {
    return kind_names[kind];
}

static bool is_json_lines(const char *name) {
    return fnmatch("?*.@(jsonl|ndjson|json)?(.zst)?(.gz)", name, FNM_EXTMATCH) == 0;
}

int document_kind_by_names(const char *const *names, size_t count, enum document_kind otherwise,
                           enum document_kind *kind) {
    size_t json = 0;
    for (size_t i = 0; i < count; i++) {
        json += is_json_lines(names[i]);
    }
    if (json > 0 && json < count) {
        return error_set("some files are JSON lines by their names and some are not: take them one kind at a time, "
                         "or say with --documents what all of them are");
    }
    *kind = json > 0 ? DOCUMENT_JSONL : otherwise;
    return 0;
}
