#include "src/model_tokenizer.h"
#include "runtime/error.h"
#include "runtime/files.h"
#include <stdlib.h>
#include <string.h>

static const char *ranks_path(const char *ranks) {
    const char *environment = getenv("HCTRAIN_RANKS");
    return ranks && *ranks ? ranks : environment && *environment ? environment : TOKENIZER_RANKS;
}

int tokenizer_open_named(const char *name, const char *ranks, struct tokenizer **opened) {
    *opened = NULL;
    if (strcmp(name, "byte") == 0) {
        return tokenizer_open(NULL, opened);
    }
    if (strcmp(name, "gpt2") != 0) {
        return error_set("there is no tokenizer '%s'; there are byte and gpt2", name);
    }
    const char *path = ranks_path(ranks);
    if (!files_exist(path)) {
        return error_set("GPT-2's tokens need its vocabulary, and there is no file %s: data/gpt2/ranks.sh gets it; "
                         "--ranks or HCTRAIN_RANKS say where else it is",
                         path);
    }
    return tokenizer_open(path, opened);
}
