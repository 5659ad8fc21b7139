#include "src/text/tokenizer.h"
#include "runtime/files/files.h"
#include "runtime/files/token_file.h"
#include "runtime/ranks/ranks.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/utf8.h"
#include "src/model/model_config.h"
#include "src/text/tokenizer_json.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { GPT2_PADDED_TOKENS = 50304 };

struct tokenizer {
    enum tokenizer_kind kind;
    struct tokenizer_json json; /* also of GPT-2's vocabulary and of bytes, as a tokenizer.json would have it */
    struct pieces *pieces;      /* NULL: tokens are bytes */
    uint32_t count;             /* of tokens that the model has rows for */
    uint32_t end_of_text;
    bool parse_special;
};

/* ---- opening */

/* `content` NULL or "": the first of the usual names that the file has. */
static int find_end_of_text(struct tokenizer *tokenizer, const char *path, const char *content) {
    static const char *const usual[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
    const bool given = content && *content;
    for (size_t i = 0; i < (given ? 1 : COUNT(usual)); i++) {
        const char *name = given ? content : usual[i];
        for (int pass = 0; pass < ADDED_PASSES; pass++) {
            const struct added_tokens *added = &tokenizer->json.added[pass];
            for (size_t k = 0; k < added->count; k++) {
                if (strcmp(added->tokens[k].content, name) == 0) {
                    tokenizer->end_of_text = added->tokens[k].token;
                    return 0;
                }
            }
        }
    }
    return given ? error_set("%s: added_tokens has no '%s' (--end-of-text)", path, content)
                 : error_set("%s: added_tokens has neither '<|endoftext|>' nor '<|end_of_text|>' nor '</s>': say "
                             "with --end-of-text which of its tokens ends documents",
                             path);
}

/* Added tokens beyond the model's rows are accepted as long as no text needs them: many files have such a [PAD]. */
static int fit_rows(struct tokenizer *tokenizer, int64_t rows) {
    const uint32_t all = bpe_count(tokenizer->json.bpe);
    tokenizer->count = rows > 0 && rows < all ? (uint32_t)rows : all;
    if (tokenizer->count < tokenizer->json.in_text) {
        return error_set("the model has %" PRId64 " tokens and the tokenizer '%s' %" PRIu32, rows,
                         tokenizer_name(tokenizer), all);
    }
    const uint32_t ends[] = {tokenizer_end_of_text(tokenizer), tokenizer_beginning(tokenizer)};
    for (size_t i = 0; i < COUNT(ends); i++) {
        if (ends[i] != UINT32_MAX && ends[i] >= tokenizer->count) {
            return error_set("the model has %" PRId64 " tokens, so it lacks token %" PRIu32
                             " of the tokenizer, with which documents %s",
                             rows, ends[i], i == 0 ? "end: choose another one with --end-of-text" : "begin");
        }
    }
    return 0;
}

int tokenizer_open(const struct tokenizer_source *source, struct tokenizer **opened) {
    static const char end_of_text[] = "<|endoftext|>";
    struct tokenizer *tokenizer = *opened = memory_zeroed(1, sizeof *tokenizer);
    struct tokenizer_json *json = &tokenizer->json;
    const char *path = source->path;
    tokenizer->kind = source->kind;
    tokenizer->parse_special = source->parse_special;
    tokenizer->end_of_text = json->beginning = UINT32_MAX;
    if (source->kind == TOKENIZER_BYTE) {
        json->bpe = bpe_create();
        json->in_text = 256;
        for (unsigned byte = 0; byte < 256; byte++) {
            const char string = (char)byte;
            bpe_add_token(json->bpe, byte, &string, 1, true);
        }
    } else if (source->kind == TOKENIZER_GPT2) { /* its file lacks the end of text, which is the last token */
        if (bpe_open(path, &json->bpe)) {
            return -1;
        }
        const struct added_token end = {memory_string(end_of_text), sizeof end_of_text - 1, bpe_count(json->bpe),
                                        .special = true};
        json->added[0] = (struct added_tokens){.tokens = memory_allocate(1, sizeof end), .count = 1};
        json->added[0].tokens[0] = end;
        added_tokens_sort(&json->added[0]);
        tokenizer->end_of_text = end.token;
        json->in_text = end.token + 1;
        json->rule = pieces_find(&(struct piece_steps){"", false, true});
        if (bpe_add_token(json->bpe, end.token, end.content, end.bytes, false)) {
            return error_prefix("%s", path);
        }
    } else if (tokenizer_json_read(path, json) || find_end_of_text(tokenizer, path, source->end_of_text)) {
        return -1;
    }
    if (json->rule && pieces_open(json->rule, &tokenizer->pieces)) {
        return -1;
    }
    return fit_rows(tokenizer, source->rows);
}

void tokenizer_close(struct tokenizer *tokenizer) {
    if (tokenizer) {
        tokenizer_json_free(&tokenizer->json);
        pieces_close(tokenizer->pieces);
        free(tokenizer);
    }
}

int tokenizer_copy(const char *from, const char *to) {
    char *text;
    size_t bytes;
    if (files_read(from, TOKENIZER_FILE_MOST_BYTES, &text, &bytes)) {
        return -1;
    }
    const int status = files_write(to, text, bytes);
    free(text);
    return status;
}

const char *tokenizer_name(const struct tokenizer *tokenizer) {
    static const char *const names[] = {"byte", "gpt2", "file"};
    return names[tokenizer->kind];
}

uint32_t tokenizer_count(const struct tokenizer *tokenizer) {
    return tokenizer->count;
}

uint32_t tokenizer_end_of_text(const struct tokenizer *tokenizer) {
    return tokenizer->end_of_text;
}

uint32_t tokenizer_beginning(const struct tokenizer *tokenizer) {
    return tokenizer->json.beginning;
}

uint32_t tokenizer_prefix(const struct tokenizer *tokenizer) {
    const uint32_t beginning = tokenizer_beginning(tokenizer), end = tokenizer->end_of_text;
    if (beginning != UINT32_MAX) {
        return beginning;
    }
    return end != UINT32_MAX ? end : '\n';
}

const char *tokenizer_bytes(const struct tokenizer *tokenizer, uint32_t token, size_t *bytes) {
    return token < tokenizer->count ? bpe_bytes(tokenizer->json.bpe, token, bytes) : NULL;
}

/* ---- encoding */

/* The encoding of one text. */
struct encoding {
    const struct tokenizer *tokenizer;
    struct token_list *list;
    struct text_buffer normal; /* a part of the text in its normal form */
};

static void encode_piece(void *context, const char *piece, size_t bytes) {
    const struct encoding *encoding = context;
    bpe_encode(encoding->tokenizer->json.bpe, piece, bytes, encoding->list);
}

/* Encodes text without the added tokens of the passes before: finds those of this pass and those after it; what is
 * between them is divided into pieces. */
static int encode(struct encoding *encoding, int pass, const char *text, size_t bytes) {
    const struct tokenizer *tokenizer = encoding->tokenizer;
    struct added_match match = {0};
    size_t done = 0;
    if (pass == ADDED_PASSES) {
        return pieces_each(tokenizer->pieces, text, bytes, encode_piece, encoding);
    }
    if (pass == 1 && tokenizer->json.nfc) {
        text_normalize(&text, &bytes, &encoding->normal);
    }
    while (added_tokens_next(&tokenizer->json.added[pass], text, bytes, tokenizer->parse_special, &match)) {
        if (done < match.start && encode(encoding, pass + 1, text + done, match.start - done)) {
            return -1;
        }
        if (match.start < match.end) {
            token_list_append(encoding->list, match.token->token);
        }
        done = match.end;
    }
    return encode(encoding, pass + 1, text + done, bytes - done);
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes, struct token_list *list) {
    if (tokenizer->kind == TOKENIZER_BYTE) {
        for (size_t i = 0; i < bytes; i++) {
            token_list_append(list, (unsigned char)text[i]);
        }
        return 0;
    }
    const size_t prefix = utf8_prefix(text, bytes);
    if (prefix < bytes) {
        return error_set("byte %zu of the text is not UTF-8", prefix);
    }
    struct encoding encoding = {tokenizer, list, {0}};
    const size_t first = list->count;
    const int status = bytes > 0 ? encode(&encoding, 0, text, bytes) : 0; /* text may be NULL */
    text_free(&encoding.normal);
    for (size_t i = first; status == 0 && i < list->count; i++) {
        const uint32_t token = list->tokens[i];
        if (token >= tokenizer->count) {
            const char *name = bpe_bytes(tokenizer->json.bpe, token, &bytes);
            return error_set("the text has the token '%.*s', %" PRIu32 ", and the model has only %" PRIu32
                             " tokens: change the text, or take --special-tokens text if it is a control token",
                             (int)bytes, name, token, tokenizer->count);
        }
    }
    return status;
}

/* ---- places to cut */

static bool is_cut_of_added(const struct tokenizer *tokenizer, const char *text, size_t at) {
    for (int pass = 0; pass < ADDED_PASSES; pass++) {
        if (!added_tokens_is_cut(&tokenizer->json.added[pass], text, at)) {
            return false;
        }
    }
    return true;
}

bool tokenizer_is_cut(const struct tokenizer *tokenizer, const char *text, size_t at) {
    return tokenizer->kind == TOKENIZER_BYTE ||
           (pieces_is_cut(tokenizer->pieces, text, at) && is_cut_of_added(tokenizer, text, at));
}

size_t tokenizer_cut(const struct tokenizer *tokenizer, const char *text, size_t bytes) {
    for (size_t at = bytes; at-- > 1;) {
        if (tokenizer_is_cut(tokenizer, text, at)) {
            return at;
        }
    }
    for (size_t at = bytes; at-- > 1;) {
        if (pieces_is_wide_cut(text, bytes, at) && is_cut_of_added(tokenizer, text, at)) {
            return at;
        }
    }
    return 0;
}

/* ---- the tokenizer of a model */

int tokenizer_choose(const struct tokenizer_settings *settings, struct tokenizer_source *source) {
    const char *name = settings->tokenizer, *vocabulary = settings->vocabulary;
    *source = (struct tokenizer_source){.end_of_text = settings->end_of_text,
                                        .parse_special = settings->special == SPECIAL_PARSE};
    if (strcmp(name, "gpt2") == 0) {
        const char *named = getenv("HCTRAIN_VOCAB_FILE");
        source->kind = TOKENIZER_GPT2;
        source->path = named && *named ? named : "data/corpus/gpt2.tiktoken";
        source->path = vocabulary && *vocabulary ? vocabulary : source->path;
        if (!files_exist(source->path)) {
            return error_set("GPT-2's vocabulary is needed and %s does not exist: data/gpt2/vocabulary.sh gets it; "
                             "--vocab-file FILE or HCTRAIN_VOCAB_FILE in the environment name another path",
                             source->path);
        }
    } else if (strcmp(name, "byte") != 0 && strcmp(name, "auto") != 0) {
        source->kind = TOKENIZER_FILE;
        source->path = name;
        if (!files_exist(name)) {
            return error_set("'%s' is not there: --tokenizer takes byte, gpt2 or the path of a tokenizer.json",
                             name);
        }
    }
    return 0;
}

int tokenizer_open_for(const struct model_config *config, const char *folder,
                       const struct tokenizer_settings *settings, struct tokenizer **opened) {
    const struct path file = path_of("%s/" TOKENIZER_FILE_NAME, folder);
    struct tokenizer_settings chosen = *settings;
    struct tokenizer_source source;
    *opened = NULL;
    if (strcmp(settings->tokenizer, "auto") == 0) {
        const char *name = config->tokenizer;
        if (strcmp(name, "file") == 0 || (!*name && files_exist(file.text))) {
            name = file.text;
        } else if (!*name && config->vocab_size == 256) {
            name = "byte";
        } else if (!*name && config->vocab_size >= GPT2_TOKENS && config->vocab_size <= GPT2_PADDED_TOKENS) {
            name = "gpt2";
        } else if (!*name) {
            return error_set("the checkpoint does not say which tokenizer its %" PRId64
                             " tokens are of: give --tokenizer byte, gpt2, or the path of a tokenizer.json",
                             config->vocab_size);
        } else if (strcmp(name, "gpt2") != 0 && strcmp(name, "byte") != 0) {
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

/* ---- bytes of tokens */

static void list_bytes(const struct tokenizer *tokenizer, size_t count, uint16_t *list) {
    for (size_t i = 0; i < count; i++) {
        size_t bytes = 0;
        tokenizer_bytes(tokenizer, (uint32_t)i, &bytes);
        list[i] = (uint16_t)(i == tokenizer->end_of_text ? 0 : bytes);
    }
    for (int pass = 0; pass < ADDED_PASSES; pass++) {
        const struct added_tokens *added = &tokenizer->json.added[pass];
        for (size_t i = 0; i < added->count; i++) {
            if (added->tokens[i].special && added->tokens[i].token < count) {
                list[added->tokens[i].token] = 0;
            }
        }
    }
}

int tokenizer_share_bytes(struct ranks *ranks, const struct model_config *config, const char *folder,
                          const struct tokenizer_settings *settings, uint16_t **bytes) {
    const size_t count = (size_t)config->vocab_size;
    struct tokenizer *tokenizer = NULL;
    int status = ranks->index == 0 ? tokenizer_open_for(config, folder, settings, &tokenizer) : 0;
    *bytes = memory_zeroed(count, sizeof **bytes);
    if (ranks->index == 0 && status == 0) {
        list_bytes(tokenizer, count, *bytes);
    } else if (strcmp(settings->tokenizer, "auto") == 0) {
        error_clear();
        status = 0;
    }
    tokenizer_close(tokenizer);
    return ranks_agree(ranks, status) || ranks_broadcast(ranks, *bytes, count * sizeof **bytes) ? -1 : 0;
}
