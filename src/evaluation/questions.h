/* Questions of downstream tasks: a line of JSON, with the fields of the data set on Hugging Face, as
 * lm-evaluation-harness makes prompts of it. The model scores the continuations; the most likely one is its
 * answer. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* --task */
#define TASK_WORDS "none|hellaswag|lambada|piqa|arc_easy|arc_challenge|winogrande"
enum task {
    TASK_NONE,
    TASK_HELLASWAG,
    TASK_LAMBADA,
    TASK_PIQA,
    TASK_ARC_EASY,
    TASK_ARC_CHALLENGE,
    TASK_WINOGRANDE
};

enum { QUESTION_MOST_CHOICES = 32 };

struct question_choice {
    char *context;      /* owned; NULL: that of the choice before, choice 0 has one */
    char *continuation; /* owned; with the delimiter before it */
    size_t characters;  /* of the choice alone, in Unicode characters */
};

struct question {
    struct question_choice choices[QUESTION_MOST_CHOICES];
    size_t count; /* of choices; 1 for lambada */
    size_t label; /* the right one */
    json_t *fields;
};

/* "hellaswag"; and whether choices are also compared per character, as acc_norm. */
const char *task_name(enum task task);
bool task_has_norm(enum task task);

/* Whether the only continuation has to be what the model would write, token for token. */
bool task_is_greedy(enum task task);

/* Reads a line [bytes] of UTF-8. Fails with an error text, without file and line, if it is not JSON, lacks a field
 * that the task needs, or a field has another type, no choices, an empty one, a NUL, or a label that is none of
 * them. The caller frees the question, also on failure. */
int question_read(enum task task, const char *line, size_t bytes, struct question *question);
void question_free(struct question *question);

/* The context of a choice. */
const char *question_context(const struct question *question, size_t choice);

/* The question with its right answer, for the prompts of others; with the blank line behind it. Heap memory. */
char *question_example(enum task task, const struct question *question);
