/* hc_train: trains a GPT with a residual variant. */
#include "runtime/system/message.h"
#include "src/programs/program.h"
#include "src/training/trainer.h"
#include <stdlib.h>

static struct program program = {
    .info.name = "hc_train",
    .info.summary =
        "Trains a GPT with plain residual connections or hyper-connections (--residual; --list-residuals describes "
        "them) on token files, on any OpenCL device. Checkpoints and metrics.jsonl go to "
        "--out-dir; Ctrl-C saves a checkpoint and stops. Under mpirun the ranks share every batch.",
    .info.usage = "--data-dir DIR --out-dir DIR [--config FILE]... [OPTIONS]",
    .info.examples =
        "hc_prepare --out data/mine my-text.txt\n"
        "hc_train --config configs/tiny.conf --data-dir data/mine --out-dir out/shc --device cpu\n"
        "hc_train --config configs/tiny.conf --data-dir data/mine --out-dir out/mhc --residual mhc\n"
        "hc_train --config configs/tiny.conf --data-dir data/mine --out-dir out/shc --init-from resume\n"
        "mpirun -np 8 hc_train --config configs/M.conf --data-dir data/mine --out-dir out/M --device gpu "
        "--gradient-accumulation-steps 8\n"
        "hc_train --config configs/M.conf --config configs/fineweb_edu.conf --plan-only",
    .computes = true,
    .is_job = true,
    .heeds_signals = true,
};

static int run(struct train_settings *settings, const struct option_table *table) {
    train_options_apply(settings, table);
    if (settings->list_residuals) {
        return train_options_list_residuals() ? PROGRAM_FAILED : PROGRAM_DONE;
    }
    if (same_job_settings(&program.ranks, settings)) {
        return PROGRAM_FAILED;
    }
    const enum program_status result =
        settings->compile_only ? compile_only_run(settings, &program.ranks) : train_run(settings, &program.ranks);
    if (result == PROGRAM_INTERRUPTED && program.ranks.index == 0) {
        message_print(stderr, "interrupted; go on with --init-from resume\n");
    }
    return (int)result;
}

int main(int argc, char **argv) {
    static struct train_settings settings;
    static struct option_table table;
    train_options(&settings, &table);
    if (program_begin(&program, table.rows, table.count, argc, argv) &&
        program_agree(&program, (int)resumed_settings_apply(&table, &settings, program.given))) {
        program.status = run(&settings, &table);
    }
    free(settings.resumed_from);
    return program_end(&program);
}
