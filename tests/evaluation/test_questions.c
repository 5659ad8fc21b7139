/* Lines of data sets as questions: prompts worked by hand, and lines that are refused. check_tasks.py compares more
 * prompts. */
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/evaluation/questions.h"
#include "src/text/text_buffer.h"
#include "tests/support/test.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void read_line(enum task task, const char *line, struct question *question) {
    if (question_read(task, line, strlen(line), question)) {
        fail_msg("%s: %s", line, error_text());
    }
}

static void assert_choice(const struct question *question, size_t choice, const char *context,
                          const char *continuation) {
    assert_true(choice < question->count);
    assert_string_equal(question_context(question, choice), context);
    assert_string_equal(question->choices[choice].continuation, continuation);
}

UNIT_TEST(test_white_space_is_pythons) {
    static const char text[] = " \t\xc2\xa0\x1f"
                               "a\xe3\x80\x80"
                               "b\xe2\x80\x83\xc2\x85 ";
    assert_int_equal(text_lstrip(text, sizeof text - 1), 5);
    assert_int_equal(text_rstrip(text, sizeof text - 1), 10);
    assert_int_equal(text_rstrip(text, 5), 0);
    assert_int_equal(text_lstrip("", 0), 0);
}

UNIT_TEST(test_hellaswag_is_cleaned_up) {
    struct question question;
    read_line(
        TASK_HELLASWAG,
        "{\"activity_label\": \"A\", \"ctx_a\": \"[x] b\", \"ctx_b\": \"\xc3\x89T\xc3\x89 [y\\nz] \", \"endings\": "
        "[\" c [title] d\", \"\xc3\xa9   e\"], \"label\": \"1\"}",
        &question);
    assert_choice(&question, 0, "A: b \xc3\x89t\xc3\xa9 [y\nz]", " c. d");
    assert_choice(&question, 1, "A: b \xc3\x89t\xc3\xa9 [y\nz]", " \xc3\xa9  e");
    assert_int_equal(question.label, 1);
    assert_int_equal(question.choices[1].characters, 4);
    question_free(&question);
}

/* Each bracket could look for its end behind all others, which would take minutes. */
UNIT_TEST(test_open_brackets_take_no_time) {
    enum { BRACKETS = 1 << 21 };
    char *brackets = memory_allocate(BRACKETS + 1, 1);
    memset(brackets, '[', BRACKETS);
    brackets[BRACKETS] = '\0';
    char *line = memory_format("{\"activity_label\": \"A\", \"ctx_a\": \"%s\", \"ctx_b\": \"\", \"endings\": "
                               "[\"[\\n[a]] [[b] c\"], \"label\": 0}",
                               brackets);
    struct question question;
    const clock_t start = clock();
    read_line(TASK_HELLASWAG, line, &question);
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 20.0);
    assert_int_equal(strlen(question_context(&question, 0)), BRACKETS + strlen("A: "));
    assert_string_equal(question.choices[0].continuation, " [\n] c");
    question_free(&question);
    free(line);
    free(brackets);
}

UNIT_TEST(test_examples_end_with_a_blank_line) {
    struct question question;
    read_line(TASK_LAMBADA, "{\"text\": \"a b c\"}", &question);
    assert_choice(&question, 0, "a b", " c");
    char *example = question_example(TASK_LAMBADA, &question);
    assert_string_equal(example, "a b  c\n\n");
    free(example);
    question_free(&question);
    read_line(TASK_WINOGRANDE,
              "{\"sentence\": \"x _ y _.\", \"option1\": \"1\", \"option2\": \"2\", \"answer\": \"2\"}", &question);
    assert_choice(&question, 0, "x 1", " y _.");
    assert_choice(&question, 1, "x 2", " y _.");
    example = question_example(TASK_WINOGRANDE, &question);
    assert_string_equal(example, "x 2 y _.\n\n");
    free(example);
    question_free(&question);
}

UNIT_TEST(test_a_text_of_one_word_has_no_context) {
    struct question question;
    read_line(TASK_LAMBADA, "{\"text\": \"alone\"}", &question);
    assert_choice(&question, 0, "", " alone");
    question_free(&question);
}

#define PIQA(rest)      "{\"goal\": \"g\", \"sol1\": \"a\", " rest "}"
#define HELLASWAG(rest) "{\"activity_label\": \"a\", \"ctx_a\": \"b\", \"ctx_b\": \"c\", " rest "}"
#define ARC(rest)       "{\"question\": \"q\", " rest "}"
#define WINOGRANDE(sentence, answer)                                                                               \
    "{\"sentence\": \"" sentence "\", \"option1\": \"a\", \"option2\": \"b\", \"answer\": " answer "}"

