#include "src/evaluation/score_questions.h"
#include "runtime/files/input.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "src/evaluation/bootstrap.h"
#include "src/evaluation/perplexity.h"
#include "src/measuring/score_windows.h"
#include "src/text/text_buffer.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A round ends with the question that reaches one of these. They must not depend on the number of ranks. */
enum { ROUND_TOKENS = 1 << 21, ROUND_QUESTIONS = 1 << 14 };

/* A continuation to score: the last `scored` tokens, which follow the others. */
struct request {
    uint64_t tokens;     /* 2 .. T + 1 */
    uint64_t scored;     /* 1 .. tokens - 1 */
    uint64_t characters; /* of the choice */
};

/* Examples for the prompts: as many as are needed where one of them is the question itself. */
struct examples {
    struct question *questions; /* owned */
    char **texts;               /* owned */
    size_t count, capacity, text_capacity;
};

/* Questions that are answered together, and what they are read with. */
struct batch {
    const struct question_scoring *scoring;
    struct examples examples;
    uint64_t questions, requests, tokens; /* in the arrays below */
    size_t request_capacity, token_capacity;
    struct answered_question *answers; /* [ROUND_QUESTIONS] */
    struct request *list;              /* [requests] choices of all questions */
    int32_t *ids;                      /* [tokens] of all requests */
    struct loss_window *windows;       /* [requests] */
    struct text_buffer context, whole;
    struct token_list context_tokens, whole_tokens;
    double *log_likelihoods; /* [scores->questions] of a task_is_greedy, for the error of the perplexity */
    size_t log_likelihood_capacity;
};

/* ---- rank 0: examples */

static bool is_known(const struct examples *examples, const struct question *question) {
    for (size_t i = 0; i < examples->count; i++) {
        if (json_equal(examples->questions[i].fields, question->fields)) {
            return true;
        }
    }
    return false;
}

static int read_line(const struct question_scoring *scoring, const struct document *document,
                     struct question *question) {
    return question_read(scoring->task, document->text, document->bytes, question)
               ? error_prefix("%s:%" PRIu64, input_name(document->source), document->line)
               : 0;
}

/* Takes the next example over; returns whether it is another one than those before. */
static bool add_example(struct examples *examples, enum task task, const struct question *question) {
    const bool is_new = !is_known(examples, question);
    memory_reserve((void **)&examples->questions, &examples->capacity, examples->count + 1,
                   sizeof *examples->questions);
    memory_reserve((void **)&examples->texts, &examples->text_capacity, examples->count + 1,
                   sizeof *examples->texts);
    examples->texts[examples->count] = question_example(task, question);
    examples->questions[examples->count++] = *question;
    return is_new;
}

/* The first `shots` of their file; where they are the questions, up to one different one more. */
static int read_examples(struct batch *batch) {
    const struct question_scoring *scoring = batch->scoring;
    const uint64_t wanted = (uint64_t)scoring->shots + (scoring->same ? 1 : 0);
    struct documents *documents;
    struct document document;
    int found = documents_open(scoring->examples, &documents) ? -1 : 1;
    for (uint64_t different = 0; found == 1 && different < wanted;) {
        struct question question;
        if ((found = documents_next(documents, &document)) != 1) {
            break;
        }
        if (read_line(scoring, &document, &question)) {
            question_free(&question);
            found = -1;
            break;
        }
        different += add_example(&batch->examples, scoring->task, &question) || !scoring->same;
    }
    documents_close(documents);
    return found < 0 ? -1 : 0;
}

/* Sets batch->context to the examples of a question: the first that are not the question. */
static int put_examples(struct batch *batch, const struct question *question) {
    const struct examples *examples = &batch->examples;
    uint64_t taken = 0, shots = (uint64_t)batch->scoring->shots;
    batch->context.size = 0;
    for (size_t i = 0; i < examples->count && taken < shots; i++) {
        if (!batch->scoring->same || !json_equal(examples->questions[i].fields, question->fields)) {
            text_append(&batch->context, examples->texts[i], strlen(examples->texts[i]));
            taken++;
        }
    }
    return taken == shots ? 0
                          : error_set("there are %s for it, and --shots is %" PRIu64
                                      ": give fewer --shots, or more examples with --shots-file",
                                      message_count((int64_t)taken, "example").text, shots);
}

static void free_examples(struct examples *examples) {
    for (size_t i = 0; i < examples->count; i++) {
        question_free(&examples->questions[i]);
        free(examples->texts[i]);
    }
    free(examples->questions);
    free(examples->texts);
}

/* ---- rank 0: requests */

/* Adds a request: the tokens of `before`, then those of `after` from `from` on, which are scored; of all these the
 * last T + 1. `first`, unless it is UINT32_MAX, precedes them. */
