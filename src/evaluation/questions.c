#include "src/evaluation/questions.h"
#include "runtime/files/json_file.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/text/text_buffer.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unicase.h>

/* ---- fields */

/* Fails if a field is absent. */
static int fail_absent(const char *name) {
    return error_set("no field '%s': is this a file of the data set of --task?", name);
}

/* The string in a field; NULL with an error text. */
static const char *text_at(const json_t *fields, const char *name) {
    const char *text = NULL;
    if (json_file_get_text(fields, name, &text) == 0 && !text) {
        fail_absent(name);
    }
    return text ? json_string_value(json_object_get(fields, name)) : NULL;
}

/* The strings in fields `names` [count]. */
static int texts_at(const json_t *fields, const char *const *names, size_t count, const char **texts) {
    for (size_t i = 0; i < count; i++) {
        if (!(texts[i] = text_at(fields, names[i]))) {
            return -1;
        }
    }
    return 0;
}

/* A list of 1 to QUESTION_MOST_CHOICES strings; NULL with an error text. */
static const json_t *list_at(const json_t *fields, const char *name) {
    const json_t *list = json_object_get(fields, name), *element;
    size_t i;
    if (!json_is_array(list)) {
        list ? error_set("field '%s' is not a list", name) : fail_absent(name);
        return NULL;
    }
    if (json_array_size(list) < 1 || json_array_size(list) > QUESTION_MOST_CHOICES) {
        error_set("field '%s' has %zu elements: 1 to %d are possible", name, json_array_size(list),
                  QUESTION_MOST_CHOICES);
        return NULL;
    }
    json_array_foreach(list, i, element) {
        if (!json_is_string(element) || strlen(json_string_value(element)) != json_string_length(element)) {
            error_set("field '%s': element %zu is not a string, or has NUL in it", name, i);
            return NULL;
        }
    }
    return list;
}

/* A whole number, or its digits as a string, that counts the choices from `first`. */
static int label_at(const json_t *fields, const char *name, int first, struct question *question) {
    const json_t *value = json_object_get(fields, name);
    const char *digits = json_string_value(value);
    char *end = NULL;
    double number = json_is_number(value) ? json_number_value(value) : digits ? strtod(digits, &end) : (double)NAN;
    if (!value) {
        return fail_absent(name);
    }
    if (digits && (!*digits || strspn(digits, "0123456789") != json_string_length(value))) {
        number = (double)NAN;
    }
    if (!(number >= first && number < (double)first + (double)question->count) || number != floor(number)) {
        return error_set(
            "field '%s' is not one of the choices, %d to %zu: a split without answers cannot be scored", name,
            first, question->count + (size_t)first - 1);
    }
    question->label = (size_t)(number - first);
    return 0;
}

/* ---- choices */

