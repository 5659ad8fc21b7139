#include "src/text/tokenizer_json.h"
#include "runtime/files/json_file.h"
#include "runtime/files/token_file.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/utf8.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_ADDED = 1 << 14, MOST_ADDED_BYTES = 256 };

#define KINDS "hctrain reads byte-level BPE, as of GPT-2, SmolLM2, Llama 3 and Qwen"

/* Absent, null, false, "" and 0. */
static bool is_nothing(const json_t *value) {
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_number(value) && json_number_value(value) == 0.0);
}

/* The value of "type"; "" if it is no string. */
static const char *type_of(const json_t *object) {
    const char *type = json_file_text(json_object_get(object, "type"));
    return type ? type : "";
}

/* ---- the model: tokens and merges */

/* A string of the vocabulary that is not in the alphabet of bytes is no token of texts. */
static int read_vocabulary(const json_t *model, struct bpe *bpe) {
    static const char *const refused[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                          "byte_fallback"};
    const json_t *vocabulary = json_object_get(model, "vocab");
    const char *type = type_of(model), *string;
    json_t *number;
    if (!json_is_object(model)) {
        return error_set("it has no 'model', so it is no tokenizer.json");
    }
    if (*type && strcmp(type, "BPE") != 0) {
        return error_set("model.type is '%s': " KINDS, type);
    }
    for (size_t i = 0; i < COUNT(refused); i++) {
        if (!is_nothing(json_object_get(model, refused[i]))) {
            return error_set("model.%s is set: " KINDS ", none of which has it", refused[i]);
        }
    }
    if (!json_is_object(vocabulary) || !json_is_array(json_object_get(model, "merges"))) {
        return error_set("model.%s is missing", json_is_object(vocabulary) ? "merges" : "vocab");
    }
    json_object_foreach((json_t *)(uintptr_t)vocabulary, string, number) {
        if (!json_is_integer(number) || json_integer_value(number) < 0) {
            return error_set("model.vocab: the number of '%s' is not a whole number from 0 on", string);
        }
        char *text = memory_string(string);
        size_t bytes = strlen(text);
        const bool in_text = bpe_decode_alphabet(text, &bytes);
        const int status = bpe_add_token(bpe, (uint64_t)json_integer_value(number), text, bytes, in_text);
        free(text);
        if (status) {
            return error_prefix("model.vocab, '%s'", string);
        }
    }
    return 0;
}

/* The number of a string of the vocabulary; UINT32_MAX with an error: it is not there, or no token of texts. */
static uint32_t find_token(const struct bpe *bpe, const char *string, size_t bytes) {
    char *text = memory_string_part(string, bytes);
    size_t decoded = strlen(text);
    const uint32_t token = bpe_decode_alphabet(text, &decoded) ? bpe_find(bpe, text, decoded) : UINT32_MAX;
    free(text);
    if (token == UINT32_MAX) {
        error_set("'%.*s' is not in the vocabulary, or no bytes of texts", bytes < 1000 ? (int)bytes : 1000,
                  string);
    }
    return token;
}

/* A merge is "left right", or, in newer files, ["left", "right"]. */
static int read_merges(const json_t *model, struct bpe *bpe) {
    const json_t *merge;
    size_t i;
    json_array_foreach(json_object_get(model, "merges"), i, merge) {
        const char *left = json_file_text(json_is_array(merge) ? json_array_get(merge, 0) : merge), *right = NULL;
        size_t bytes = 0;
        if (json_is_array(merge)) {
            right = json_array_size(merge) == 2 ? json_file_text(json_array_get(merge, 1)) : NULL;
            bytes = left ? strlen(left) : 0;
        } else if (left && (right = strchr(left, ' ')) != NULL) {
            bytes = (size_t)(right++ - left);
        }
        if (!left || !right) {
            return error_set("model.merges[%zu]: it must be two strings", i);
        }
        const uint32_t first = find_token(bpe, left, bytes);
        const uint32_t second = first == UINT32_MAX ? first : find_token(bpe, right, strlen(right));
        if (second == UINT32_MAX || bpe_add_merge(bpe, first, second)) {
            return error_prefix("model.merges[%zu]", i);
        }
    }
    return 0;
}

/* ---- added tokens */

