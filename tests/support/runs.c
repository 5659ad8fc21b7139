#include "tests/support/runs.h"
#include "runtime/system/random.h"
#include "tests/support/tensors.h"
#include <dirent.h>
#include <time.h>

enum { PATIENCE_MS = 60000, TEXT_BYTES = 40000 };

void assert_done(int status) {
    if (status != 0) {
        fail_msg("exit status %d: %s", status, child_message());
    }
}

void assert_failed(int status, int expected, const char *text) {
    if (status != expected || !strstr(child_message(), text)) {
        fail_msg("exit status %d (expected %d), '%s' expected in: %s", status, expected, text, child_message());
    }
}

/* ---- what runs leave */

void assert_same_file(const char *first, const char *second) {
    size_t bytes[2];
    char *texts[2] = {scratch_read(scratch_path(first), &bytes[0]), scratch_read(scratch_path(second), &bytes[1])};
    assert_non_null(texts[0]);
    assert_non_null(texts[1]);
    if (bytes[0] != bytes[1] || memcmp(texts[0], texts[1], bytes[0]) != 0) {
        fail_msg("%s and %s differ", first, second);
    }
    free(texts[0]);
    free(texts[1]);
}

char *run_path(const char *run, const char *name) {
    return scratch_format("%s/%s", run, name);
}

void assert_same_checkpoint(const char *first, const char *second, const char *name) {
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    for (size_t i = 0; i < COUNT(files); i++) {
        const char *file = run_path(name, files[i]);
        assert_same_file(run_path(first, file), run_path(second, file));
    }
}

void assert_frozen(const char *before, const char *after, bool frozen) {
    struct safetensors *files[2] = {tensors_open(scratch_path(before), "model.safetensors"),
                                    tensors_open(scratch_path(after), "model.safetensors")};
    struct safetensors *states = tensors_open(scratch_path(after), "optimizer.safetensors");
    size_t found = 0;
    for (size_t i = 0; i < files[0]->count; i++) {
        const struct tensor_info *info = &files[0]->infos[i];
        if (!strstr(info->name, ".alpha_res")) {
            continue;
        }
        float *old = tensors_read(files[0], info), *new = tensors_read(files[1], &files[1]->infos[i]);
        float *moment = tensors_read(states, tensors_need(states, "exp_avg.", info->name));
        assert_int_equal(memcmp(old, new, sizeof *old) == 0, frozen);
        assert_int_equal(*moment == 0.0f, frozen);
        free(old);
        free(new);
        free(moment);
        found++;
    }
    assert_true(found > 0);
    safetensors_close(files[0]);
    safetensors_close(files[1]);
    safetensors_close(states);
}

/* metrics.jsonl as an array, without what the clock decides. */
json_t *metrics(const char *run) {
    json_t *lines = json_array();
    char *text = scratch_text(scratch_path(run_path(run, "metrics.jsonl")), NULL);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        json_t *json = json_loadb(line, (size_t)(end - line), 0, NULL);
        assert_non_null(json);
        json_object_del(json, "time");
        json_object_del(json, "tokens_per_sec");
        json_object_del(json, "mfu");
        json_array_append_new(lines, json);
    }
    return lines;
}

void assert_same_metrics(const char *first, const char *second) {
    json_t *lines[2] = {metrics(first), metrics(second)};
    assert_true(json_array_size(lines[0]) > 0);
    if (!json_equal(lines[0], lines[1])) {
        fail_msg("metrics of %s (%zu lines) and %s (%zu lines) differ", first, json_array_size(lines[0]), second,
                 json_array_size(lines[1]));
    }
    json_decref(lines[0]);
    json_decref(lines[1]);
}

void assert_near_metrics(const char *first, const char *second, size_t least, double tolerance) {
    json_t *lines[2] = {metrics(first), metrics(second)};
    const char *const names[] = {"loss", "val_loss", "train_loss", "grad_norm"};
    const double tolerances[] = {tolerance, tolerance, tolerance, 10.0 * tolerance};
    assert_true(json_array_size(lines[0]) >= least);
    assert_int_equal(json_array_size(lines[0]), json_array_size(lines[1]));
    for (size_t i = 0; i < json_array_size(lines[0]); i++) {
        for (size_t k = 0; k < 4; k++) {
            const json_t *a = json_object_get(json_array_get(lines[0], i), names[k]);
            const json_t *b = json_object_get(json_array_get(lines[1], i), names[k]);
            assert_true((a == NULL) == (b == NULL));
            const double x = json_number_value(a), y = json_number_value(b);
            if (a && !(fabs(x - y) <= tolerances[k] * fabs(x))) {
                fail_msg("%s of %s and %s in line %zu: %.9g and %.9g", names[k], first, second, i, x, y);
            }
        }
    }
    json_decref(lines[0]);
    json_decref(lines[1]);
}

