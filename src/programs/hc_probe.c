/* hc_probe: one forward and backward pass of a checkpoint on a given batch, everything dumped. */
#include "runtime/system/error.h"
#include "src/evaluation/probe.h"
#include "src/settings/settings.h"
#include <signal.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct program_info program = {
    .name = "hc_probe",
    .summary =
        "Runs a checkpoint forward and backward on one given batch and writes loss, gradients, H matrices and, "
        "with --logits, logits to a safetensors file. With --train it runs optimiser steps on given batches "
        "instead.",
    .usage = "--checkpoint DIR --batch FILE --out OUT [OPTIONS]",
    .examples = "hc_probe --checkpoint out/ckpt-500 --batch batch.safetensors --out probe.safetensors --logits\n"
                "hc_probe --train --checkpoint init --batch batches.safetensors --out trained --learning-rate 6e-3",
};

static int run(const struct probe_settings *settings, const struct device_settings *device) {
    struct compute *compute = NULL;
    if (!settings->checkpoint || !settings->batch || !settings->out) {
        error_set("--checkpoint, --batch and --out are all needed; see hc_probe --help");
        return settings_fail(program.name, 2);
    }
    if (settings_open_device(device, settings_type(settings->dtype), 0, &compute)) {
        return settings_fail(program.name, 1);
    }
    const int status = probe_run(compute, settings);
    compute_close(compute);
    return status ? settings_fail(program.name, 1) : 0;
}

int main(int argc, char **argv) {
    struct probe_settings settings = {0};
    struct device_settings device = {0};
    struct option_spec specs[] = {
        {.type = OPTION_HEADING, .help = "What to run"},
        {.type = OPTION_TEXT, .name = "checkpoint", .target = &settings.checkpoint, .help = "checkpoint folder"},
        {.type = OPTION_TEXT,
         .name = "batch",
         .target = &settings.batch,
         .help = "safetensors file with x and y, I32 [B, T] (with --train [iterations, micro, B, T])"},
        {.type = OPTION_TEXT,
         .name = "out",
         .target = &settings.out,
         .help = "file to write (with --train a folder)"},
        {.type = OPTION_BOOL,
         .name = "logits",
         .target = &settings.logits,
         .default_value = "false",
         .help = "write the logits too"},
        {.type = OPTION_BOOL,
         .name = "grad",
         .target = &settings.grad,
         .default_value = "true",
         .help = "run the backward pass and write gradients; --no-grad leaves them out"},
        {.type = OPTION_BOOL,
         .name = "streams",
         .target = &settings.streams,
         .default_value = "false",
         .help = "write the streams that enter each sublayer too"},
        {.type = OPTION_BOOL,
         .name = "train",
         .target = &settings.train,
         .default_value = "false",
         .help = "run optimiser steps on the batches; writes model.safetensors and losses.json"},
        OPTIMIZER_OPTIONS(&settings.optimizer),
        DEVICE_OPTIONS(&device),
        TYPE_OPTION(&settings.dtype),
    };
    device_prepare_environment();
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is an error like others */
    int status = settings_parse(specs, COUNT(specs), &program, argc, argv, NULL);
    if (status == 0) {
        status = run(&settings, &device);
    }
    options_free(specs, COUNT(specs));
    return status < 0 ? 0 : status;
}