/* The content is heap memory of the caller, also on failure. */
static int read_one_added(const json_t *value, struct added_token *token) {
    const char *content = "";
    bool single_word = false;
    int64_t number = -1;
    *token = (struct added_token){0};
    if (json_file_get_text(value, "content", &content) ||
        json_file_get_whole(value, "id", 0, BPE_MOST_TOKENS - 1, &number) ||
        json_file_get_flag(value, "special", &token->special) ||
        json_file_get_flag(value, "normalized", &token->normalized) ||
        json_file_get_flag(value, "lstrip", &token->lstrip) ||
        json_file_get_flag(value, "rstrip", &token->rstrip) ||
        json_file_get_flag(value, "single_word", &single_word)) {
        return -1;
    }
    token->bytes = strlen(content);
    token->content = memory_string(content);
    if (token->bytes == 0 || token->bytes > MOST_ADDED_BYTES || number < 0) {
        return error_set("it must have an 'id', and a 'content' of 1 to %d bytes", MOST_ADDED_BYTES);
    }
    return single_word ? error_set("'%s' has 'single_word', which hctrain does not support", content) : 0;
}

/* The number of an added token is that of the vocabulary, or else the next one, whatever "id" says, as in
 * tokenizers. Of two tokens with one content the second counts, but a control token stays one. The content of those
 * that are found in normalized text is normalized, too. */
static int read_added(const json_t *root, struct tokenizer_json *json) {
    const json_t *list = json_object_get(root, "added_tokens");
    const json_t *vocabulary = json_object_get(json_object_get(root, "model"), "vocab");
    uint32_t next = (uint32_t)json_object_size(vocabulary);
    json->in_text = bpe_count(json->bpe);
    if (list && !json_is_null(list) && (!json_is_array(list) || json_array_size(list) > MOST_ADDED)) {
        return error_set("added_tokens is not a list of at most %d tokens", MOST_ADDED);
    }
    struct added_token *tokens = memory_zeroed(json_array_size(list), sizeof *tokens);
    json_t *places = json_object(); /* in `tokens`, by content */
    size_t count = 0;
    int status = 0;
    for (size_t i = 0; i < json_array_size(list) && status == 0; i++) {
        struct added_token token;
        status = read_one_added(json_array_get(list, i), &token);
        const json_t *place = status == 0 ? json_object_get(places, token.content) : NULL;
        if (place) {
            struct added_token *old = &tokens[json_integer_value(place)];
            token.special |= old->special;
            token.token = old->token;
            free(old->content);
            *old = token;
            continue;
        }
        const json_t *known = token.content ? json_object_get(vocabulary, token.content) : NULL;
        token.token = known ? (uint32_t)json_integer_value(known) : next;
        next = token.token >= next ? token.token + 1 : next;
        if (status == 0 && !known) {
            status = bpe_add_token(json->bpe, token.token, token.content, token.bytes, false);
        }
        if (status) {
            error_prefix("added_tokens[%zu]", i);
        } else {
            json_object_set_new(places, token.content, json_integer((json_int_t)count));
        }
        tokens[count++] = token;
    }
    json_decref(places);
    for (size_t i = 0; i < ADDED_PASSES; i++) {
        json->added[i].tokens = memory_allocate(count, sizeof *tokens);
    }
    struct text_buffer buffer = {0};
    for (size_t i = 0; i < count; i++) {
        struct added_token *token = &tokens[i];
        struct added_tokens *added = &json->added[token->normalized];
        const char *text = token->content;
        if (status == 0 && json->nfc && token->normalized) {
            text_normalize(&text, &token->bytes, &buffer);
        }
        if (text != token->content) {
            free(token->content);
            token->content = memory_string_part(text, token->bytes);
        }
        added->tokens[added->count++] = *token; /* takes over the content, also of the last one */
    }
    text_free(&buffer);
    free(tokens);
    for (size_t i = 0; i < ADDED_PASSES && status == 0; i++) {
        status = added_tokens_sort(&json->added[i]) ? error_prefix("added_tokens") : 0;
    }
    return status;
}

/* ---- what happens to text before: normalization, division into pieces */

/* The list of steps of a "Sequence", or the one step itself; NULL: there are none. The caller releases it. */
static json_t *steps_of(const json_t *value, const char *name) {
    if (!value || json_is_null(value)) {
        return json_array();
    }
    json_t *steps = strcmp(type_of(value), "Sequence") == 0 ? json_object_get(value, name) : NULL;
    return steps ? json_incref(steps) : json_pack("[O]", value);
}

