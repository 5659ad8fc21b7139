#include "src/text/model_tokenizer.h"
#include "runtime/files/files.h"
#include "runtime/files/token_file.h"
#include "runtime/system/error.h"
#include "src/model/model_config.h"
#include <inttypes.h>
#include <string.h>

enum { GPT2_PADDED_TOKENS = 50304 };

int tokenizer_choose(const struct tokenizer_settings *settings, struct tokenizer_source *source) {
    const char *name = settings->tokenizer;
    *source = (struct tokenizer_source){.end_of_text = settings->end_of_text,
                                        .parse_special = settings->special == SPECIAL_PARSE};
    if (strcmp(name, "gpt2") == 0) {
        source->kind = TOKENIZER_GPT2;
        source->path = tokenizer_find_vocabulary(settings->vocabulary);
        return source->path ? 0 : -1;
    }
    if (strcmp(name, "byte") != 0 && strcmp(name, "auto") != 0) {
        source->kind = TOKENIZER_FILE;
        source->path = name;
        return files_exist(name) ? 0
                                 : error_set("'%s' is not there: --tokenizer takes byte, gpt2 or the path of a "
                                             "tokenizer.json",
                                             name);
    }
    return 0;
}

/* The name of the model's tokenizer; NULL if nothing says which it is. */
static const char *name_of(const struct model_config *config, const char *file) {
    const bool gpt2 = config->vocab_size >= GPT2_TOKENS && config->vocab_size <= GPT2_PADDED_TOKENS;
    return strcmp(config->tokenizer, "file") == 0 ? file
           : *config->tokenizer                   ? config->tokenizer
           : files_exist(file)                    ? file
           : config->vocab_size == 256            ? "byte"
           : gpt2                                 ? "gpt2"
                                                  : NULL;
}

int tokenizer_open_for(const struct model_config *config, const char *folder,
                       const struct tokenizer_settings *settings, struct tokenizer **opened) {
    const struct path file = path_of("%s/" TOKENIZER_FILE_NAME, folder);
    struct tokenizer_settings chosen = *settings;
    struct tokenizer_source source;
    *opened = NULL;
    if (strcmp(settings->tokenizer, "auto") == 0) {
        const char *name = name_of(config, file.text);
        if (!name) {
            return error_set("the checkpoint does not say which tokenizer its %" PRId64
                             " tokens are of: give --tokenizer byte, gpt2, or the path of a tokenizer.json",
                             config->vocab_size);
        }
        if (name != file.text && strcmp(name, "gpt2") != 0 && strcmp(name, "byte") != 0) {
            return error_set("the model's tokenizer '%s' is none of byte, gpt2 and file", name);
        }
        chosen.tokenizer = (char *)(uintptr_t)name;
    }
    if (tokenizer_choose(&chosen, &source)) {
        return -1;
    }
    source.rows = config->vocab_size;
    return tokenizer_open(&source, opened);
}
