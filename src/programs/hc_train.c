/* hc_train: trains a GPT with a residual variant. */
#include "runtime/system/error.h"
#include "src/training/resumed_settings.h"
#include "src/training/same_job.h"
#include "src/training/train.h"
#include "src/training/train_options.h"
#include <stdlib.h>

static const struct program_info program = {
    .name = "hc_train",
    .summary =
        "Trains a GPT with plain residual connections or hyper-connections (--residual; --list-residuals says "
        "what there is) on token files, on any OpenCL device. Checkpoints, metrics.jsonl and TensorBoard events "
        "go to --out-dir; Ctrl-C saves a checkpoint and stops. Under mpirun the ranks share every batch.",
    .usage = "--data-dir DIR --out-dir DIR [--config FILE]... [OPTIONS]",
    .examples = "hc_prepare --out data/mine my-text.txt\n"
                "hc_train --config configs/tiny.conf --data-dir data/mine --out-dir out/shc --device pocl\n"
                "hc_train --config configs/tiny.conf --data-dir data/mine --out-dir out/mhc --residual mhc\n"
                "hc_train --config configs/tiny.conf --data-dir data/mine --out-dir out/shc --init-from resume\n"
                "mpirun -np 8 hc_train --config configs/M.conf --data-dir data/mine --out-dir out/M --device gpu "
                "--gradient-accumulation-steps 8\n"
                "hc_train --config configs/M.conf --config configs/fineweb_edu.conf --plan-only",
};

/* One rank speaks for all, unless it is one rank's error only. */
static int fail(const struct ranks *ranks, int status) {
    ranks_end_others(ranks, program.name);
    return ranks->index == 0 ? settings_fail(program.name, status) : status;
}

static int run(struct train_settings *settings, struct ranks *ranks) {
    switch (train_run(settings, ranks)) {
    case TRAIN_DONE:
        return 0;
    case TRAIN_INTERRUPTED:
        if (ranks->index == 0) {
            fprintf(stderr, "interrupted; go on with --init-from resume\n");
        }
        return 130;
    case TRAIN_WRONG:
        return fail(ranks, 2);
    default:
        return fail(ranks, 1);
    }
}

static int parse_and_run(struct option_spec *specs, size_t count, struct train_settings *settings, int argc,
                         char **argv) {
    struct ranks ranks;
    if (train_start_ranks(program.name, &ranks)) {
        return 1;
    }
    int status = 0;
    const enum options_result result = resumed_settings_parse(specs, count, settings, &program, argc, argv);
    if (ranks_agree(&ranks, result == OPTIONS_WRONG || result == OPTIONS_FAILED)) {
        status = fail(&ranks, result == OPTIONS_FAILED ? 1 : 2);
    } else if (result == OPTIONS_OK && settings->list_residuals) {
        status = residual_list(stdout) ? fail(&ranks, (error_set("cannot write the list"), 1)) : 0;
    } else if (result == OPTIONS_OK) {
        train_options_apply(settings, specs, count);
        status = same_job_settings(&ranks, settings) ? fail(&ranks, 1) : run(settings, &ranks);
    }
    ranks_stop(&ranks);
    return status;
}

int main(int argc, char **argv) {
    static struct train_settings settings;
    static struct option_spec specs[TRAIN_OPTIONS_MOST];
    const size_t count = train_options(&settings, specs, TRAIN_OPTIONS_MOST);
    const int status = parse_and_run(specs, count, &settings, argc, argv);
    options_free(specs, count);
    free(settings.resumed_from);
    return status;
}