/* The last step is ByteLevel. One may stand before it: a Split by an expression, or single digits. */
static int read_steps(const json_t *list, struct piece_steps *steps) {
    const size_t count = json_array_size(list);
    const json_t *first = json_array_get(list, 0), *last = json_array_get(list, count - 1);
    const char *type = type_of(first), *behavior = "";
    bool each = false, invert = false, prefix = true;
    *steps = (struct piece_steps){.expression = "", .gpt2 = true};
    if (count != 1 && count != 2) {
        return error_set("the pre_tokenizer has %zu steps: " KINDS ", which have one or two", count);
    }
    if (count == 2 &&
        (json_file_get_flag(first, "individual_digits", &each) || json_file_get_flag(first, "invert", &invert) ||
         json_file_get_text(first, "behavior", &behavior) ||
         json_file_get_text(json_object_get(first, "pattern"), "Regex", &steps->expression))) {
        return error_prefix("pre_tokenizer");
    }
    steps->digits = count == 2 && strcmp(type, "Digits") == 0;
    if (steps->digits && !each) {
        return error_set("pre_tokenizer: Digits without individual_digits is not supported");
    }
    if (count == 2 && !steps->digits && (strcmp(type, "Split") != 0 || !*steps->expression)) {
        return error_set("the pre_tokenizer '%s' is not supported: " KINDS, type);
    }
    if (count == 2 && !steps->digits && (strcmp(behavior, "Isolated") != 0 || invert)) {
        return error_set("pre_tokenizer: Split is supported with the behavior Isolated alone");
    }
    if (strcmp(type_of(last), "ByteLevel") != 0) {
        return error_set("the pre_tokenizer does not end with ByteLevel: " KINDS);
    }
    if (json_file_get_flag(last, "use_regex", &steps->gpt2) ||
        json_file_get_flag(last, "add_prefix_space", &prefix)) {
        return error_prefix("pre_tokenizer");
    }
    return prefix ? error_set("pre_tokenizer: add_prefix_space is not supported: it must be false") : 0;
}

/* The normalizer, the division into pieces, and the decoder. */
static int read_pieces(const json_t *root, struct tokenizer_json *json) {
    json_t *normalizers = steps_of(json_object_get(root, "normalizer"), "normalizers");
    json_t *list = steps_of(json_object_get(root, "pre_tokenizer"), "pretokenizers");
    const json_t *decoder = json_object_get(root, "decoder");
    struct piece_steps steps;
    int status = 0;
    json->nfc = json_array_size(normalizers) > 0;
    for (size_t i = 0; i < json_array_size(normalizers) && status == 0; i++) {
        const char *type = type_of(json_array_get(normalizers, i));
        if (strcmp(type, "NFC") != 0) {
            status = error_set("the normalizer '%s' is not supported: " KINDS, type);
        }
    }
    status = status || read_steps(list, &steps) ? -1 : 0;
    json->rule = status == 0 ? pieces_find(&steps) : NULL;
    if (status == 0 && !json->rule) {
        status = error_set("pre_tokenizer: hctrain knows the expressions of %s, but not '%.500s'", pieces_names,
                           steps.expression);
    }
    if (status == 0 && decoder && !json_is_null(decoder) && strcmp(type_of(decoder), "ByteLevel") != 0) {
        status = error_set("the decoder '%s' is not supported: " KINDS, type_of(decoder));
    }
    json_decref(normalizers);
    json_decref(list);
    return status;
}

/* ---- what happens to tokens behind */

/* Where a TemplateProcessing's "single" begins with a token, that token. Whatever else a post_processor does is for
 * other kinds of models. */
static void read_beginning(const json_t *root, struct tokenizer_json *json) {
    json_t *steps = steps_of(json_object_get(root, "post_processor"), "processors");
    const json_t *step;
    size_t i;
    json->beginning = UINT32_MAX;
    json_array_foreach(steps, i, step) {
        const json_t *first = json_array_get(json_object_get(step, "single"), 0);
        const char *name = json_file_text(json_object_get(json_object_get(first, "SpecialToken"), "id"));
        const json_t *token = json_object_get(json_object_get(step, "special_tokens"), name ? name : ""),
                     *number = json_array_get(json_object_get(token, "ids"), 0);
        if (strcmp(type_of(step), "TemplateProcessing") == 0 && json_is_integer(number) &&
            json_integer_value(number) >= 0 && json_integer_value(number) < (json_int_t)bpe_count(json->bpe)) {
            json->beginning = (uint32_t)json_integer_value(number);
        }
    }
    json_decref(steps);
}

/* ---- all of it */

