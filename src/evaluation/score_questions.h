/* The answers of a model to the questions of a downstream task, as lm-evaluation-harness takes them: each
 * continuation has a log-likelihood behind its context, and the most likely one is the answer.
 *
 * Rank 0 reads and encodes, all ranks score. Memory is bounded by a round of questions, not by their number. */
#pragma once

#include "runtime/system/progress.h"
#include "src/evaluation/documents.h"
#include "src/evaluation/questions.h"
#include "src/model/gpt.h"
#include "src/text/tokenizer.h"

struct answered_question {
    const char *source; /* the name of its file */
    uint64_t line;
    size_t count, label; /* of choices; the right one */
    size_t pick;         /* the choice with the largest log-likelihood */
    size_t pick_norm;    /* the one with the largest log-likelihood per character */
    bool greedy;         /* of a task_is_greedy: each token of the continuation has the largest logit */
    double log_likelihoods[QUESTION_MOST_CHOICES]; /* natural */
};

struct question_scoring {
    struct gpt *gpt; /* planned with the ranks, and the tokens that the softmax is over */
    struct ranks *ranks;
    struct progress *progress;
    enum task task;
    const struct documents_settings *examples; /* rank 0's, as all below: the file that examples are taken from */
    int64_t shots;                             /* so many examples before each question */
    bool same;                                 /* they are the questions: none is its own example */
    struct documents *documents;               /* of lines */
    const struct tokenizer *tokenizer;         /* the model's */
    /* Told of the questions in their order; -1 with an error text ends it. */
    int (*answered)(void *context, const struct answered_question *question);
    void *context;
};

/* Means over questions, and their standard errors: NaN for one question. */
struct estimate {
    double mean, error;
};

struct question_scores {
    uint64_t questions, tokens;     /* tokens that were read */
    struct estimate accuracy;       /* the right choice is picked, or the continuation is greedy */
    struct estimate accuracy_norm;  /* the same with pick_norm */
    struct estimate log_likelihood; /* of the right choice */
    double perplexity_error;        /* of a task_is_greedy: of exp(-log_likelihood.mean), see bootstrap.h */
};

/* Sets *scores on rank 0, to the same on any number of ranks. Collective. Fails with "interrupted" on all ranks
 * when one is. */
int score_questions(const struct question_scoring *scoring, struct question_scores *scores);
