#include "src/corpus/encoder.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <inttypes.h>
#include <stdlib.h>

enum { MOST_KEPT_BYTES = 4 << 20 }; /* in the buffers of an empty batch */

void text_batch_add(struct text_batch *batch, const struct text_piece *piece, const char *text) {
    memory_reserve((void **)&batch->pieces, &batch->capacity, batch->count + 1, sizeof *batch->pieces);
    batch->pieces[batch->count++] = *piece;
    text_append(&batch->text, text, piece->bytes);
}

void text_batch_clear(struct text_batch *batch, bool frees_all) {
    batch->count = batch->text.size = batch->tokens.count = 0;
    if (frees_all || batch->text.capacity > MOST_KEPT_BYTES || batch->tokens.part_capacity > MOST_KEPT_BYTES / 64) {
        text_free(&batch->text);
        text_free(&batch->valid);
        text_free(&batch->field);
        text_free(&batch->prompt);
        token_list_free(&batch->tokens);
        free(batch->pieces);
        free(batch->error);
        *batch = (struct text_batch){0};
    }
}

/* ---- on the threads */

/* Appends the tokens of a field of a line. */
static int encode_field(const struct encoder *encoder, const char *line, size_t bytes, const char *field,
                        const char *option, struct text_buffer *buffer, struct token_list *tokens) {
    if (json_lines_field(&line, &bytes, field, option, encoder->settings->replace_invalid, buffer)) {
        return -1;
    }
    return tokenizer_encode(encoder->tokenizer, line, bytes, tokens);
}

static int encode_piece(const struct encoder *encoder, struct text_batch *batch, struct text_piece *piece,
                        const char *text) {
    const struct prepare_settings *settings = encoder->settings;
    struct token_list *tokens = &batch->tokens;
    const bool is_line = settings->kind == DOCUMENT_JSONL, are_bytes = settings->tokenizer.kind == TOKENIZER_BYTE;
    const size_t first = tokens->count;
    size_t bytes = piece->bytes;
    if ((is_line || !are_bytes) && /* text as bytes may be anything */
        text_require_utf8(&text, &bytes, piece->source, piece->line, settings->replace_invalid, &batch->valid)) {
        return -1;
    }
    int status = is_line && settings->prompt_field ? encode_field(encoder, text, bytes, settings->prompt_field,
                                                                  "--prompt-field", &batch->prompt, tokens)
                                                   : 0;
    piece->prompt_tokens = (uint32_t)(tokens->count - first); /* a line has at most 1 GiB */
    if (status == 0) {
        status = is_line ? encode_field(encoder, text, bytes, settings->field, "--field", &batch->field, tokens)
                         : tokenizer_encode(encoder->tokenizer, text, bytes, tokens);
    }
    if (status) {
        return error_prefix("%s:%" PRIu64, piece->source, piece->line);
    }
    if (piece->ends && are_bytes && settings->kind != DOCUMENT_CHUNKS) {
        token_list_append(tokens, '\n');
        token_list_append(tokens, '\n');
    } else if (piece->ends && !are_bytes) {
        token_list_append(tokens, tokenizer_end_of_text(encoder->tokenizer));
    }
    piece->token_end = tokens->count;
    return 0;
}

static void *work(void *context) {
    struct encoder *encoder = context;
    for (size_t i; (i = atomic_fetch_add(&encoder->next, 1)) < encoder->count;) {
        struct text_batch *batch = &encoder->batches[i];
        const char *text = batch->text.bytes ? batch->text.bytes : "";
        for (struct text_piece *piece = batch->pieces; piece < batch->pieces + batch->count; piece++) {
            if (encode_piece(encoder, batch, piece, text)) {
                batch->error = error_keep();
                break;
            }
            text += piece->bytes;
        }
    }
    return NULL;
}

/* ---- on the caller's thread */

void encoder_start(struct encoder *encoder, struct text_batch *batches, size_t count) {
    const int64_t wanted = encoder->settings->threads;
    encoder->batches = batches;
    encoder->count = count;
    encoder->next = 0;
    encoder->threads = memory_zeroed((size_t)wanted, sizeof *encoder->threads);
    for (; encoder->thread_count < wanted && (size_t)encoder->thread_count < count; encoder->thread_count++) {
        if (pthread_create(&encoder->threads[encoder->thread_count], NULL, work, encoder)) {
            break; /* those that there are take all batches */
        }
    }
    if (encoder->thread_count == 0) {
        work(encoder);
    }
}

void encoder_wait(struct encoder *encoder) {
    while (encoder->thread_count > 0) {
        pthread_join(encoder->threads[--encoder->thread_count], NULL);
    }
    free(encoder->threads);
    encoder->threads = NULL;
}