int tokenizer_json_read(const char *path, struct tokenizer_json *json) {
    json_t *root;
    bool ignore_merges = false;
    if (json_file_read(path, TOKENIZER_FILE_MOST_BYTES, &root)) {
        return -1;
    }
    const json_t *model = json_object_get(root, "model");
    json->bpe = bpe_create();
    const int status = read_vocabulary(model, json->bpe) ||
                       json_file_get_flag(model, "ignore_merges", &ignore_merges) || read_pieces(root, json) ||
                       read_added(root, json) || bpe_index(json->bpe) || read_merges(model, json->bpe) ||
                       bpe_complete(json->bpe, ignore_merges, is_nothing(json_object_get(model, "unk_token")));
    read_beginning(root, json);
    json_decref(root);
    return status ? error_prefix("%s", path) : 0;
}

void tokenizer_json_free(struct tokenizer_json *json) {
    bpe_close(json->bpe);
    for (size_t i = 0; i < ADDED_PASSES; i++) {
        for (size_t k = 0; k < json->added[i].count; k++) {
            free(json->added[i].tokens[k].content);
        }
        free(json->added[i].tokens);
    }
    *json = (struct tokenizer_json){0};
}

/* ---- finding added tokens in text */

static int compare(const void *a, const void *b) {
    return strcmp(((const struct added_token *)a)->content, ((const struct added_token *)b)->content);
}

int added_tokens_sort(struct added_tokens *added) {
    const struct added_token *tokens = added->tokens;
    if (added->count > 0) {
        qsort(added->tokens, added->count, sizeof *added->tokens, compare);
    }
    for (size_t i = 0; i < added->count; i++) {
        if (i > 0 && strcmp(tokens[i].content, tokens[i - 1].content) == 0) {
            return error_set("two added tokens are '%s'", tokens[i].content);
        }
        added->takes_space |= tokens[i].rstrip || strpbrk(tokens[i].content + 1, "\t\n\v\f\r ");
        for (unsigned byte = (unsigned char)tokens[i].content[0] + 1u; byte <= 256; byte++) {
            added->first[byte] = i + 1;
        }
    }
    return 0;
}

/* Among tokens [low, high), which are equal up to byte `at`: the first whose byte there is at least `byte`. */
static size_t lower_bound(const struct added_tokens *added, size_t low, size_t high, size_t at, unsigned byte) {
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if ((unsigned char)added->tokens[middle].content[at] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The longest token at the beginning of the text; NULL: none. */
static const struct added_token *longest(const struct added_tokens *added, const char *text, size_t bytes) {
    const struct added_token *found = NULL;
    size_t low = added->first[(unsigned char)text[0]], high = added->first[(unsigned char)text[0] + 1];
    for (size_t at = 1; low < high; at++) {
        if (added->tokens[low].content[at] == '\0') { /* the shortest one stands first */
            found = &added->tokens[low++];
        }
        if (at == bytes) {
            break;
        }
        const unsigned byte = (unsigned char)text[at];
        low = lower_bound(added, low, high, at, byte);
        high = lower_bound(added, low, high, at, byte + 1);
    }
    return found;
}

bool added_tokens_next(const struct added_tokens *added, const char *text, size_t bytes, bool special,
                       struct added_match *match) {
    for (size_t at = match->next; at < bytes && added->count > 0;) {
        const struct added_token *token = longest(added, text + at, bytes - at);
        if (!token || (token->special && !special)) {
            at += token ? token->bytes : 1;
            continue;
        }
        size_t start = at, end = at + token->bytes, length;
        uint32_t character;
        const size_t next = end, least = match->end;
        start = token->lstrip && start < least ? least : start;
        while (token->lstrip && start > least) {
            const size_t before = least + utf8_last(text + least, start - least);
            if (utf8_decode(text + before, start - before, &character) == 0 || !utf8_is_space(character)) {
                break;
            }
            start = before;
        }
        while (token->rstrip && end < bytes && (length = utf8_decode(text + end, bytes - end, &character)) > 0 &&
               utf8_is_space(character)) {
            end += length;
        }
        *match = (struct added_match){token, start, end, next};
        return true;
    }
    return false;
}

static bool ends_with(const char *text, size_t at, const char *end, size_t bytes) {
    return bytes <= at && memcmp(text + at - bytes, end, bytes) == 0;
}

bool added_tokens_is_cut(const struct added_tokens *added, const char *text, size_t at) {
    const bool space = text[at] == ' ' || (text[at] >= '\t' && text[at] <= '\r');
    for (size_t number = 0; (added->takes_space || !space) && number < added->count; number++) {
        const struct added_token *token = &added->tokens[number];
        if (token->rstrip && ends_with(text, at, token->content, token->bytes)) {
            return false;
        }
        for (size_t i = 1; i < token->bytes; i++) {
            if (token->content[i] == text[at] && ends_with(text, at, token->content, i)) {
                return false;
            }
        }
    }
    return true;
}
