/* hc_prepare: text to token files. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include "runtime/system/interrupt.h"
#include "src/corpus/prepare.h"
#include "src/settings/settings.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_WRONG_USAGE = 2, EXIT_INTERRUPTED = 130 };

static const struct program_info program = {
    .name = "hc_prepare",
    .summary =
        "Turns text into the token files that hc_train reads: DIR/train.bin, DIR/val.bin (little-endian 16-bit "
        "numbers, as nanoGPT has them) and DIR/meta.json (vocabulary, counts, sources with checksums). Files may "
        "be "
        "compressed by gzip or zstd and larger than memory. The results appear when they are complete, and not at "
        "all otherwise; when interrupted, the same command goes on from where it was.\n"
        "JSON lines (names ending in .jsonl, .json, .ndjson) have a document in each line: documents are shuffled, "
        "<|endoftext|> (with bytes, a blank line) goes after each, and some are held out for val.bin. With "
        "--documents files each file is a document.\n"
        "Other files are running text, which stays in order; held-out text is taken in chunks of about 64 KiB that "
        "are spread evenly over all of it from a start that the seed chooses, so that it resembles the training "
        "text. Chunks end at a blank line, or else at the end of a line. Small inputs have smaller chunks.",
    .usage = "--out DIR [OPTIONS] FILE...",
    .examples = "hc_prepare --out data/corpus/books books/*.txt\n"
                "hc_prepare --out data/corpus/web --tokenizer gpt2 --val-fraction 0.0005 web-*.jsonl.zst\n"
                "xz -dc log.xz | hc_prepare --out data/corpus/log --val-fraction 0.01 -",
};

struct settings {
    char *out;
    double val_fraction;
    int64_t seed;
    char *strip_markup;
    char *tokenizer, *ranks, *documents, *field, *invalid, *order;
    bool shuffle, resume;
    int64_t threads;
};

static int report_unfinished(const struct settings *settings, const struct prepare_report *report, bool stopped) {
    if (stopped) {
        fprintf(stderr, "%s: interrupted, %s\n", program.name,
                report->kept ? "the work so far is kept" : "nothing written");
    } else {
        fprintf(stderr, "%s: %s\n", program.name, error_text());
    }
    if (report->kept) {
        fprintf(stderr, "The same command goes on from there; to give up, remove %s/.hc_prepare\n", settings->out);
    }
    return stopped ? EXIT_INTERRUPTED : EXIT_FAILED;
}

static int run(const struct settings *settings, const char *const *sources, size_t source_count) {
    struct prepare_settings prepare = {
        .folder = settings->out,
        .sources = sources,
        .source_count = source_count,
        .field = settings->field,
        .val_fraction = settings->val_fraction,
        .seed = (uint64_t)settings->seed,
        .replace_invalid = strcmp(settings->invalid, "replace") == 0,
        .shuffle = settings->shuffle,
        .order = settings->order && *settings->order ? settings->order : NULL,
        .threads = settings->threads > 0 ? (unsigned)settings->threads : host_cores(),
        .resume = settings->resume,
        .save_interval = PREPARE_SAVE_INTERVAL,
        .pile_bytes = PREPARE_PILE_BYTES,
    };
    if (strcmp(settings->strip_markup, "none") != 0) {
        error_set(
            "--strip-markup gcide is a script of its own now: python3 data/gcide/strip_markup.py %s >gcide.txt, "
            "then %s --out %s gcide.txt (with your other options)",
            sources[0], program.name, settings->out);
        return settings_fail(program.name, EXIT_WRONG_USAGE);
    }
    if (document_kind_choose(settings->documents, sources, source_count, DOCUMENT_CHUNKS, &prepare.kind)) {
        return settings_fail(program.name, EXIT_WRONG_USAGE);
    }
    if (prepare.order && prepare.kind == DOCUMENT_CHUNKS) {
        error_set("--order is of documents, but running text has none: see --documents");
        return settings_fail(program.name, EXIT_WRONG_USAGE);
    }
    if (strcmp(settings->tokenizer, "gpt2") == 0 &&
        !(prepare.vocabulary = tokenizer_find_vocabulary(settings->ranks))) {
        return settings_fail(program.name, EXIT_FAILED);
    }
    interrupt_install();
    prepare.stop_descriptor = interrupt_descriptor();
    struct prepare_report report;
    const enum prepare_result result = prepare_run(&prepare, &report);
    if (result != PREPARE_DONE) {
        return report_unfinished(settings, &report, result == PREPARE_STOPPED);
    }
    printf("%s: %" PRIu64 " training tokens, %" PRIu64 " held out, from %" PRIu64
           " bytes; unigram entropy %.4f nats\n",
           settings->out, report.train_tokens, report.val_tokens, report.source_bytes, report.unigram_entropy);
    return EXIT_DONE;
}

int main(int argc, char **argv) {
    struct settings settings = {0};
    struct option_spec specs[] = {
        {.type = OPTION_TEXT,
         .name = "out",
         .target = &settings.out,
         .help = "folder of the results, made if missing"},
        {.type = OPTION_FLOAT,
         .name = "val_fraction",
         .target = &settings.val_fraction,
         .default_value = "0.1",
         .minimum = 0,
         .maximum = 0.5,
         .help = "share of the text to hold out; 0 writes no val.bin"},
        {.type = OPTION_INT,
         .name = "seed",
         .target = &settings.seed,
         .default_value = "1337",
         .minimum = 0,
         .maximum = 9.3e18,
         .help = "chooses what is held out, and the order of documents"},
        {.type = OPTION_CHOICE,
         .name = "tokenizer",
         .target = &settings.tokenizer,
         .default_value = "byte",
         .choices = "byte|gpt2",
         .help = "byte: a token is a byte; gpt2: GPT-2's byte-pair encoding, the same tokens as tiktoken's"},
        {.type = OPTION_TEXT, .name = "ranks", .target = &settings.ranks, .help = TOKENIZER_RANKS_HELP},
        {.type = OPTION_CHOICE,
         .name = "documents",
         .target = &settings.documents,
         .default_value = "auto",
         .choices = "auto|chunks|files|jsonl",
         .help =
             "what a document is: a chunk of running text, a file, or a line of JSON; auto: by the files' names"},
        {.type = OPTION_TEXT,
         .name = "field",
         .target = &settings.field,
         .default_value = "text",
         .help = "of JSON lines: where the text is"},
        {.type = OPTION_CHOICE,
         .name = "invalid",
         .target = &settings.invalid,
         .default_value = "error",
         .choices = "error|replace",
         .help =
             "what is not UTF-8: an error, or U+FFFD in its place (bytes of running text are taken as they are)"},
        {.type = OPTION_BOOL,
         .name = "shuffle",
         .target = &settings.shuffle,
         .default_value = "true",
         .help = "documents in an order that the seed chooses; --no-shuffle keeps the order of the input"},
        {.type = OPTION_TEXT,
         .name = "order",
         .target = &settings.order,
         .help = "documents in the order of this file's numbers (little-endian, 64 bits), the first ones held out: "
                 "see docs/data.md"},
        {.type = OPTION_INT,
         .name = "threads",
         .target = &settings.threads,
         .default_value = "0",
         .minimum = 0,
         .maximum = 1024,
         .help = "that tokenise; 0: one for each core"},
        {.type = OPTION_BOOL,
         .name = "resume",
         .target = &settings.resume,
         .default_value = "true",
         .help = "go on with what an interrupted run of the same settings left; --no-resume begins anew"},
        {.type = OPTION_CHOICE,
         .name = "strip_markup",
         .target = &settings.strip_markup,
         .default_value = "none",
         .choices = "none|gcide",
         .help = "none; data/gcide/strip_markup.py takes out the markup of the dictionary GCIDE"},
    };
    const size_t count = sizeof specs / sizeof specs[0];
    int first_free = argc;
    int status = settings_parse(specs, count, &program, argc, argv, &first_free);
    if (status == 0 && (settings.out == NULL || *settings.out == '\0')) {
        error_set("--out is missing: which folder shall hold the results?");
        status = settings_fail(program.name, EXIT_WRONG_USAGE);
    } else if (status == 0 && first_free == argc) {
        error_set("no input files (use - for standard input)");
        status = settings_fail(program.name, EXIT_WRONG_USAGE);
    } else if (status == 0) {
        status = run(&settings, (const char *const *)argv + first_free, (size_t)(argc - first_free));
    }
    options_free(specs, count);
    if (status == EXIT_DONE && files_flush(stdout, "the summary") != 0) {
        status = settings_fail(program.name, EXIT_FAILED);
    }
    return status < 0 ? EXIT_DONE : status;
}