static int add_request(struct batch *batch, uint32_t first, const struct token_list *before,
                       const struct token_list *after, size_t from, size_t characters) {
    const size_t most = (size_t)batch->scoring->gpt->options.sequence + 1, begins = first != UINT32_MAX,
                 context = begins + before->count, scored = after->count > from ? after->count - from : 0,
                 skipped = context + scored > most ? context + scored - most : 0;
    if (scored == 0 || context == 0) {
        return error_set("no tokens are left for the %s: %s", scored == 0 ? "choice" : "context",
                         scored == 0 ? "it is encoded together with the end of the context"
                                     : "it has white space only, which belongs to the choice");
    }
    if (scored >= most) {
        return error_set("a continuation has %zu tokens, and the model a context of %zu: leave out this question",
                         scored, most - 1);
    }
    memory_reserve((void **)&batch->ids, &batch->token_capacity, batch->tokens + most, sizeof *batch->ids);
    memory_reserve((void **)&batch->list, &batch->request_capacity, batch->requests + 1, sizeof *batch->list);
    for (size_t i = skipped; i < context; i++) {
        batch->ids[batch->tokens++] = (int32_t)(i < begins ? first : before->tokens[i - begins]);
    }
    for (size_t i = from; i < after->count; i++) {
        batch->ids[batch->tokens++] = (int32_t)after->tokens[i];
    }
    batch->list[batch->requests++] = (struct request){context + scored - skipped, scored, characters};
    return 0;
}

/* A continuation behind batch->context [bytes], of which white space at the end belongs to the continuation. The
 * context's tokens are those of the context alone, and the continuation's are what is left of the tokens of both
 * together. An empty context is replaced by tokenizer_prefix. */
static int add_choice(struct batch *batch, const struct question_choice *choice) {
    const struct tokenizer *tokenizer = batch->scoring->tokenizer;
    struct token_list *before = &batch->context_tokens, *after = &batch->whole_tokens;
    const size_t bytes = text_rstrip(batch->context.bytes, batch->context.size);
    const uint32_t first = batch->context.size ? tokenizer_beginning(tokenizer) : tokenizer_prefix(tokenizer);
    before->count = after->count = 0;
    batch->whole.size = 0;
    text_append(&batch->whole, batch->context.bytes, batch->context.size);
    text_append(&batch->whole, choice->continuation, strlen(choice->continuation));
    return tokenizer_encode(tokenizer, batch->context.bytes, bytes, before) ||
                   tokenizer_encode(tokenizer, batch->whole.bytes, batch->whole.size, after)
               ? -1
               : add_request(batch, first, before, after, before->count, choice->characters);
}

static int add_choices(struct batch *batch, const struct question *question) {
    if (put_examples(batch, question)) {
        return -1;
    }
    const size_t examples = batch->context.size;
    for (size_t i = 0; i < question->count; i++) {
        const char *context = question_context(question, i);
        batch->context.size = examples;
        text_append(&batch->context, context, strlen(context));
        if (add_choice(batch, &question->choices[i])) {
            return error_prefix("choice %zu", i);
        }
    }
    return 0;
}

static int add_question(struct batch *batch, const struct document *document) {
    struct question question;
    int status = read_line(batch->scoring, document, &question);
    if (status == 0 && add_choices(batch, &question)) {
        status = error_prefix("%s:%" PRIu64, input_name(document->source), document->line);
    }
    if (status == 0) {
        batch->answers[batch->questions++] = (struct answered_question){.source = document->source,
                                                                        .line = document->line,
                                                                        .count = question.count,
                                                                        .label = question.label};
    }
    question_free(&question);
    return status;
}

static int read_questions(struct batch *batch) {
    int found = 1;
    while (found == 1 && batch->tokens < ROUND_TOKENS && batch->questions < ROUND_QUESTIONS) {
        struct document document;
        found = interrupt_requested() ? -1 : documents_next(batch->scoring->documents, &document);
        if (found == 1 && add_question(batch, &document)) {
            found = -1;
        }
    }
    if (found < 0 && interrupt_requested()) {
        return error_set("interrupted");
    }
    return found < 0 ? -1 : 0;
}

/* The next questions' requests to all ranks; none at the end. Collective. */
static int share_requests(struct batch *batch) {
    struct ranks *ranks = batch->scoring->ranks;
    batch->questions = batch->requests = batch->tokens = 0;
    if (ranks_agree(ranks, ranks->index == 0 ? read_questions(batch) : 0)) {
        return -1;
    }
    uint64_t sizes[2] = {batch->requests, batch->tokens};
    if (ranks_broadcast(ranks, sizes, sizeof sizes)) {
        return -1;
    }
    batch->requests = sizes[0];
    batch->tokens = sizes[1];
    memory_reserve((void **)&batch->list, &batch->request_capacity, batch->requests, sizeof *batch->list);
    memory_reserve((void **)&batch->ids, &batch->token_capacity, batch->tokens, sizeof *batch->ids);
    return ranks_broadcast(ranks, batch->list, batch->requests * sizeof *batch->list) ||
           ranks_broadcast(ranks, batch->ids, batch->tokens * sizeof *batch->ids);
}

/* ---- all score */

static void make_windows(struct batch *batch) {
    const int32_t *ids = batch->ids;
    batch->windows = memory_resize(batch->windows, batch->requests, sizeof *batch->windows);
    for (uint64_t i = 0; i < batch->requests; i++) {
        const struct request *request = &batch->list[i];
        batch->windows[i] = (struct loss_window){.tokens = ids,
                                                 .length = request->tokens - 1,
                                                 .scored = request->scored,
                                                 .counts_misses = task_is_greedy(batch->scoring->task)};
        ids += request->tokens;
    }
}

