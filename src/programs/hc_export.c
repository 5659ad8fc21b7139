/* hc_export: models for transformers and PyTorch. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "src/checkpoint/export.h"
#include "src/programs/program.h"
#include "src/settings/settings.h"
#include <stdio.h>

static struct program program = {
    .info.name = "hc_export",
    .info.summary =
        "Writes a checkpoint as a folder that other programs read: Hugging Face's transformers (as GPT-2, Llama, "
        "Qwen2 or Qwen3, for models with plain residual connections), or PyTorch alone, with a model.py that runs "
        "every variant. No device is needed. hc_train --init-from reads both kinds of folders. python -m "
        "hctrain.convert has the layouts of mHC-lite, s2HC and DeepSeek-V4.",
    .info.usage = "--checkpoint DIR --out DIR [OPTIONS]",
    .info.examples = "hc_export --checkpoint out/rc/ckpt-best --out gpt2-mine\n"
                     "hc_export --checkpoint out/shc/ckpt-best --out shc-mine --format torch\n"
                     "python shc-mine/model.py --state-dict shc.pt",
};

static int run(const struct export_settings *settings) {
    interrupt_install();
    if (!settings->checkpoint || !settings->out || !*settings->out) {
        error_set("--checkpoint and --out are both needed; see hc_export --help");
        return PROGRAM_WRONG;
    }
    if (export_run(settings)) {
        return program_failed(&program);
    }
    return files_flush(stdout, "the summary") ? PROGRAM_FAILED : PROGRAM_DONE;
}

int main(int argc, char **argv) {
    struct export_settings settings = {0};
    struct option_spec specs[] = {
        TEXT("checkpoint", &settings.checkpoint, NULL,
             "folder of a checkpoint, or of a model that transformers saved"),
        ADAPTER_OPTIONS(&settings.adapter, &settings.base),
        BOOL("merge", &settings.merge, "false", "add an adapter to the weights, W + s B A, and write that model"),
        TEXT("out", &settings.out, NULL, "folder to write; replaces an earlier export, but nothing else"),
        CHOICE("format", &settings.format, "hf", "hf|torch",
               "hf: for transformers, rc models only; torch: with model.py, all variants"),
        INT("vocab_size", &settings.vocab_size, "0", 0, 1 << 24,
            "rows of the token embedding to keep; 0 keeps all, but for transformers only GPT-2's 50257 tokens, "
            "without padding"),
    };
    if (program_begin(&program, specs, COUNT(specs), argc, argv)) {
        program.status = run(&settings);
    }
    return program_end(&program);
}
