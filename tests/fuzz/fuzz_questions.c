/* Any bytes as a line of a task's questions, which the first byte chooses: a question that was read is whole. */
#include "runtime/system/error.h"
#include "runtime/system/utf8.h"
#include "src/evaluation/questions.h"
#include "tests/fuzz/fuzz_file.h"
#include <stdlib.h>
#include <string.h>

static bool is_text(const char *text) {
    return utf8_prefix(text, strlen(text)) == strlen(text);
}

static void check_question(enum task task, const struct question *question) {
    fuzz_require(question->count >= 1 && question->count <= QUESTION_MOST_CHOICES, "a number of choices");
    fuzz_require(question->label < question->count, "the right choice is none of them");
    for (size_t i = 0; i < question->count; i++) {
        const struct question_choice *choice = &question->choices[i];
        fuzz_require(is_text(question_context(question, i)) && is_text(choice->continuation), "it is not UTF-8");
        fuzz_require(choice->characters > 0 && strlen(choice->continuation) > choice->characters,
                     "an empty choice");
    }
    char *example = question_example(task, question);
    fuzz_require(is_text(example), "the example is not UTF-8");
    free(example);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct question question;
    if (bytes == 0) {
        return 0;
    }
    const enum task task = (enum task)(TASK_HELLASWAG + data[0] % TASK_WINOGRANDE);
    error_clear();
    if (question_read(task, (const char *)data + 1, bytes - 1, &question) == 0) {
        check_question(task, &question);
    } else {
        fuzz_require(*error_text() != '\0', "a failure without a reason");
    }
    question_free(&question);
    return 0;
}
