#include "src/model/lora.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of Llama's modules, whose words are what follows the dot, and in Hugging Face's models end with _proj; and of
 * GPT-2's, which has the same names there. */
static const struct {
    const char *name, *gpt2;
} table[LORA_MODULES] = {
    [LORA_Q] = {"attn.q", "attn.c_attn"},     [LORA_K] = {"attn.k", "attn.c_attn"},
    [LORA_V] = {"attn.v", "attn.c_attn"},     [LORA_O] = {"attn.o", "attn.c_proj"},
    [LORA_GATE] = {"mlp.gate", "mlp.c_gate"}, [LORA_UP] = {"mlp.up", "mlp.c_fc"},
    [LORA_DOWN] = {"mlp.down", "mlp.c_proj"},
};

static const char *word_of(const char *name) {
    return strchr(name, '.') + 1;
}

const char *lora_module_name(struct lora_modules modules, enum lora_module module) {
    return modules.gpt2 ? table[module].gpt2 : table[module].name;
}

double lora_scale(const struct lora_settings *lora) {
    const double rank = (double)lora->rank;
    return lora->alpha / (lora->by_root ? sqrt(rank) : rank);
}

/* The modules that a word names; 0: none. */
static unsigned named(bool gpt2, const char *word, size_t length) {
    unsigned found = 0;
    for (size_t i = 0; i < LORA_MODULES; i++) {
        char theirs[16];
        snprintf(theirs, sizeof theirs, "%s_proj", word_of(table[i].name));
        const char *names[] = {word_of(table[i].name), gpt2 ? word_of(table[i].gpt2) : theirs,
                               gpt2 ? table[i].gpt2 : theirs};
        for (size_t k = 0; k < COUNT(names); k++) {
            const bool is_named = strlen(names[k]) == length && strncmp(word, names[k], length) == 0;
            found |= is_named ? 1u << i : 0;
        }
    }
    return found;
}

int lora_read_targets(struct lora_modules modules, const char *text, unsigned *targets) {
    const bool gpt2 = modules.gpt2;
    const unsigned attention = 1u << LORA_Q | 1u << LORA_K | 1u << LORA_V;
    *targets = 0;
    for (const char *word = text, *end; *word; word = end + (*end == ',')) {
        end = word + strcspn(word, ",");
        const unsigned found = named(gpt2, word, (size_t)(end - word));
        if (!found) {
            return error_set("lora_targets: this model has no '%.*s': its modules are %s", (int)(end - word), word,
                             gpt2
                                 ? "c_attn, c_fc and c_proj, of which attn.c_proj and mlp.c_proj may be named alone"
                                 : "q, k, v, o, gate, up and down");
        }
        *targets |= found;
    }
    *targets &= modules.gated ? ~0u : ~(1u << LORA_GATE);
    if (!*targets) {
        return error_set("lora_targets = %s: this model has none of them", text);
    }
    if (gpt2 && (*targets & attention) && (*targets & attention) != attention) {
        return error_set("lora_targets: q, k and v of this model are one module, c_attn: name that");
    }
    return 0;
}

char *lora_write_targets(struct lora_modules modules, unsigned targets) {
    const bool gpt2 = modules.gpt2;
    char text[128] = "";
    for (size_t i = 0, used = 0; i < LORA_MODULES; i++) {
        if (targets >> i & 1 && !(gpt2 && (i == LORA_K || i == LORA_V))) {
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used ? "," : "",
                                     gpt2 ? table[i].gpt2 : word_of(table[i].name));
        }
    }
    return memory_string(text);
}
