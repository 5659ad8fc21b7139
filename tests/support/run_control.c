#include "tests/support/run_control.h"
#include "runtime/system/array.h"
#include "tests/support/scratch.h"
#include <stdio.h>
#include <sys/wait.h>

static pid_t under_way; /* the run; 0: none */

void start_with(const struct child_setup *setup, const char *const *arguments) {
    under_way = child_start_with(setup, arguments);
}

void start(const char *const *arguments) {
    start_with(&(struct child_setup){0}, arguments);
}

int finish(void) {
    const pid_t child = under_way;
    under_way = 0;
    return child_finish_within(child, TIMEOUT_SECONDS);
}

void send_signal(int number) {
    assert_int_equal(kill(under_way, number), 0);
}

int interrupt(void) {
    send_signal(SIGINT);
    return finish();
}

/* After a test that failed in the middle. */
int run_control_stop(void **state) {
    (void)state;
    if (under_way > 0) {
        kill(under_way, SIGKILL);
        finish();
    }
    return 0;
}

static bool is_running(void) {
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t)under_way, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

long count_lines(const char *path) {
    size_t bytes;
    char *text = scratch_read(scratch_path(path), &bytes);
    long count = 0;
    for (const char *at = text; at && (at = strchr(at, '\n')); at++) {
        count++;
    }
    free(text);
    return count;
}

long newer_checkpoint(const char *run, long than) {
    return newest(run, than + 1);
}

long more_lines(const char *run, long than) {
    const long count = count_lines(run_path(run, "metrics.jsonl"));
    return count > than ? count : -1;
}

long wait_for(progress find, const char *run, long than) {
    for (int waited = 0; waited < 1000 * (int)TIMEOUT_SECONDS; waited += 5) {
        const bool running = is_running();
        const long found = find(run, than);
        if (found >= 0) {
            return found;
        }
        if (!running) {
            const int status = finish();
            fail_msg("%s ended too early with status %d: %s", run, status, child_message());
        }
        wait_ms(5);
    }
    fail_msg("nothing new of %s after %g s", run, TIMEOUT_SECONDS);
    return -1;
}

const char *decimal(long number) {
    static char texts[8][24];
    static unsigned next;
    char *text = texts[next++ % 8];
    snprintf(text, sizeof texts[0], "%ld", number);
    return text;
}

const char *checkpoint(long iteration) {
    static char names[8][32];
    static unsigned next;
    char *name = names[next++ % 8];
    snprintf(name, sizeof names[0], "ckpt-%ld", iteration);
    return name;
}

void copy(const char *from, const char *to) {
    size_t bytes;
    char *text = scratch_read(scratch_path(from), &bytes);
    assert_non_null(text);
    scratch_write(to, text, bytes);
    free(text);
}

void copy_data(const char *to) {
    static const char *const names[] = {"train.bin", "val.bin", "meta.json"};
    assert_int_equal(files_make_folder(scratch_path(to)), 0);
    for (size_t i = 0; i < COUNT(names); i++) {
        copy(run_path("data", names[i]), run_path(to, names[i]));
    }
}

json_t *read_json(const char *path) {
    json_t *json = json_load_file(scratch_path(path), 0, NULL);
    assert_non_null(json);
    return json;
}

void link_to(const char *target, const char *name) {
    assert_int_equal(symlink(target, scratch_path(name)), 0);
}

void remove_checkpoint(const char *run, long iteration) {
    assert_int_equal(files_remove_folder(scratch_path(run_path(run, checkpoint(iteration)))), 0);
}

void assert_says(const char *text) {
    if (!strstr(child_message(), text)) {
        fail_msg("'%s' is not in: %s", text, child_message());
    }
}

void assert_refused(int status, const char *text) {
    if (status != FAILED && status != WRONG_USAGE) {
        fail_msg("exit status %d instead of a refusal: %s", status, child_message());
    }
    assert_says(text);
}

json_int_t saved_integer(const char *path, const char *name) {
    json_t *saved = read_json(path);
    const json_int_t value = json_integer_value(json_object_get(saved, name));
    json_decref(saved);
    return value;
}

void turn_round(const char *path) {
    size_t bytes;
    char *data = scratch_read(scratch_path(path), &bytes);
    assert_non_null(data);
    char *turned = malloc(bytes);
    assert_non_null(turned);
    for (size_t i = 0; i < bytes; i += 2) {
        memcpy(turned + i, data + bytes - 2 - i, 2);
    }
    scratch_write(path, turned, bytes);
    free(turned);
    free(data);
}

long count_evaluations(const char *run, long iteration) {
    json_t *lines = metrics(run), *line;
    size_t index;
    long count = 0;
    json_array_foreach(lines, index, line) {
        count +=
            json_object_get(line, "val_loss") && json_integer_value(json_object_get(line, "iter")) == iteration;
    }
    json_decref(lines);
    return count;
}

void assert_has_text(const char *path, const char *expected) {
    size_t bytes;
    char *text = scratch_read(scratch_path(path), &bytes);
    assert_non_null(text);
    assert_string_equal(text, expected);
    free(text);
}

void assert_same_run(const char *first, const char *second, const char *name) {
    assert_same_metrics(first, second);
    assert_same_checkpoint(first, second, name);
}

int run_control_begin(void **state) {
    if (scratch_begin(state) || corpus_make(HC_PROGRAMS)) {
        return -1;
    }
    scratch_write("short.txt", "the cat sat on a mat and ran\n", 29);
    return TRAIN("base", "--max-iters", "2", "--checkpoint-interval", "1") == 0 ? 0 : -1;
}
