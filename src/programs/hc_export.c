/* hc_export: models for transformers and PyTorch. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "src/checkpoint/export.h"
#include "src/settings/settings.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct program_info program = {
    .name = "hc_export",
    .summary =
        "Writes a checkpoint as a folder for others: for Hugging Face's transformers (GPT2LMHeadModel, models with "
        "plain residual connections), or for PyTorch alone, with a model.py that runs every variant. No device is "
        "needed. hc_train --init-from reads both kinds of folders.",
    .usage = "--checkpoint DIR --out DIR [OPTIONS]",
    .examples = "hc_export --checkpoint out/rc/ckpt-best --out gpt2-mine\n"
                "hc_export --checkpoint out/shc/ckpt-best --out shc-mine --format torch\n"
                "python shc-mine/model.py --state-dict shc.pt",
};

struct settings {
    char *checkpoint, *out, *format;
    int64_t vocab_size;
};

static int print_report(const struct settings *settings, const struct export_report *report) {
    const struct model_config *model = &report->model;
    printf("%s: %s with %" PRId64 " layers, %" PRIu64 " parameters, vocabulary %" PRId64, settings->out,
           model->residual->name, model->n_layer, report->parameters, report->vocab_size);
    if (report->vocab_size < model->vocab_size) {
        printf(" (the last %" PRId64 " rows are left out)", model->vocab_size - report->vocab_size);
    }
    putchar('\n');
    return files_flush(stdout, "the summary");
}

static int run(const struct settings *settings) {
    const struct export_settings export = {
        .checkpoint = settings->checkpoint,
        .out = settings->out,
        .format = strcmp(settings->format, "hf") == 0 ? EXPORT_HUGGING_FACE : EXPORT_TORCH,
        .vocab_size = settings->vocab_size,
    };
    struct export_report report;
    if (!settings->checkpoint || !settings->out || !*settings->out) {
        error_set("--checkpoint and --out are both needed; see hc_export --help");
        return settings_fail(program.name, 2);
    }
    if (export_run(&export, &report)) {
        return settings_fail(program.name, interrupt_requested() ? 130 : 1);
    }
    return print_report(settings, &report) ? settings_fail(program.name, 1) : 0;
}

int main(int argc, char **argv) {
    struct settings settings = {0};
    struct option_spec specs[] = {
        {.type = OPTION_TEXT,
         .name = "checkpoint",
         .target = &settings.checkpoint,
         .help = "checkpoint folder, or a GPT-2 as transformers saves it"},
        {.type = OPTION_TEXT,
         .name = "out",
         .target = &settings.out,
         .help = "folder to write; an earlier export there is replaced, nothing else is"},
        {.type = OPTION_CHOICE,
         .name = "format",
         .target = &settings.format,
         .default_value = "hf",
         .choices = "hf|torch",
         .help = "hf: for transformers, rc models only; torch: with model.py, all variants"},
        {.type = OPTION_INT,
         .name = "vocab_size",
         .target = &settings.vocab_size,
         .default_value = "0",
         .minimum = 0,
         .maximum = 1 << 24,
         .help = "rows of the token embedding to keep; 0 keeps all, but with hf and GPT-2's tokens the 50257 that "
                 "are no padding"},
    };
    interrupt_install();
    int status = settings_parse(specs, COUNT(specs), &program, argc, argv, NULL);
    if (status == 0) {
        status = run(&settings);
    }
    options_free(specs, COUNT(specs));
    return status < 0 ? 0 : status;
}
