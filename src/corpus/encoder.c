#include "src/corpus/encoder.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/text/json_lines.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

enum {
    SPARE_BATCHES = 3,               /* beside two for each thread */
    MOST_SUBMITTED_BYTES = 64 << 20, /* of text, unless a single batch has more */
    MOST_KEPT_BYTES = 4 << 20,       /* in the buffers of a vacant batch */
};

struct slot {
    struct text_batch batch;
    bool ready;  /* encoded, or failed */
    char *error; /* the error text if it failed, from error_keep */
};

struct encoder {
    const struct prepare_settings *settings;
    const struct tokenizer *tokenizer;
    pthread_mutex_t lock;
    pthread_cond_t submitted, encoded;
    bool closing;
    struct slot *slots; /* [slot_count], a ring */
    size_t slot_count;
    uint64_t sent, claimed, taken; /* numbers of batches; the threads claim them */
    size_t submitted_bytes;        /* of text in batches that are sent and not taken */
    pthread_t *threads;            /* [thread_count] */
    int64_t thread_count;
};

void text_batch_add(struct text_batch *batch, const struct text_piece *piece, const char *text) {
    memory_reserve((void **)&batch->pieces, &batch->capacity, batch->count + 1, sizeof *batch->pieces);
    batch->pieces[batch->count++] = *piece;
    text_append(&batch->text, text, piece->bytes);
}

/* ---- encoding, on one of the threads */

/* State of a thread. */
struct worker {
    const struct encoder *encoder;
    struct text_buffer valid, field, prompt;
};

static int mark_end(const struct worker *worker, struct token_list *tokens) {
    const uint32_t end = tokenizer_end_of_text(worker->encoder->tokenizer);
    if (end == UINT32_MAX) {
        return tokenizer_encode(worker->encoder->tokenizer, "\n\n", 2, tokens);
    }
    token_list_append(tokens, end);
    return 0;
}

/* Encodes a field of a line. */
static int encode_field(const struct worker *worker, const char *line, size_t bytes, const char *field,
                        const char *option, struct text_buffer *buffer, struct token_list *tokens) {
    return json_lines_field(&line, &bytes, field, option, worker->encoder->settings->replace_invalid, buffer) ||
                   tokenizer_encode(worker->encoder->tokenizer, line, bytes, tokens)
               ? -1
               : 0;
}

/* A line's prompt, if there is one, and its text. */
static int encode_line(struct worker *worker, struct text_piece *piece, const char *line, size_t bytes,
                       struct token_list *tokens) {
    const struct prepare_settings *settings = worker->encoder->settings;
    const size_t before = tokens->count;
    if (settings->prompt_field &&
        encode_field(worker, line, bytes, settings->prompt_field, "--prompt-field", &worker->prompt, tokens)) {
        return -1;
    }
    if (tokens->count - before > UINT32_MAX) {
        return error_set("the prompt has too many tokens");
    }
    piece->prompt_tokens = (uint32_t)(tokens->count - before);
    return encode_field(worker, line, bytes, settings->field, "--field", &worker->field, tokens);
}

static int encode_piece(struct worker *worker, struct text_piece *piece, const char *text,
                        struct token_list *tokens) {
    const struct prepare_settings *settings = worker->encoder->settings;
    const bool is_line = settings->kind == DOCUMENT_JSONL, are_bytes = settings->tokenizer.kind == TOKENIZER_BYTE;
    size_t bytes = piece->bytes;
    if ((is_line || !are_bytes) && /* text as bytes may be anything */
        text_require_utf8(&text, &bytes, piece->source, piece->line, settings->replace_invalid, &worker->valid)) {
        return -1;
    }
    piece->prompt_tokens = 0;
    if (is_line ? encode_line(worker, piece, text, bytes, tokens)
                : tokenizer_encode(worker->encoder->tokenizer, text, bytes, tokens)) {
        return error_prefix("%s:%" PRIu64, piece->source, piece->line);
    }
    const bool marks_end = settings->kind != DOCUMENT_CHUNKS || !are_bytes;
    return piece->ends && marks_end ? mark_end(worker, tokens) : 0;
}

static int encode_batch(struct worker *worker, struct text_batch *batch) {
    const char *text = batch->text.bytes ? batch->text.bytes : "";
    for (struct text_piece *piece = batch->pieces; piece < batch->pieces + batch->count; piece++) {
        if (encode_piece(worker, piece, text, &batch->tokens)) {
            return -1;
        }
        text += piece->bytes;
        piece->token_end = batch->tokens.count;
    }
    return 0;
}

/* Waits for the next batch to encode; NULL: the encoder is closing. */
static struct slot *claim(struct encoder *encoder) {
    pthread_mutex_lock(&encoder->lock);
    while (encoder->claimed == encoder->sent && !encoder->closing) {
        pthread_cond_wait(&encoder->submitted, &encoder->lock);
    }
    struct slot *slot = encoder->closing ? NULL : &encoder->slots[encoder->claimed++ % encoder->slot_count];
    pthread_mutex_unlock(&encoder->lock);
    return slot;
}

