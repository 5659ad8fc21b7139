#include "src/settings/compile_ahead.h"
#include "runtime/device/self_test.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "runtime/system/progress.h"
#include "runtime/system/spawn.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SELF "/proc/self/exe"

enum {
    CONTEXT = 64, /* more rows than the kernels for few rows take */
    LAYERS = 2,   /* a variant that reads earlier layers has none in layer 0 */
    LOOKS = 5,    /* for an idle core */
};

void compile_only_print(const struct compute *compute, double start) {
    message_print(stderr, "compiled the kernels for %s in %.1f s\n", compute->device.name,
                  progress_clock() - start);
}

void compile_ahead_reduce(struct model_config *model) {
    model->n_layer = model->residual->uses_depth || model->n_layer < LAYERS ? model->n_layer : LAYERS;
    model->block_size = model->block_size < CONTEXT ? model->block_size : CONTEXT;
}

/* Whether a core is idle. The driver's threads, which have just started, run for a moment.
 */
static bool has_idle_core(void) {
    const struct timespec pause = {0, 1000000};
    const char *wanted = getenv("HCTRAIN_COMPILE_AHEAD");
    if (wanted && *wanted) {
        return strcmp(wanted, "0") != 0;
    }
    for (int i = 0; i < LOOKS && host_local_count() == 1; i++) {
        const unsigned running = host_running();
        if (running > 0 && running < host_cores()) {
            return true;
        }
        nanosleep(&pause, NULL);
    }
    return false;
}

/* Writes the key of this model's kernels. Whether they were compiled before. */
static bool find_key(struct compile_ahead *ahead, const struct compute *compute) {
    struct model_setting settings[MODEL_MOST_SETTINGS];
    struct option_spec specs[MODEL_MOST_SETTINGS];
    const size_t count = model_config_settings(ahead->model, settings);
    for (size_t i = 0; i < count; i++) {
        specs[i] = settings[i].option;
    }
    char *model = options_text(specs, count);
    char *what = memory_format("kernels of %s, %s, %s", ahead->model->residual->name, ahead->purpose, model);
    const bool passed = self_test_passed(compute, what, ahead->key);
    free(what);
    free(model);
    error_clear();
    return passed;
}

/* A file in memory with this text, to be read from its beginning; -1: there is none. */
static int text_file(const char *text) {
    const size_t bytes = strlen(text);
    const int file = memfd_create("settings", MFD_CLOEXEC);
    if (file >= 0 && (write(file, text, bytes) != (ssize_t)bytes || lseek(file, 0, SEEK_SET) != 0)) {
        close(file);
        return -1;
    }
    return file;
}

void compile_ahead_start(struct compile_ahead *ahead, const struct compute *compute) {
    char *program = ahead->program ? ahead->program : SELF;
    char *arguments[] = {program, "--config", "/dev/stdin", "--compile-only", (char *)(uintptr_t)ahead->option,
                         NULL};
    if (ahead->child > 0 || !device_is_pocl(&compute->device) || compute->dry || find_key(ahead, compute) ||
        !*ahead->key || !has_idle_core()) {
        return;
    }
    char *text = options_text(ahead->specs, ahead->spec_count);
    const int settings = text_file(text);
    const struct spawn_files files = {.in = settings, .out = SPAWN_SILENT, .err = SPAWN_SILENT};
    if (settings >= 0 && spawn_program(&ahead->child, program, arguments, &files)) {
        ahead->child = 0;
    }
    if (settings >= 0) {
        close(settings);
    }
    free(text);
}

void compile_ahead_end(struct compile_ahead *ahead, const struct compute *compute, bool used) {
    if (ahead->child > 0) {
        kill(ahead->child, SIGTERM);
        while (waitpid(ahead->child, NULL, 0) < 0 && errno == EINTR) {
        }
        ahead->child = 0;
    }
    if (used && *ahead->key) {
        self_test_keep(compute, ahead->key);
        ahead->key[0] = '\0';
    }
}