UNIT_TEST(test_other_lines_are_refused) {
    static const struct {
        enum task task;
        const char *line, *words;
    } cases[] = {
        {TASK_PIQA, "{", "not JSON at byte"},
        {TASK_PIQA, "[1]", "not a JSON object"},
        {TASK_PIQA, "7", "not a JSON object"},
        {TASK_PIQA, "{}", "no field 'goal'"},
        {TASK_PIQA, PIQA("\"sol2\": 3"), "'sol2' is 3.0: it must be a string"},
        {TASK_PIQA, PIQA("\"sol2\": \"\", \"label\": 0"), "choice 1 is empty"},
        {TASK_PIQA, PIQA("\"sol2\": \"b\""), "no field 'label'"},
        {TASK_PIQA, PIQA("\"sol2\": \"b\", \"label\": -1"), "field 'label' is not one of the choices, 0 to 1"},
        {TASK_PIQA, PIQA("\"sol2\": \"b\", \"label\": 2"), "field 'label' is not one of the choices"},
        {TASK_PIQA, PIQA("\"sol2\": \"b\", \"label\": 0.5"), "field 'label' is not one of the choices"},
        {TASK_PIQA, PIQA("\"sol2\": \"b\", \"label\": true"), "field 'label' is not one of the choices"},
        {TASK_PIQA, PIQA("\"sol2\": \"b\", \"label\": \"0x1\""), "field 'label' is not one of the choices"},
        {TASK_PIQA, PIQA("\"sol2\": \"b\", \"label\": 1e99999"), "field 'label' is not one of the choices"},
        {TASK_LAMBADA, "{\"text\": \"a\\u0000 b\"}", "it must be a string without NUL"},
        {TASK_LAMBADA, "{\"text\": \"\\ud800 b\"}", "not JSON at byte"},
        {TASK_LAMBADA, "{\"text\": \"\"}", "field 'text' has no last word"},
        {TASK_LAMBADA, "{\"text\": \"a \"}", "field 'text' has no last word"},
        {TASK_HELLASWAG, HELLASWAG("\"label\": 0"), "no field 'endings'"},
        {TASK_HELLASWAG, HELLASWAG("\"endings\": \"d\""), "field 'endings' is not a list"},
        {TASK_HELLASWAG, HELLASWAG("\"endings\": []"), "field 'endings' has 0 elements: 1 to 32 are possible"},
        {TASK_HELLASWAG, HELLASWAG("\"endings\": [\"d\", null]"), "field 'endings': element 1 is not a string"},
        {TASK_HELLASWAG, HELLASWAG("\"endings\": [\"[d]\"], \"label\": 0"), "choice 0 is empty"},
        {TASK_HELLASWAG, HELLASWAG("\"endings\": [\"d\"], \"label\": \"\""),
         "field 'label' is not one of the choices"},
        {TASK_ARC_EASY, ARC("\"answerKey\": \"A\""), "no field 'choices'"},
        {TASK_ARC_EASY, ARC("\"answerKey\": \"A\", \"choices\": []"), "field 'choices' is not an object"},
        {TASK_ARC_EASY, ARC("\"answerKey\": \"A\", \"choices\": {\"text\": [\"a\"]}"), "choices: no field 'label'"},
        {TASK_ARC_CHALLENGE, ARC("\"answerKey\": \"B\", \"choices\": {\"text\": [\"a\"], \"label\": [\"A\"]}"),
         "field 'answerKey' is none of choices.label"},
        {TASK_ARC_CHALLENGE,
         ARC("\"answerKey\": \"B\", \"choices\": {\"text\": [\"a\"], \"label\": [\"A\", \"B\"]}"),
         "field 'answerKey' is the label of no choice"},
        {TASK_WINOGRANDE, WINOGRANDE("a", "\"1\""), "field 'sentence' has no blank"},
        {TASK_WINOGRANDE, WINOGRANDE("a _ ", "\"1\""), "field 'sentence' has nothing behind its blank"},
        {TASK_WINOGRANDE, WINOGRANDE("a _.", "\"0\""), "field 'answer' is not one of the choices, 1 to 2"},
        {TASK_WINOGRANDE, WINOGRANDE("a _.", "\"\""), "field 'answer' is not one of the choices, 1 to 2"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct question question;
        if (question_read(cases[i].task, cases[i].line, strlen(cases[i].line), &question) != -1 ||
            !strstr(error_text(), cases[i].words)) {
            fail_msg("%s: expected '%s', found '%s'", cases[i].line, cases[i].words, error_text());
        }
        question_free(&question);
    }
}

UNIT_TEST_MAIN(NULL, NULL)
