/* hc_probe: one forward and backward pass of a checkpoint on a given batch, everything dumped; or statistics of its
 * residual connection on samples of a token file. */
#include "runtime/files/token_file.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "src/evaluation/measure.h"
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
                    "steps on given batches instead, and with --measure it writes statistics of H_res and of what "
                    "sublayers read and write, over samples of a token file, as JSON: hc_analyze shows them.",
    .info.usage = "--checkpoint DIR (--batch FILE | --measure --data-dir DIR) --out OUT [OPTIONS]",
    .info.examples =
        "hc_probe --checkpoint out/ckpt-500 --batch batch.safetensors --out probe.safetensors --logits\n"
        "hc_probe --train --checkpoint init --batch batches.safetensors --out trained --learning-rate 6e-3\n"
        "hc_probe --measure --checkpoint out/ckpt-500 --data-dir data/mine --out h.json",
    .computes = true,
};

/* Whether the learning rate falls, whatever the number of iterations. */
static int check_schedule(const struct probe_settings *settings) {
    struct optimizer_settings optimizer = settings->optimizer;
    schedule_complete(settings->specs, settings->spec_count, 0, &optimizer, NULL);
    return settings->train ? schedule_check(&optimizer) : 0;
}

struct settings {
    struct probe_settings probe;
    bool measures;
    struct measure_settings measure;
    struct device_settings device;
    int dtype; /* enum element_type, or TYPE_AUTO */
};

static int check_arguments(const struct settings *settings) {
    const struct probe_settings *probe = &settings->probe;
    const char *input = settings->measures ? settings->measure.data_dir : probe->batch;
    if (!probe->checkpoint || !input || !probe->out) {
        return error_set("--checkpoint, %s and --out are all needed; see hc_probe --help",
                         settings->measures ? "--data-dir" : "--batch");
    }
    if (settings->measures && (probe->train || probe->batch || settings->dtype != ELEMENT_FP32)) {
        return error_set(
            "--measure computes in fp32 on samples of --data-dir: leave --batch, --train and --dtype out");
    }
    return check_schedule(probe);
}

static int run(struct settings *settings) {
    struct compute *compute = NULL;
    struct type_choice choice;
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is an error like others */
    if (check_arguments(settings)) {
        return PROGRAM_WRONG;
    }
    if (type_choice_open(&settings->device, settings->dtype, 0, &program.ranks, &compute, &choice)) {
        compute_close(compute);
        return PROGRAM_FAILED;
    }
    settings->probe.dtype = choice.type;
    int status;
    if (settings->measures) {
        interrupt_install();
        status = measure_checkpoint(compute, settings->probe.checkpoint, &settings->measure, settings->probe.out);
    } else {
        type_choice_print(&choice, stderr);
        status = probe_run(compute, &settings->probe);
    }
    compute_close(compute);
    return status ? program_failed(&program) : PROGRAM_DONE;
}

int main(int argc, char **argv) {
    struct settings settings = {0};
    const struct option_spec first[] = {
        HEADING("What to run"),
        TEXT("checkpoint", &settings.probe.checkpoint, NULL, "checkpoint folder"),
        TEXT("batch", &settings.probe.batch, NULL,
             "safetensors file with x and y, I32 [B, T] (with --train [iterations, micro, B, T])"),
        TEXT("out", &settings.probe.out, NULL, "file to write (with --train a folder)"),
        BOOL("logits", &settings.probe.logits, "false", "write the logits, too"),
        BOOL("grad", &settings.probe.grad, "true",
             "run the backward pass and write gradients; --no-grad leaves them out"),
        BOOL("streams", &settings.probe.streams, "false", "write the streams that enter each sublayer, too"),
        BOOL("train", &settings.probe.train, "false",
             "run optimizer steps on the batches; writes model.safetensors and losses.json"),
        BOOL("measure", &settings.measures, "false", "write statistics over samples of a token file instead"),
        TEXT("data_dir", &settings.measure.data_dir, NULL, "for --measure: folder of token files"),
        CHOICE("split", &settings.measure.split, "val", SPLIT_WORDS, "for --measure: which of its files"),
        INT("samples", &settings.measure.samples, "1024", 1, 1e9,
            "for --measure: sequences of block_size tokens, spread evenly over the file"),
        INT("batch_size", &settings.measure.batch_size, "8", 1, 1e6, "for --measure: sequences at a time"),
    };
    const struct option_spec last[] = {
        DEVICE_OPTIONS(&settings.device),
        TYPE_OPTION(&settings.dtype, "fp32"),
    };
    static struct option_table table;
    options_append(&table, first, COUNT(first));
    settings_optimizer_options(&settings.probe.optimizer, "the iterations of the batches", &table);
    options_append(&table, last, COUNT(last));
    settings.probe.specs = table.rows;
    settings.probe.spec_count = table.count;
    if (program_begin(&program, table.rows, table.count, argc, argv)) {
        program.status = run(&settings);
    }
    return program_end(&program);
}
