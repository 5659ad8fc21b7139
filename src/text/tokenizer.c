#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/text/tokenizer.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/utf8.h"
#include "src/model/model_config.h"
#include <inttypes.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* White space as Unicode defines it; PCRE2's \s also contains U+180E. */
#define SPACE "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

/* Letters and numbers of Unicode 15 and 16, which tiktoken knows and older versions of PCRE2 do not. */
#define NEW_LETTERS                                                                                                \
    "\\x{1c89}-\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d65}"          \
    "\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}"     \
    "\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}"      \
    "\\x{11f12}-\\x{11f33}\\x{1342f}\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}"               \
    "\\x{16d40}-\\x{16d6c}\\x{18cff}\\x{1b132}\\x{1b155}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}"                \
    "\\x{1e4d0}-\\x{1e4eb}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"
#define NEW_NUMBERS                                                                                                \
    "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}\\x{16130}-\\x{16139}"    \
    "\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}"
#define LETTER "\\p{L}" NEW_LETTERS
#define NUMBER "\\p{N}" NEW_NUMBERS

/* GPT-2's pieces: contractions; words, numbers and other signs, each with an optional space before it; white space
 * without its last character, which may belong to the next word. Only that last case backtracks. */
static const char pattern[] = "'(?:[sdmt]|ll|ve|re)"
                              "| ?[" LETTER "]++"
                              "| ?[" NUMBER "]++"
                              "| ?[^" SPACE LETTER NUMBER "]++"
                              "|[" SPACE "]++\\z"
                              "|[" SPACE "]+(?=[" SPACE "])"
                              "|[" SPACE "]";

static const char end_of_text[] = "<|endoftext|>";

struct tokenizer {
    struct bpe *bpe; /* NULL: bytes */
    pcre2_code *pieces;
    bool compiled;   /* to machine code */
    char bytes[256]; /* 0, 1, ...: the tokens without a vocabulary */
};

/* ---- opening */

static int compile_pieces(struct tokenizer *tokenizer) {
    int code;
    PCRE2_SIZE at;
    tokenizer->pieces =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    if (!tokenizer->pieces) {
        return error_set("PCRE2 refuses GPT-2's pattern at %zu (error %d): it must be built with Unicode", at,
                         code);
    }
    /* not every processor has a compiler: interpreting the pattern gives the same pieces */
    tokenizer->compiled = pcre2_jit_compile(tokenizer->pieces, PCRE2_JIT_COMPLETE) == 0;
    return 0;
}

int tokenizer_open(const char *vocabulary, struct tokenizer **opened) {
    struct tokenizer *tokenizer = *opened = memory_zeroed(1, sizeof *tokenizer);
    for (size_t i = 0; i < sizeof tokenizer->bytes; i++) {
        tokenizer->bytes[i] = (char)i;
    }
    return vocabulary && (bpe_open(vocabulary, &tokenizer->bpe) || compile_pieces(tokenizer)) ? -1 : 0;
}

void tokenizer_close(struct tokenizer *tokenizer) {
    if (tokenizer) {
        bpe_close(tokenizer->bpe);
        pcre2_code_free(tokenizer->pieces);
        free(tokenizer);
    }
}

const char *tokenizer_find_vocabulary(const char *given) {
    const char *named = getenv("HCTRAIN_VOCAB_FILE");
    named = named && *named ? named : getenv("HCTRAIN_RANKS"); /* its older name */
    const char *path = given && *given ? given : named && *named ? named : "data/corpus/gpt2.tiktoken";
    if (access(path, F_OK) == 0) {
        return path;
    }
    error_set("GPT-2's vocabulary is needed and %s does not exist: data/gpt2/vocabulary.sh gets it; --vocab-file "
              "FILE or HCTRAIN_VOCAB_FILE in the environment name another path",
              path);
    return NULL;
}

const char *tokenizer_name(const struct tokenizer *tokenizer) {
    return tokenizer->bpe ? "gpt2" : "byte";
}

uint32_t tokenizer_count(const struct tokenizer *tokenizer) {
    return tokenizer->bpe ? bpe_count(tokenizer->bpe) + 1 : 256;
}

uint32_t tokenizer_end_of_text(const struct tokenizer *tokenizer) {
    return tokenizer->bpe ? bpe_count(tokenizer->bpe) : UINT32_MAX;
}

const char *tokenizer_bytes(const struct tokenizer *tokenizer, uint32_t token, size_t *bytes) {
    if (token >= tokenizer_count(tokenizer)) {
        return NULL;
    }
    if (token == tokenizer_end_of_text(tokenizer)) {
        *bytes = sizeof end_of_text - 1;
        return end_of_text;
    }
    *bytes = 1;
    return tokenizer->bpe ? bpe_bytes(tokenizer->bpe, token, bytes) : tokenizer->bytes + token;
}

