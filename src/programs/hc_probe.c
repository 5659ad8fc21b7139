/* hc_probe: one forward and backward pass of a checkpoint on a given batch, everything dumped. */
#include "runtime/system/error.h"
#include "src/evaluation/probe.h"
#include "src/programs/program.h"
#include "src/settings/schedule.h"
#include "src/settings/settings.h"
#include "src/settings/type_choice.h"
#include <signal.h>

static struct program program = {
    .info.name = "hc_probe",
    .info.summary = "Runs a checkpoint forward and backward on one given batch and writes loss, gradients, H "
                    "matrices and, with --logits, logits to a safetensors file. With --train it runs optimizer "
                    "steps on given batches instead.",
    .info.usage = "--checkpoint DIR --batch FILE --out OUT [OPTIONS]",
    .info.examples =
        "hc_probe --checkpoint out/ckpt-500 --batch batch.safetensors --out probe.safetensors --logits\n"
        "hc_probe --train --checkpoint init --batch batches.safetensors --out trained --learning-rate 6e-3",
    .computes = true,
};

/* Whether the learning rate falls, whatever the number of iterations. */
static int check_schedule(const struct probe_settings *settings) {
    struct optimizer_settings optimizer = settings->optimizer;
    schedule_complete(settings->specs, settings->spec_count, 0, &optimizer, NULL);
    return settings->train ? schedule_check(&optimizer) : 0;
}

static int run(struct probe_settings *settings, const struct device_settings *device, int dtype) {
    struct compute *compute = NULL;
    struct type_choice choice;
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is an error like others */
    if (!settings->checkpoint || !settings->batch || !settings->out) {
        error_set("--checkpoint, --batch and --out are all needed; see hc_probe --help");
        return PROGRAM_WRONG;
    }
    if (check_schedule(settings)) {
        return PROGRAM_WRONG;
    }
    if (type_choice_open(device, dtype, 0, &program.ranks, &compute, &choice)) {
        compute_close(compute);
        return PROGRAM_FAILED;
    }
    type_choice_print(&choice, stderr);
    settings->dtype = choice.type;
    const int status = probe_run(compute, settings);
    compute_close(compute);
    return status ? PROGRAM_FAILED : PROGRAM_DONE;
}

int main(int argc, char **argv) {
    struct probe_settings settings = {0};
    struct device_settings device = {0};
    int dtype; /* enum element_type, or TYPE_AUTO */
    const struct option_spec first[] = {
        HEADING("What to run"),
        TEXT("checkpoint", &settings.checkpoint, NULL, "checkpoint folder"),
        TEXT("batch", &settings.batch, NULL,
             "safetensors file with x and y, I32 [B, T] (with --train [iterations, micro, B, T])"),
        TEXT("out", &settings.out, NULL, "file to write (with --train a folder)"),
        BOOL("logits", &settings.logits, "false", "write the logits, too"),
        BOOL("grad", &settings.grad, "true",
             "run the backward pass and write gradients; --no-grad leaves them out"),
        BOOL("streams", &settings.streams, "false", "write the streams that enter each sublayer, too"),
        BOOL("train", &settings.train, "false",
             "run optimizer steps on the batches; writes model.safetensors and losses.json"),
    };
    const struct option_spec last[] = {
        DEVICE_OPTIONS(&device),
        TYPE_OPTION(&dtype, "fp32"),
    };
    static struct option_table table;
    options_append(&table, first, COUNT(first));
    settings_optimizer_options(&settings.optimizer, "the iterations of the batches", &table);
    options_append(&table, last, COUNT(last));
    settings.specs = table.rows;
    settings.spec_count = table.count;
    if (program_begin(&program, table.rows, table.count, argc, argv)) {
        program.status = run(&settings, &device, dtype);
    }
    return program_end(&program);
}