static size_t characters_of(const char *text) {
    size_t count = 0;
    for (; *text; text++) {
        count += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return count;
}

/* Adds a choice with its context, which it takes over, behind a space. */
static int add_choice(struct question *question, char *context, const char *choice) {
    question->choices[question->count] =
        (struct question_choice){context, memory_format(" %s", choice), characters_of(choice)};
    question->count++;
    return *choice ? 0 : error_set("choice %zu is empty", question->count - 1);
}

/* The choices in a list, which share a context. */
static int add_choices(struct question *question, char *context, const json_t *list) {
    const json_t *choice;
    size_t i;
    json_array_foreach(list, i, choice) {
        if (add_choice(question, i == 0 ? context : NULL, json_string_value(choice))) {
            return -1;
        }
    }
    return 0;
}

/* Python's strip(). */
static char *strip(const char *text) {
    const size_t bytes = text_rstrip(text, strlen(text)), begin = text_lstrip(text, bytes);
    return memory_string_part(text + begin, bytes - begin);
}

/* ---- HellaSwag */

/* Python's capitalize(): the first character in title case, the others in lower case. */
static char *capitalize(const char *text) {
    const uint8_t *bytes = (const uint8_t *)text;
    const size_t size = strlen(text);
    size_t first = size > 0, first_size, rest_size;
    while (first < size && (bytes[first] & 0xc0) == 0x80) {
        first++;
    }
    uint8_t *head = u8_totitle(bytes, first, NULL, NULL, NULL, &first_size);
    uint8_t *rest = u8_ct_tolower(bytes + first, size - first, u8_casing_prefix_context(bytes, first),
                                  unicase_empty_suffix_context, NULL, NULL, NULL, &rest_size);
    if (!head || !rest) {
        memory_refused(size);
    }
    char *result =
        memory_format("%.*s%.*s", (int)first_size, (const char *)head, (int)rest_size, (const char *)rest);
    free(head);
    free(rest);
    return result;
}

/* Puts `to`, which is not longer, in place of each `from`. */
static void replace(char *text, const char *from, const char *to) {
    char *out = text;
    for (const char *at = text, *found; *at; at = found + strlen(from)) {
        found = strstr(at, from);
        const size_t kept = found ? (size_t)(found - at) : strlen(at);
        memmove(out, at, kept);
        out += kept;
        if (!found) {
            break;
        }
        memcpy(out, to, strlen(to));
        out += strlen(to);
    }
    *out = '\0';
}

/* Python's re.sub("\\[.*?\\]", "", text). */
static void remove_brackets(char *text) {
    char *out = text;
    const char *end = text; /* what ends the text inside of a bracket; several may end at one place */
    for (const char *at = text; *at; at++) {
        if (*at == '[' && end <= at) {
            end = at + strcspn(at, "]\n");
        }
        if (*at == '[' && *end == ']') {
            at = end;
        } else {
            *out++ = *at;
        }
    }
    *out = '\0';
}

/* What WikiHow's texts need. Heap memory. */
static char *clean(const char *text) {
    char *result = strip(text);
    replace(result, " [title]", ". ");
    remove_brackets(result);
    replace(result, "  ", " ");
    return result;
}

static int read_hellaswag(const json_t *fields, struct question *question) {
    static const char *const names[] = {"activity_label", "ctx_a", "ctx_b"};
    const char *texts[COUNT(names)];
    const json_t *endings, *ending;
    size_t i;
    if (texts_at(fields, names, COUNT(names), texts) || !(endings = list_at(fields, "endings"))) {
        return -1;
    }
    char *end = capitalize(texts[2]), *text = memory_format("%s: %s %s", texts[0], texts[1], end);
    char *context = clean(text);
    int status = 0;
    free(end);
    free(text);
    json_array_foreach(endings, i, ending) {
        char *choice = clean(json_string_value(ending));
        status |= add_choice(question, i == 0 ? context : NULL, choice);
        free(choice);
    }
    return status || label_at(fields, "label", 0, question) ? -1 : 0;
}

/* ---- LAMBADA */

/* The last word follows from those before it. */
static int read_lambada(const json_t *fields, struct question *question) {
    const char *text = text_at(fields, "text");
    if (!text) {
        return -1;
    }
    const char *space = strrchr(text, ' '), *word = space ? space + 1 : text;
    return add_choice(question, memory_string_part(text, space ? (size_t)(space - text) : 0), word)
               ? error_set("field 'text' has no last word: it is empty or ends with a space")
               : 0;
}

/* ---- PIQA, ARC */

static int read_piqa(const json_t *fields, struct question *question) {
    static const char *const names[] = {"goal", "sol1", "sol2"};
    const char *texts[COUNT(names)];
    return texts_at(fields, names, COUNT(names), texts) ||
                   add_choice(question, memory_format("Question: %s\nAnswer:", texts[0]), texts[1]) ||
                   add_choice(question, NULL, texts[2]) || label_at(fields, "label", 0, question)
               ? -1
               : 0;
}

/* The index of the string `key` in a list. */
static int find_label(const json_t *labels, const char *key, struct question *question) {
    const json_t *label;
    size_t i;
    json_array_foreach(labels, i, label) {
        if (strcmp(json_string_value(label), key) == 0) {
            question->label = i;
            return i < question->count ? 0 : error_set("field 'answerKey' is the label of no choice");
        }
    }
    return error_set("field 'answerKey' is none of choices.label");
}

static int read_arc(const json_t *fields, struct question *question) {
    const json_t *choices = json_object_get(fields, "choices"), *texts, *labels;
    static const char *const names[] = {"question", "answerKey"};
    const char *values[COUNT(names)];
    if (texts_at(fields, names, COUNT(names), values)) {
        return -1;
    }
    if (!json_is_object(choices)) {
        return choices ? error_set("field 'choices' is not an object ({...})") : fail_absent("choices");
    }
    if (!(texts = list_at(choices, "text")) || !(labels = list_at(choices, "label"))) {
        return error_prefix("choices");
    }
    return add_choices(question, memory_format("Question: %s\nAnswer:", values[0]), texts) ||
                   find_label(labels, values[1], question)
               ? -1
               : 0;
}

/* ---- WinoGrande */

/* What follows the blank is scored behind both fillings. */
static int read_winogrande(const json_t *fields, struct question *question) {
    static const char *const names[] = {"sentence", "option1", "option2"};
    const char *texts[COUNT(names)], *blank;
    if (texts_at(fields, names, COUNT(names), texts)) {
        return -1;
    }
    if (!(blank = strchr(texts[0], '_'))) {
        return error_set("field 'sentence' has no blank ('_')");
    }
    char *rest = strip(blank + 1);
    int status = 0;
    for (size_t i = 1; i < COUNT(names) && status == 0; i++) {
        char *context = memory_format("%.*s%s", (int)(blank - texts[0]), texts[0], texts[i]);
        status =
            add_choice(question, context, rest) ? error_set("field 'sentence' has nothing behind its blank") : 0;
    }
    free(rest);
    return status || label_at(fields, "answer", 1, question) ? -1 : 0;
}

/* ---- all tasks */

static const struct {
    const char *name;
    int (*read)(const json_t *fields, struct question *question);
    bool has_norm;
} tasks[] = {
    [TASK_NONE] = {"none", NULL, false},
    [TASK_HELLASWAG] = {"hellaswag", read_hellaswag, true},
    [TASK_LAMBADA] = {"lambada", read_lambada, false},
    [TASK_PIQA] = {"piqa", read_piqa, true},
    [TASK_ARC_EASY] = {"arc_easy", read_arc, true},
    [TASK_ARC_CHALLENGE] = {"arc_challenge", read_arc, true},
    [TASK_WINOGRANDE] = {"winogrande", read_winogrande, false},
};

const char *task_name(enum task task) {
    return tasks[task].name;
}

bool task_has_norm(enum task task) {
    return tasks[task].has_norm;
}

bool task_is_greedy(enum task task) {
    return task == TASK_LAMBADA;
}

int question_read(enum task task, const char *line, size_t bytes, struct question *question) {
    json_error_t error;
    *question = (struct question){
        .fields = json_file_parse(line, bytes, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, false, &error)};
    if (!question->fields) {
        return error_set("not JSON at byte %d: %s", error.position, error.text);
    }
    return json_is_object(question->fields) ? tasks[task].read(question->fields, question)
                                            : error_set("not a JSON object ({...})");
}

void question_free(struct question *question) {
    for (size_t i = 0; i < question->count; i++) {
        free(question->choices[i].context);
        free(question->choices[i].continuation);
    }
    json_decref(question->fields);
    *question = (struct question){0};
}

const char *question_context(const struct question *question, size_t choice) {
    while (!question->choices[choice].context) {
        choice--;
    }
    return question->choices[choice].context;
}

/* lm-evaluation-harness puts a space between a context and its target. LAMBADA's target has one already, so that
 * there are two. */
char *question_example(enum task task, const struct question *question) {
    return memory_format("%s%s%s\n\n", question_context(question, question->label), task_is_greedy(task) ? " " : "",
                         question->choices[question->label].continuation);
}
