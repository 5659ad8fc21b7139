/* hc_probe: one forward and backward pass of a checkpoint on a given batch, everything dumped; or statistics of its
 * residual connection on samples of a token file. */
#include "runtime/files/token_file.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "src/evaluation/probe.h"
#include "src/programs/program.h"
#include "src/settings/settings.h"
#include "src/settings/type_choice.h"
#include <signal.h>
#include <string.h>

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

struct settings {
    struct probe_settings probe;
    struct device_settings device;
    int dtype;                                                   /* enum element_type, or TYPE_AUTO */
    const struct option_spec *pass, *measuring, *training, *end; /* where the options of each mode begin */
};

/* An error for an option that was given, of those of one mode. Two change a pass, too. */
static int refuse(const struct option_spec *first, const struct option_spec *end, const char *mode) {
    for (; first < end; first++) {
        if (first->given && strcmp(first->name, "master") != 0 && strcmp(first->name, "frozen_weights") != 0) {
            return error_set("--%s is for %s: leave it out", first->name, mode);
        }
    }
    return 0;
}

static int check_arguments(const struct settings *settings) {
    const struct probe_settings *probe = &settings->probe;
    const char *input = probe->measure ? probe->data_dir : probe->batch;
    if (!probe->checkpoint || !input || !probe->out) {
        return error_set("--checkpoint, %s and --out are all needed; see hc_probe --help",
                         probe->measure ? "--data-dir" : "--batch");
    }
    if (probe->measure && (probe->train || probe->batch || settings->dtype != ELEMENT_FP32 ||
                           probe->optimizer.master != ELEMENT_FP32)) {
        return error_set("--measure computes in fp32 on samples of --data-dir: leave --batch, --train, --dtype and "
                         "--master out");
    }
    if (((probe->train || probe->measure) && refuse(settings->pass, settings->measuring, "a single pass")) ||
        (!probe->measure && refuse(settings->measuring, settings->training, "--measure")) ||
        (!probe->train && refuse(settings->training, settings->end, "--train"))) {
        return -1;
    }
    /* whether the learning rate falls, whatever the number of iterations */
    struct optimizer_settings optimizer = probe->optimizer;
    schedule_complete(probe->specs, probe->spec_count, 0, &optimizer, NULL);
    return probe->train ? schedule_check(&optimizer) : 0;
}

static int run(struct settings *settings) {
    struct compute *compute = NULL;
    struct type_choice choice;
    int status = 0;
    if (check_arguments(settings)) {
        return PROGRAM_WRONG;
    }
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is an error like others */
    if (type_choice_open(&settings->device, settings->dtype, 0, &program.ranks, &compute, &choice)) {
        status = -1;
    } else if (settings->probe.measure) {
        interrupt_install();
        status = probe_measure(compute, &settings->probe);
    } else {
        settings->probe.dtype = choice.type;
        type_choice_print(&choice, stderr);
        status = probe_run(compute, &settings->probe);
    }
    compute_close(compute);
    return status ? program_failed(&program) : PROGRAM_DONE;
}

int main(int argc, char **argv) {
    struct settings settings = {0};
    struct probe_settings *probe = &settings.probe;
    const struct option_spec first[] = {
        HEADING("What to run"),
        TEXT("checkpoint", &probe->checkpoint, NULL, "checkpoint folder"),
        ADAPTER_OPTIONS(&probe->adapter, &probe->base),
        TEXT("batch", &probe->batch, NULL,
             "safetensors file with x and y, I32 [B, T] (with --train [iterations, micro, B, T])"),
        TEXT("out", &probe->out, NULL, "file to write (with --train a folder)"),
        BOOL("train", &probe->train, "false",
             "run optimizer steps on the batches; writes model.safetensors and losses.json"),
        BOOL("measure", &probe->measure, "false", "write statistics over samples of a token file instead"),
    };
    const struct option_spec pass[] = {
        HEADING("One pass"),
        BOOL("logits", &probe->logits, "false", "write the logits, too"),
        BOOL("grad", &probe->grad, "true", "run the backward pass and write gradients; --no-grad leaves them out"),
        BOOL("streams", &probe->streams, "false", "write the streams that enter each sublayer, too"),
    };
    const struct option_spec measuring[] = {
        HEADING("--measure"),
        TEXT("data_dir", &probe->data_dir, NULL, "folder of token files"),
        CHOICE("split", &probe->split, "val", SPLIT_WORDS, "which of its files"),
        INT("samples", &probe->samples, "1024", 1, 1e9,
            "sequences of block_size tokens, spread evenly over the file"),
        INT("batch_size", &probe->batch_size, "8", 1, 1e6, "sequences at a time"),
    };
    const struct option_spec last[] = {
        DEVICE_OPTIONS(&settings.device),
        TYPE_OPTION(&settings.dtype, "fp32"),
    };
    static struct option_table table;
    options_append(&table, first, COUNT(first));
    settings.pass = table.rows + table.count;
    options_append(&table, pass, COUNT(pass));
    settings.measuring = table.rows + table.count;
    options_append(&table, measuring, COUNT(measuring));
    settings.training = table.rows + table.count;
    settings_optimizer_options(&probe->optimizer, "the iterations of the batches", &table);
    settings.end = table.rows + table.count;
    options_append(&table, last, COUNT(last));
    probe->specs = table.rows;
    probe->spec_count = table.count;
    if (program_begin(&program, table.rows, table.count, argc, argv)) {
        program.status = run(&settings);
    }
    return program_end(&program);
}
