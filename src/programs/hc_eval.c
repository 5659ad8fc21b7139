/* hc_eval: numbers for a checkpoint that can be compared with those of other models. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "src/evaluation/eval.h"
#include "src/training/train_options.h"
#include <stdio.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct program_info program = {
    .name = "hc_eval",
    .summary =
        "Scores a checkpoint. With --data: mean loss and perplexity on train.bin or val.bin. Windows of block_size "
        "tokens follow each other without overlap, and each token but the file's first is predicted once, from "
        "those before it in its window; with --eval-iters N the mean is that of N random batches instead, as "
        "hc_train estimates val_loss (give its --seed and --batch-size for the same number).\n"
        "With FILE...: perplexity of documents per word, byte and token, and bits per byte, as EleutherAI's "
        "lm-evaluation-harness computes them from rolling log-likelihoods: each document by itself behind "
        "<|endoftext|>, windows of block_size tokens, a last window that reaches back for context, and a softmax "
        "over the tokenizer's tokens only. Text files are one document each; names in .jsonl, .ndjson or .json are "
        "JSON lines, a document in --field of each; all may be gzip or zstd, and - is standard input.\n"
        "Under mpirun the ranks share the work, to the same figures.",
    .usage = "--checkpoint DIR (--data DIR | FILE...) [OPTIONS]",
    .examples =
        "hc_eval --checkpoint out/shc/ckpt-best --data data/mine --split val\n"
        "hc_eval --checkpoint out/shc/ckpt-500 --data data/mine --eval-iters 200 --batch-size 12\n"
        "hc_eval --checkpoint out/M/ckpt-best wikitext.txt\n"
        "hc_eval --checkpoint out/M/ckpt-best --json c4.json --per-document c4-documents.jsonl c4/val.jsonl.gz\n"
        "mpirun -np 8 hc_eval --checkpoint out/M/ckpt-best --device gpu --batch-size 32 c4/val.jsonl.gz",
};

/* One rank speaks for all, unless it is one rank's error only. */
static int fail(const struct ranks *ranks, int status) {
    ranks_end_others(ranks, program.name);
    return ranks->index == 0 ? settings_fail(program.name, status) : status;
}

static int run(const struct eval_settings *settings, struct ranks *ranks) {
    switch (eval_run(settings, ranks)) {
    case EVAL_DONE:
        return ranks->index == 0 && files_flush(stdout, "the figures") ? settings_fail(program.name, 1) : 0;
    case EVAL_INTERRUPTED:
        if (ranks->index == 0) {
            fprintf(stderr, "%s: interrupted, nothing written\n", program.name);
        }
        return 130;
    case EVAL_WRONG:
        return fail(ranks, 2);
    default:
        return fail(ranks, 1);
    }
}

static int parse_and_run(struct option_spec *specs, size_t count, struct eval_settings *settings, int argc,
                         char **argv) {
    struct ranks ranks;
    if (train_start_ranks(program.name, &ranks)) {
        return 1;
    }
    int status = 0, first = argc;
    const enum options_result result = settings_read(specs, count, &program, argc, argv, &first);
    if (ranks_agree(&ranks, result == OPTIONS_WRONG || result == OPTIONS_FAILED)) {
        status = fail(&ranks, result == OPTIONS_FAILED ? 1 : 2);
    } else if (result == OPTIONS_OK) {
        settings->files = (const char *const *)argv + first;
        settings->file_count = (size_t)(argc - first);
        status = run(settings, &ranks);
    }
    ranks_stop(&ranks);
    return status;
}

#define TEXT(option, variable, initial, text)                                                                      \
    { .type = OPTION_TEXT, .name = option, .target = &settings.variable, .default_value = initial, .help = text }
#define CHOICE(option, variable, initial, words, text)                                                             \
    {                                                                                                              \
        .type = OPTION_CHOICE, .name = option, .target = &settings.variable, .default_value = initial,             \
        .choices = words, .help = text                                                                             \
    }
#define INT(option, variable, initial, low, high, text)                                                            \
    {                                                                                                              \
        .type = OPTION_INT, .name = option, .target = &settings.variable, .default_value = initial,                \
        .minimum = low, .maximum = high, .help = text                                                              \
    }
#define HEADING(text)                                                                                              \
    { .type = OPTION_HEADING, .help = text }

int main(int argc, char **argv) {
    static struct eval_settings settings;
    struct option_spec specs[] = {
        HEADING("What to score"),
        TEXT("checkpoint", checkpoint, NULL, "checkpoint folder"),
        INT("batch_size", batch_size, "8", 1, 1 << 20,
            "windows of block_size at a time on each rank, and more of shorter ones; of random batches the "
            "sequences in each"),
        TEXT("json", json, NULL,
             "write the figures to this file as JSON too; -: to standard output instead of text"),
        HEADING("Token files"),
        TEXT("data", data, NULL, "folder with train.bin, val.bin (hc_prepare)"),
        CHOICE("split", split, "val", "train|val", "which of them"),
        INT("eval_iters", eval_iters, "0", 0, 1e9, "so many random batches of it, as hc_train does; 0: all of it"),
        INT("seed", seed, "1337", 0, 9e15, "chooses the random batches, as hc_train's seed does"),
        HEADING("Documents"),
        CHOICE("documents", documents, "auto", "auto|files|jsonl",
               "a document is a file, or a line of JSON lines; auto goes by the names"),
        TEXT("field", field, "text", "of JSON lines: the field that has the text"),
        TEXT("count_field", count_field, NULL,
             "of JSON lines: the field whose words and bytes count, where that is not the text that is scored"),
        CHOICE("invalid", invalid, "error", "error|replace",
               "what is not UTF-8 is an error, or becomes U+FFFD as in Python"),
        INT("limit", limit, "0", 0, 9e15, "score the first N documents only; 0: all"),
        TEXT("per_document", per_document, NULL, "write a line of JSON for each document to this file"),
        TOKENIZER_OPTIONS(&settings.tokenizer),
        DEVICE_OPTIONS(&settings.device),
        TYPE_OPTION(&settings.dtype),
    };
    const int status = parse_and_run(specs, COUNT(specs), &settings, argc, argv);
    options_free(specs, COUNT(specs));
    return status;
}