/* Ranks have the same losses, so they agree. */
static int check_losses(const struct batch *batch) {
    for (size_t i = 0; i < batch->requests; i++) {
        if (perplexity_check_loss(batch->windows[i].loss)) {
            return -1;
        }
    }
    return 0;
}

/* Adds the question's value to a mean; `error` is the sum of squares of differences to it until the end. */
static void estimate_add(struct estimate *estimate, uint64_t count, double value) {
    const double difference = value - estimate->mean;
    estimate->mean += difference / (double)count;
    estimate->error += difference * (value - estimate->mean);
}

static void estimate_end(struct estimate *estimate, uint64_t count) {
    estimate->error = count > 1 ? sqrt(estimate->error / (double)(count - 1)) / sqrt((double)count) : (double)NAN;
}

/* The first of the largest values counts, as in numpy. */
static void pick(struct answered_question *answer, const struct loss_window *windows,
                 const struct request *requests) {
    double best = -HUGE_VAL;
    for (size_t i = 0; i < answer->count; i++) {
        const double value = answer->log_likelihoods[i] = -windows[i].loss,
                     norm = value / (double)requests[i].characters;
        answer->pick = value > answer->log_likelihoods[answer->pick] ? i : answer->pick;
        answer->pick_norm = norm > best ? i : answer->pick_norm;
        best = norm > best ? norm : best;
    }
    answer->greedy = windows[0].counts_misses && windows[0].misses == 0.0;
}

static int report(struct batch *batch, struct question_scores *scores) {
    const struct question_scoring *scoring = batch->scoring;
    const struct loss_window *windows = batch->windows;
    const struct request *requests = batch->list;
    for (uint64_t i = 0; i < batch->questions; i++) {
        struct answered_question *answer = &batch->answers[i];
        pick(answer, windows, requests);
        const bool right = task_is_greedy(scoring->task) ? answer->greedy : answer->pick == answer->label;
        scores->questions++;
        estimate_add(&scores->accuracy, scores->questions, right);
        estimate_add(&scores->accuracy_norm, scores->questions, answer->pick_norm == answer->label);
        estimate_add(&scores->log_likelihood, scores->questions, answer->log_likelihoods[answer->label]);
        if (task_is_greedy(scoring->task)) {
            memory_reserve((void **)&batch->log_likelihoods, &batch->log_likelihood_capacity, scores->questions,
                           sizeof *batch->log_likelihoods);
            batch->log_likelihoods[scores->questions - 1] = answer->log_likelihoods[0];
        }
        if (scoring->answered(scoring->context, answer)) {
            return -1;
        }
        windows += answer->count;
        requests += answer->count;
    }
    return 0;
}

static int score_all(struct batch *batch, struct question_scores *scores) {
    const struct question_scoring *scoring = batch->scoring;
    struct ranks *ranks = scoring->ranks;
    struct score_round round = {.ranks = ranks, .progress = scoring->progress, .label = ""};
    if (ranks_agree(ranks, ranks->index == 0 && scoring->shots > 0 ? read_examples(batch) : 0)) {
        return -1;
    }
    for (;;) {
        if (share_requests(batch)) {
            return -1;
        }
        if (batch->requests == 0) {
            return 0;
        }
        round.before = round.after;
        round.scored += round.tokens;
        round.tokens = batch->tokens - batch->requests;
        if (scoring->documents) {
            round.label = documents_progress(scoring->documents, &round.after, &round.total);
        }
        scores->tokens += round.tokens;
        make_windows(batch);
        if (score_windows(scoring->gpt, batch->windows, batch->requests, &round) || check_losses(batch) ||
            ranks_agree(ranks, ranks->index == 0 ? report(batch, scores) : 0)) {
            return -1;
        }
    }
}

int score_questions(const struct question_scoring *scoring, struct question_scores *scores) {
    struct batch batch = {
        .scoring = scoring,
        .answers = memory_allocate(ROUND_QUESTIONS, sizeof *batch.answers),
    };
    *scores = (struct question_scores){0};
    int status = score_all(&batch, scores);
    if (status == 0 && task_is_greedy(scoring->task)) {
        const size_t count = scoring->ranks->index == 0 ? scores->questions : 0;
        status = ranks_agree(scoring->ranks,
                             bootstrap_perplexity_error(batch.log_likelihoods, count, &scores->perplexity_error));
    }
    estimate_end(&scores->accuracy, scores->questions);
    estimate_end(&scores->accuracy_norm, scores->questions);
    estimate_end(&scores->log_likelihood, scores->questions);
    free_examples(&batch.examples);
    token_list_free(&batch.context_tokens);
    token_list_free(&batch.whole_tokens);
    text_free(&batch.context);
    text_free(&batch.whole);
    free(batch.answers);
    free(batch.log_likelihoods);
    free(batch.list);
    free(batch.ids);
    free(batch.windows);
    return status;
}
