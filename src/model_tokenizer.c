#include "src/model_tokenizer.h"
#include "runtime/error.h"
#include "src/hugging_face.h"
#include <inttypes.h>
#include <string.h>

/* Models on token files of unknown origin name no tokenizer. */
static int choose(const struct model_config *config, bool *gpt2) {
    const char *name = config->tokenizer;
    *gpt2 = *name != '\0' ? strcmp(name, "gpt2") == 0 : config->vocab_size >= GPT2_TOKENS;
    return *gpt2 || *name == '\0' || strcmp(name, "byte") == 0
               ? 0
               : error_set("the model's tokenizer '%s' is none of byte and gpt2", name);
}

int model_tokenizer_open(const struct model_config *config, const char *ranks, struct tokenizer **opened) {
    bool gpt2;
    *opened = NULL;
    if (choose(config, &gpt2) || (gpt2 && !(ranks = tokenizer_find_ranks(ranks))) ||
        tokenizer_open(gpt2 ? ranks : NULL, opened)) {
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