double number_in(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    if (!json_is_number(value)) {
        fail_msg("no number %s", name);
    }
    return json_number_value(value);
}

double loss_at(const json_t *lines, size_t index) {
    return json_number_value(json_object_get(json_array_get(lines, index), "loss"));
}

bool has(const char *run, const char *name) {
    return files_exist(scratch_path(run_path(run, name)));
}

/* The newest checkpoint's iteration, `from` or later; -1: none. */
long newest(const char *run, long from) {
    DIR *folder = opendir(scratch_path(run));
    long found = -1;
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        long at;
        char rest;
        if (sscanf(entry->d_name, "ckpt-%ld%c", &at, &rest) == 1 && at >= from && at > found) {
            found = at;
        }
    }
    if (folder) {
        closedir(folder);
    }
    return found;
}

void wait_ms(long milliseconds) {
    nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000}, NULL);
}

/* Waits until a run has a checkpoint newer than `than`; returns its iteration. */
long wait_for_checkpoint(const char *run, long than) {
    for (int waited = 0; waited < PATIENCE_MS; waited += 5) {
        const long found = newest(run, than + 1);
        if (found >= 0) {
            return found;
        }
        wait_ms(5);
    }
    fail_msg("no checkpoint of %s after %d ms", run, PATIENCE_MS);
    return -1;
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

const char *checkpoint(long iteration) {
    return scratch_format("ckpt-%ld", iteration);
}

void copy(const char *from, const char *to) {
    size_t bytes;
    char *text = scratch_text(scratch_path(from), &bytes);
    scratch_write(to, text, bytes);
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

void assert_says(const char *text) {
    if (!strstr(child_message(), text)) {
        fail_msg("'%s' is not in: %s", text, child_message());
    }
}

void assert_same_run(const char *first, const char *second, const char *name) {
    assert_same_metrics(first, second);
    assert_same_checkpoint(first, second, name);
}

/* ---- the corpus */

static const char tiny[] = "device = pocl\n"
                           "n_layer = 1\n"
                           "n_head = 2\n"
                           "n_embd = 16\n"
                           "block_size = 16\n"
                           "batch_size = 4\n"
                           "max_iters = 20\n"
                           "learning_rate = 1e-2\n"
                           "warmup_iters = 2\n"
                           "lr_decay_iters = 20\n"
                           "eval_iters = 0\n"
                           "checkpoint_interval = 10\n";

int corpus_begin(void **state) {
    static const char *const words[8] = {"the", "cat", "sat", "on", "a", "mat", "and", "ran"};
    static char text[TEXT_BYTES + 16];
    size_t size = 0;
    for (uint64_t i = 0; size < TEXT_BYTES; i++) {
        const char *word = words[random_below(random_key(1, "text"), i, 8)];
        size += (size_t)snprintf(text + size, sizeof text - size, "%s%c", word, i % 9 == 8 ? '\n' : ' ');
    }
    if (scratch_begin(state)) {
        return -1;
    }
    scratch_put("tiny.conf", tiny);
    const char *source = scratch_write("text.txt", text, size);
    const int status = CHILD_RUN(HC_PROGRAMS "/hc_prepare", "--out", scratch_path("data"), source);
    if (status != 0) {
        fprintf(stderr, "%s", child_message());
    }
    return status == 0 ? 0 : -1;
}

void corpus_write_over(const char *path, const char *from, bool turned) {
    size_t bytes;
    char *data = scratch_read(scratch_path(from), &bytes), *written = malloc(bytes);
    assert_true(data && written);
    for (size_t i = 0; i < bytes; i += 2) {
        memcpy(written + i, data + (turned ? bytes - 2 - i : i), 2);
    }
    const int file = open(scratch_path(path), O_WRONLY | O_CLOEXEC);
    assert_true(file >= 0 && write(file, written, bytes) == (ssize_t)bytes);
    close(file);
    free(written);
    free(data);
}
