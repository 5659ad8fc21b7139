#include "src/text/added_tokens.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/utf8.h"
#include <stdlib.h>
#include <string.h>

void added_tokens_add(struct added_tokens *added, const struct added_token *token) {
    memory_reserve((void **)&added->tokens, &added->capacity, added->count + 1, sizeof *added->tokens);
    added->tokens[added->count++] = *token;
}

void added_tokens_free(struct added_tokens *added) {
    for (size_t i = 0; i < added->count; i++) {
        free(added->tokens[i].content);
    }
    free(added->tokens);
    *added = (struct added_tokens){0};
}

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

const struct added_token *added_tokens_find(const struct added_tokens *added, const char *content) {
    const struct added_token wanted = {.content = (char *)(uintptr_t)content};
    return added->count > 0 ? bsearch(&wanted, added->tokens, added->count, sizeof wanted, compare) : NULL;
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
