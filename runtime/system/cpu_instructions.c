#include "runtime/system/cpu_instructions.h"
#include "runtime/system/array.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As Linux names them, and as their makers do. The widest first. */
static const struct feature_row {
    const char *feature, *name;
    enum element_type type;
} rows[] = {
    {"amx_bf16", "AMX_BF16", ELEMENT_BF16}, {"avx512_bf16", "AVX512_BF16", ELEMENT_BF16},
    {"svebf16", "SVE BF16", ELEMENT_BF16},  {"bf16", "NEON BF16", ELEMENT_BF16},
    {"amx_fp16", "AMX_FP16", ELEMENT_FP16}, {"avx512_fp16", "AVX512_FP16", ELEMENT_FP16},
};

static bool has_word(const char *line, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = line; *at; at += strcspn(at, " \t\n")) {
        at += strspn(at, " \t\n");
        if (strcspn(at, " \t\n") == length && !strncmp(at, word, length)) {
            return true;
        }
    }
    return false;
}

static void add_name(char name[CPU_INSTRUCTIONS_NAME], const char *more) {
    const size_t used = strlen(name);
    snprintf(name + used, CPU_INSTRUCTIONS_NAME - used, "%s%s", used ? ", " : "", more);
}

void cpu_instructions_find(const char *features, struct cpu_instructions *found) {
    *found = (struct cpu_instructions){0};
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (has_word(features, rows[i].feature)) {
            add_name(found->names[rows[i].type], rows[i].name);
        }
    }
}

/* "flags : ..." on x86, "Features : ..." on Arm. */
static const char *features_of(const char *line) {
    const char *colon = strchr(line, ':');
    return colon && (!strncmp(line, "flags", 5) || !strncmp(line, "Features", 8)) ? colon + 1 : NULL;
}

void cpu_instructions_read(const char *path, struct cpu_instructions *found) {
    FILE *file = fopen(path, "re");
    const char *features = NULL;
    char *line = NULL;
    size_t capacity = 0;
    *found = (struct cpu_instructions){0};
    while (file && !features && getline(&line, &capacity, file) >= 0) {
        features = features_of(line);
    }
    if (features) {
        cpu_instructions_find(features, found);
    }
    free(line);
    if (file) {
        fclose(file);
    }
}