static void finish(struct encoder *encoder, struct slot *slot, int result) {
    slot->error = result ? error_keep() : NULL;
    pthread_mutex_lock(&encoder->lock);
    slot->ready = true;
    pthread_cond_signal(&encoder->encoded);
    pthread_mutex_unlock(&encoder->lock);
}

static void *work(void *context) {
    struct encoder *encoder = context;
    struct worker worker = {.encoder = encoder};
    struct slot *slot;
    while ((slot = claim(encoder)) != NULL) {
        finish(encoder, slot, encode_batch(&worker, &slot->batch));
        if (worker.field.capacity > MOST_KEPT_BYTES || worker.valid.capacity > MOST_KEPT_BYTES ||
            worker.prompt.capacity > MOST_KEPT_BYTES) {
            text_free(&worker.field);
            text_free(&worker.prompt);
            text_free(&worker.valid);
        }
    }
    text_free(&worker.valid);
    text_free(&worker.field);
    text_free(&worker.prompt);
    return NULL;
}

/* ---- the caller's thread */

int encoder_create(const struct prepare_settings *settings, const struct tokenizer *tokenizer,
                   struct encoder **created) {
    struct encoder *encoder = *created = memory_zeroed(1, sizeof *encoder);
    encoder->settings = settings;
    encoder->tokenizer = tokenizer;
    encoder->slot_count = 2 * (size_t)settings->threads + SPARE_BATCHES;
    encoder->slots = memory_zeroed(encoder->slot_count, sizeof *encoder->slots);
    encoder->threads = memory_zeroed((size_t)settings->threads, sizeof *encoder->threads);
    pthread_mutex_init(&encoder->lock, NULL);
    pthread_cond_init(&encoder->submitted, NULL);
    pthread_cond_init(&encoder->encoded, NULL);
    for (; encoder->thread_count < settings->threads; encoder->thread_count++) {
        if (pthread_create(&encoder->threads[encoder->thread_count], NULL, work, encoder)) {
            return error_set("cannot start a thread to encode text; try --threads 1");
        }
    }
    return 0;
}

void encoder_free(struct encoder *encoder) {
    if (!encoder) {
        return;
    }
    pthread_mutex_lock(&encoder->lock);
    encoder->closing = true;
    pthread_cond_broadcast(&encoder->submitted);
    pthread_mutex_unlock(&encoder->lock);
    for (int64_t i = 0; i < encoder->thread_count; i++) {
        pthread_join(encoder->threads[i], NULL);
    }
    for (size_t i = 0; i < encoder->slot_count; i++) {
        text_free(&encoder->slots[i].batch.text);
        token_list_free(&encoder->slots[i].batch.tokens);
        free(encoder->slots[i].batch.pieces);
        free(encoder->slots[i].error);
    }
    pthread_mutex_destroy(&encoder->lock);
    pthread_cond_destroy(&encoder->submitted);
    pthread_cond_destroy(&encoder->encoded);
    free(encoder->slots);
    free(encoder->threads);
    free(encoder);
}

struct text_batch *encoder_vacant(struct encoder *encoder) {
    const bool too_much = encoder->submitted_bytes > MOST_SUBMITTED_BYTES && encoder->sent > encoder->taken;
    if (too_much || encoder->sent - encoder->taken == encoder->slot_count) {
        return NULL;
    }
    struct text_batch *batch = &encoder->slots[encoder->sent % encoder->slot_count].batch;
    batch->text.size = batch->count = batch->tokens.count = 0;
    return batch;
}

void encoder_submit(struct encoder *encoder) {
    encoder->submitted_bytes += encoder->slots[encoder->sent % encoder->slot_count].batch.text.size;
    pthread_mutex_lock(&encoder->lock);
    encoder->sent++;
    pthread_cond_signal(&encoder->submitted);
    pthread_mutex_unlock(&encoder->lock);
}

int encoder_take(struct encoder *encoder, bool wait, const struct text_batch **batch) {
    if (encoder->taken == encoder->sent) {
        return 0;
    }
    struct slot *slot = &encoder->slots[encoder->taken % encoder->slot_count];
    pthread_mutex_lock(&encoder->lock);
    while (wait && !slot->ready) {
        pthread_cond_wait(&encoder->encoded, &encoder->lock);
    }
    const bool ready = slot->ready;
    pthread_mutex_unlock(&encoder->lock);
    *batch = &slot->batch;
    if (ready && slot->error) {
        error_restore(slot->error);
        slot->error = NULL;
        return -1;
    }
    return ready;
}

void encoder_release(struct encoder *encoder) {
    struct slot *slot = &encoder->slots[encoder->taken++ % encoder->slot_count];
    encoder->submitted_bytes -= slot->batch.text.size;
    slot->ready = false;
    if (slot->batch.text.capacity > MOST_KEPT_BYTES || slot->batch.tokens.part_capacity > MOST_KEPT_BYTES / 64) {
        text_free(&slot->batch.text);
        token_list_free(&slot->batch.tokens);
    }
}
