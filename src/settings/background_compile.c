#include "src/settings/background_compile.h"
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

void compile_only_reduce(struct model_config *model) {
    const bool has_unmixed = model->hc_until > 0 && model->hc_until < 2 * model->n_layer;
    model->n_layer = model->residual->uses_depth || model->n_layer < LAYERS ? model->n_layer : LAYERS;
    const int64_t most = 2 * model->n_layer - has_unmixed; /* sublayers that mix: both kinds stay */
    model->hc_until = model->hc_until < most ? model->hc_until : most;
    model->block_size = model->block_size < CONTEXT ? model->block_size : CONTEXT;
}

/* Whether a core is idle. The driver's threads, which have just started, run for a moment. */
static bool has_idle_core(void) {
    const struct timespec pause = {0, 1000000};
    const char *wanted = getenv("HCTRAIN_BACKGROUND_COMPILE");
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
static bool find_key(struct background_compile *background, const struct compute *compute) {
    struct model_setting settings[MODEL_MOST_SETTINGS];
    struct option_spec specs[MODEL_MOST_SETTINGS];
    const size_t count = model_config_settings(background->model, settings);
    for (size_t i = 0; i < count; i++) {
        specs[i] = settings[i].option;
    }
    char *model = options_text(specs, count);
    char *what =
        memory_format("kernels of %s, %s, %s", background->model->residual->name, background->purpose, model);
    const bool passed = self_test_passed(compute, what, background->key);
    free(what);
    free(model);
    error_clear();
    return passed;
}

void background_compile_start(struct background_compile *background, const struct compute *compute) {
    char *program = background->program ? background->program : SELF;
    char *arguments[] = {program, "--config", "/dev/stdin", "--compile-only", (char *)(uintptr_t)background->option,
                         NULL};
    if (background->child > 0 || !device_is_pocl(&compute->device) || compute->dry ||
        find_key(background, compute) || !*background->key || !has_idle_core()) {
        return;
    }
    char *text = options_text(background->specs, background->spec_count);
    const size_t bytes = strlen(text);
    const int settings = memfd_create("settings", MFD_CLOEXEC); /* a file in memory, read from its beginning */
    const struct spawn_files files = {.in = settings, .out = SPAWN_SILENT, .err = SPAWN_SILENT};
    if (settings >= 0 && write(settings, text, bytes) == (ssize_t)bytes && lseek(settings, 0, SEEK_SET) == 0 &&
        spawn_program(&background->child, program, arguments, &files)) {
        background->child = 0;
    }
    if (settings >= 0) {
        close(settings);
    }
    free(text);
}

void background_compile_end(struct background_compile *background, const struct compute *compute, bool used) {
    if (background->child > 0) {
        kill(background->child, SIGTERM);
        while (waitpid(background->child, NULL, 0) < 0 && errno == EINTR) {
        }
        background->child = 0;
    }
    if (used && *background->key) {
        self_test_keep(compute, background->key);
        background->key[0] = '\0';
    }
}
