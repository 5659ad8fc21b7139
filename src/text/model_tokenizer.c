#include "src/text/model_tokenizer.h"
#include "runtime/system/error.h"
#include <inttypes.h>
#include <string.h>

enum { BYTES = 256, GPT2_PADDED = 50304 };

/* "byte", "gpt2", or what config.json has instead; NULL: nothing tells. */
static const char *choose(const struct model_config *config, enum tokenizer_word word) {
    const bool gpt2 = config->vocab_size >= GPT2_TOKENS && config->vocab_size <= GPT2_PADDED;
    return word == TOKENIZER_BYTE        ? "byte"
           : word == TOKENIZER_GPT2      ? "gpt2"
           : *config->tokenizer          ? config->tokenizer
           : config->vocab_size == BYTES ? "byte"
           : gpt2                        ? "gpt2"
                                         : NULL;
}

int model_tokenizer_open(const struct model_config *config, const struct tokenizer_settings *settings,
                         struct tokenizer **opened) {
    const char *name = choose(config, (enum tokenizer_word)settings->word), *vocabulary = NULL;
    *opened = NULL;
    if (!name) {
        return error_set("the checkpoint does not say what its %" PRId64
                         " tokens are: --tokenizer byte or --tokenizer gpt2 does",
                         config->vocab_size);
    }
    const bool gpt2 = strcmp(name, "gpt2") == 0;
    if (!gpt2 && strcmp(name, "byte") != 0) {
        return error_set("the model's tokenizer '%s' is none of byte and gpt2", name);
    }
    if ((gpt2 && !(vocabulary = tokenizer_find_vocabulary(settings->vocabulary))) ||
        tokenizer_open(vocabulary, opened)) {
        return -1;
    }
    if (tokenizer_count(*opened) > config->vocab_size) {
        error_set("the model has %" PRId64 " tokens and the tokenizer '%s' %" PRIu32, config->vocab_size,
                  tokenizer_name(*opened), tokenizer_count(*opened));
        tokenizer_close(*opened);
        *opened = NULL;
    }
    return *opened ? 0 : -1;
}