/* ---- encoding */

static pcre2_match_data *create_match(void) {
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    if (!match) {
        memory_refused(0);
    }
    return match;
}

static int find_piece(const struct tokenizer *tokenizer, pcre2_match_data *match, const char *text, size_t bytes,
                      size_t at, size_t *end) {
    const PCRE2_SPTR subject = (PCRE2_SPTR)text;
    const int result = tokenizer->compiled
                           ? pcre2_jit_match(tokenizer->pieces, subject, bytes, at, 0, match, NULL)
                           : pcre2_match(tokenizer->pieces, subject, bytes, at, PCRE2_NO_UTF_CHECK, match, NULL);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(match);
    if (result < 0 || range[0] != at || range[1] <= at || range[1] - at > BPE_MOST_BYTES) {
        return error_set("cannot divide the text at byte %zu of %zu into pieces (PCRE2: %d)", at, bytes, result);
    }
    *end = range[1];
    return 0;
}

int tokenizer_piece(const struct tokenizer *tokenizer, const char *text, size_t bytes, size_t at, size_t *end) {
    pcre2_match_data *match = create_match();
    const int status = find_piece(tokenizer, match, text, bytes, at, end);
    pcre2_match_data_free(match);
    return status;
}

static int encode_pieces(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                         struct token_list *list) {
    pcre2_match_data *match = create_match();
    int status = 0;
    for (size_t at = 0, end = 0; at < bytes && status == 0; at = end) {
        status = find_piece(tokenizer, match, text, bytes, at, &end);
        if (status == 0) {
            bpe_encode(tokenizer->bpe, text + at, end - at, list);
        }
    }
    pcre2_match_data_free(match);
    return status;
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes, struct token_list *list) {
    const size_t prefix = tokenizer->bpe ? utf8_prefix(text, bytes) : bytes;
    if (prefix < bytes) {
        return error_set("byte %zu of the text is not UTF-8", prefix);
    }
    if (tokenizer->bpe) {
        return encode_pieces(tokenizer, text, bytes, list);
    }
    for (size_t i = 0; i < bytes; i++) {
        token_list_append(list, (unsigned char)text[i]);
    }
    return 0;
}

/* ---- places to cut */

/* White space that follows another character begins a piece. */
bool tokenizer_is_cut(const char *text, size_t at) {
    const char after = text[at];
    if (after != ' ' && (after < '\t' || after > '\r')) {
        return false;
    }
    const size_t before = utf8_last(text, at);
    uint32_t character;
    return utf8_decode(text + before, at - before, &character) == at - before && !utf8_is_space(character);
}

size_t tokenizer_cut(const char *text, size_t bytes) {
    for (size_t at = bytes; at-- > 1;) {
        if (tokenizer_is_cut(text, at)) {
            return at;
        }
    }
    return 0;
}

/* ---- the tokenizer of a model */

enum { GPT2_PADDED_TOKENS = 50304 };

/* The name of the model's tokenizer; NULL if nothing says which it is. */
static const char *choose(const struct model_config *config, enum tokenizer_choice choice) {
    const bool gpt2 = config->vocab_size >= GPT2_TOKENS && config->vocab_size <= GPT2_PADDED_TOKENS;
    return choice == TOKENIZER_BYTE    ? "byte"
           : choice == TOKENIZER_GPT2  ? "gpt2"
           : *config->tokenizer        ? config->tokenizer
           : config->vocab_size == 256 ? "byte"
           : gpt2                      ? "gpt2"
                                       : NULL;
}

int tokenizer_open_for(const struct model_config *config, const struct tokenizer_settings *settings,
                       struct tokenizer **opened) {
    const char *name = choose(config, (enum tokenizer_choice)settings->choice), *vocabulary = NULL;
    *opened = NULL;
    if (!name) {
        return error_set("the checkpoint does not say which tokenizer its %" PRId64
                         " tokens are of: give --tokenizer byte or --tokenizer gpt2",
                         config->vocab_size);
    }
    const bool gpt2 = strcmp(name, "gpt2") == 0;
    if (!gpt2 && strcmp(name, "byte") != 0) {
        return error_set("the model's tokenizer '%s' is neither byte nor gpt2", name);
    }
    if ((gpt2 && !(vocabulary = tokenizer_find_vocabulary(settings->vocabulary))) ||
        tokenizer_open(vocabulary, opened)) {
        return -1;
    }
    return tokenizer_count(*opened) <= config->vocab_size
               ? 0
               : error_set("the model has %" PRId64 " tokens and the tokenizer '%s' %" PRIu32, config->vocab_size,
                           tokenizer_name(*opened), tokenizer_count(*opened));
}
