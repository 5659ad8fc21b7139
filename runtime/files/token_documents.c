#include "runtime/files/token_documents.h"
#include "runtime/files/files.h"
#include "runtime/files/token_layout.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/search.h"
#include <inttypes.h>
#include <stdlib.h>

void token_documents_store(unsigned char bytes[TOKEN_DOCUMENT_BYTES], uint32_t tokens, uint32_t prompt) {
    token_store(bytes, 4, tokens);
    token_store(bytes + 4, 4, prompt);
}

/* Adds up the lengths of [count] documents. */
static int add_up(const unsigned char *bytes, uint64_t tokens, struct token_documents *documents) {
    uint64_t begin = 0, targets = 0;
    for (size_t i = 0; i < documents->count; i++, bytes += TOKEN_DOCUMENT_BYTES) {
        const uint32_t length = token_load(bytes, 4), prompt = token_load(bytes + 4, 4);
        if (length == 0 || prompt > length || length > tokens - begin) {
            return error_set("document %zu has %" PRIu32 " tokens, %" PRIu32 " of them a prompt, at %" PRIu64
                             " of %" PRIu64 " tokens",
                             i, length, prompt, begin, tokens);
        }
        documents->begins[i] = begin;
        documents->targets[i] = targets;
        begin += length;
        targets += length - prompt;
    }
    documents->begins[documents->count] = begin;
    documents->targets[documents->count] = targets;
    return begin == tokens ? 0 : error_set("it has %" PRIu64 " of %" PRIu64 " tokens", begin, tokens);
}

int token_documents_read(const char *path, uint64_t tokens, struct token_documents **documents) {
    char *text;
    size_t bytes;
    const uint64_t most = tokens < SIZE_MAX / TOKEN_DOCUMENT_BYTES ? tokens * TOKEN_DOCUMENT_BYTES : SIZE_MAX - 1;
    *documents = NULL;
    if (files_read(path, (size_t)most, &text, &bytes)) {
        return -1;
    }
    struct token_documents *read = memory_zeroed(1, sizeof *read);
    read->count = bytes / TOKEN_DOCUMENT_BYTES;
    read->begins = memory_zeroed(read->count + 1, sizeof *read->begins);
    read->targets = memory_zeroed(read->count + 1, sizeof *read->targets);
    const int status = bytes % TOKEN_DOCUMENT_BYTES ? error_set("its size is not a whole number of documents")
                                                    : add_up((const unsigned char *)text, tokens, read);
    free(text);
    if (status) {
        token_documents_free(read);
        return error_prefix("%s does not describe the token file beside it: prepare both again with hc_prepare",
                            path);
    }
    *documents = read;
    return 0;
}

void token_documents_free(struct token_documents *documents) {
    if (documents) {
        free(documents->begins);
        free(documents->targets);
        free(documents);
    }
}

size_t token_documents_find(const struct token_documents *documents, uint64_t place) {
    return search_range(documents->begins, sizeof *documents->begins, documents->count, place);
}

/* The place after the document's prompt. */
static uint64_t prompt_end(const struct token_documents *documents, size_t i) {
    return documents->begins[i + 1] - (documents->targets[i + 1] - documents->targets[i]);
}

uint64_t token_documents_targets(const struct token_documents *documents, uint64_t place) {
    const size_t i = token_documents_find(documents, place);
    const uint64_t end = prompt_end(documents, i);
    return documents->targets[i] + (place > end ? place - end : 0);
}

void token_documents_mask(const struct token_documents *documents, uint64_t first, uint64_t count,
                          int32_t *tokens) {
    for (size_t i = token_documents_find(documents, first); i < documents->count; i++) {
        const uint64_t begin = documents->begins[i], end = prompt_end(documents, i);
        if (begin >= first + count) {
            return;
        }
        for (uint64_t place = begin > first ? begin : first; place < end && place < first + count; place++) {
            tokens[place - first] = -1;
        }
    }
}
