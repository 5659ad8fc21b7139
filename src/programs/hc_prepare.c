/* hc_prepare: text to token files. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "src/corpus/prepare.h"
#include "src/programs/program.h"
#include "src/settings/settings.h"
#include "src/text/tokenizer.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct program program = {
    .info.name = "hc_prepare",
    .info.summary =
        "Encodes text as the token files that hc_train reads: DIR/train.bin, DIR/val.bin (little-endian 16-bit "
        "numbers, as in nanoGPT; or llm.c's token shards, with --shards) and DIR/meta.json (vocabulary, counts, "
        "sources with checksums). Files may be "
        "compressed by gzip or zstd, and larger than memory. The results appear when they are complete, and not at "
        "all otherwise. After an interruption, the same command resumes the work.\n"
        "JSON lines (names ending in .jsonl, .json, .ndjson) have a document in each line: documents are shuffled, "
        "each ends with <|endoftext|> (with bytes, a blank line), and some are held out for val.bin. With "
        "--documents files each file is a document.\n"
        "Other files are running text, which stays in order. Chunks of about 64 KiB are held out; they are spread "
        "evenly over all text from a start that the seed chooses, so that held-out text resembles the training "
        "text. Chunks end at a blank line, or else at the end of a line. Small inputs have smaller chunks.",
    .info.usage = "--out DIR [OPTIONS] FILE...",
    .info.examples = "hc_prepare --out data/corpus/books books/*.txt\n"
                     "hc_prepare --out data/corpus/mine train.txt --val valid.txt\n"
                     "hc_prepare --out data/corpus/web --tokenizer gpt2 --val-fraction 0.0005 web-*.jsonl.zst\n"
                     "xz -dc log.xz | hc_prepare --out data/corpus/log --val-fraction 0.01 -",
    .takes_arguments = true,
};

struct settings {
    struct prepare_settings prepare;
    struct tokenizer_settings tokenizer;
    char *out, *val, *order;
    int documents; /* 0: auto, else 1 + enum document_kind */
    int invalid;   /* enum invalid_word */
};

/* Adds the file of --val to the sources, and finds out what a document is. False with an error if settings
 * contradict one another. */
static bool complete(struct settings *settings, const char **sources) {
    struct prepare_settings *prepare = &settings->prepare;
    memcpy(sources, program.arguments, program.argument_count * sizeof *sources);
    prepare->sources = sources;
    prepare->source_count = program.argument_count;
    if (settings->val && *settings->val) {
        sources[prepare->source_count++] = settings->val;
        prepare->val_source = true;
        prepare->val_fraction = 0;
    }
    prepare->kind = (enum document_kind)(settings->documents - 1);
    if (settings->documents == 0 &&
        document_kind_by_names(sources, prepare->source_count, DOCUMENT_CHUNKS, &prepare->kind)) {
        return false;
    }
    prepare->lengths = prepare->lengths || prepare->prompt_field;
    if (prepare->lengths && prepare->kind != DOCUMENT_JSONL) {
        error_set("%s is for JSON lines: see --documents",
                  prepare->prompt_field ? "--prompt-field" : "--document-lengths");
        return false;
    }
    prepare->order = settings->order && *settings->order ? settings->order : NULL;
    if (prepare->order && (prepare->kind == DOCUMENT_CHUNKS || prepare->val_source)) {
        error_set(prepare->kind == DOCUMENT_CHUNKS
                      ? "--order lists documents, but running text has none: see --documents"
                      : "--order and --val both say what is held out: give one of them");
        return false;
    }
    return true;
}

static int prepare_and_report(const struct prepare_settings *prepare) {
    struct prepare_report report;
    const enum program_status result = prepare_run(prepare, &report);
    if (result != PROGRAM_DONE) {
        if (result == PROGRAM_INTERRUPTED) {
            message_print(stderr, "%s: interrupted, %s\n", program.info.name,
                          report.kept ? "the work so far is kept" : "nothing written");
        } else {
            program_print_error(&program);
        }
        if (report.kept) {
            message_print(stderr, "The %s; to give up, remove %s/.hc_prepare\n",
                          report.resumes ? "same command resumes it" : "unfinished work is kept", prepare->folder);
        }
        error_clear(); /* it was printed */
        return (int)result;
    }
    const double tokens = (double)report.train_tokens + (double)report.val_tokens;
    message_print(stdout, "%s: %" PRIu64 " training tokens, %" PRIu64 " held out (%.3g %% of all", prepare->folder,
                  report.train_tokens, report.val_tokens, 100.0 * (double)report.val_tokens / tokens);
    if (prepare->val_fraction > 0) {
        message_print(stdout, "; asked for: %g %%%s", 100.0 * prepare->val_fraction,
                      prepare->kind == DOCUMENT_CHUNKS ? "" : " of the documents");
    }
    message_print(stdout,
                  "), from %" PRIu64 " bytes of files\n         unigram entropy %.4f nats: the loss of a model "
                  "that knows only how often each token occurs\n",
                  report.source_bytes, report.unigram_entropy);
    return files_flush(stdout, "the summary") ? PROGRAM_FAILED : PROGRAM_DONE;
}

static int run(struct settings *settings) {
    struct prepare_settings *prepare = &settings->prepare;
    prepare->folder = settings->out;
    if (!settings->out || !*settings->out || program.argument_count == 0) {
        error_set(program.argument_count > 0 ? "--out is missing: which folder shall hold the results?"
                                             : "no input files (use - for standard input)");
        return PROGRAM_WRONG;
    }
    const char **sources = memory_allocate(program.argument_count + 1, sizeof *sources);
    int status = PROGRAM_WRONG;
    if (complete(settings, sources)) {
        interrupt_install();
        prepare->stop_descriptor = interrupt_descriptor();
        prepare->threads = prepare->threads > 0 ? prepare->threads : (int64_t)host_cores();
        prepare->replace_invalid = settings->invalid == INVALID_REPLACE;
        status = tokenizer_choose(&settings->tokenizer, &prepare->tokenizer) ? PROGRAM_FAILED
                                                                             : prepare_and_report(prepare);
    }
    free(sources);
    return status;
}

int main(int argc, char **argv) {
    struct settings settings = {
        .prepare = {.save_interval = PREPARE_SAVE_INTERVAL, .bucket_bytes = PREPARE_BUCKET_BYTES}};
    struct prepare_settings *prepare = &settings.prepare;
    struct option_spec specs[] = {
        TEXT("out", &settings.out, NULL, "folder of the results, made if missing"),
        FLOAT("val_fraction", &prepare->val_fraction, "0.1", 0, 0.5,
              "share to hold out: of running text by its length, else of the number of documents; 0 writes no "
              "val.bin. The actual share is printed, and is held_out_fraction in meta.json"),
        TEXT("val", &settings.val, NULL,
             "file to hold out instead: its text becomes val.bin, that of all others train.bin"),
        INT("seed", &prepare->seed, "1337", 0, 9.3e18, "chooses what is held out, and the order of documents"),
        TOKENIZER_OPTIONS(&settings.tokenizer, "byte", ""),
        CHOICE("documents", &settings.documents, "auto", "auto|chunks|files|jsonl",
               "what a document is: a chunk of running text, a file, or a line of JSON; auto: by the files' names"),
        TEXT("field", &prepare->field, "text", "field of JSON lines that has the text"),
        TEXT("prompt_field", &prepare->prompt_field, NULL,
             "field of JSON lines that has a prompt: its tokens come before those of the text, and the loss leaves "
             "them out, so that a model learns to write the text alone"),
        BOOL("document_lengths", &prepare->lengths, "false",
             "also write the lengths of documents, of JSON lines, so that hc_train --train-batches documents can "
             "fill "
             "sequences with whole ones; --prompt-field implies it"),
        CHOICE("invalid", &settings.invalid, "error", INVALID_WORDS,
               "text that is not UTF-8: refuse it, or replace wrong bytes by U+FFFD (running text as bytes may be "
               "anything)"),
        BOOL("shuffle", &prepare->shuffle, "true",
             "shuffle documents by the seed; --no-shuffle keeps the order of the input"),
        TEXT("order", &settings.order, NULL,
             "file with the documents' numbers in the order to write them (little-endian, 64 bits); the first ones "
             "are held out: see docs/data.md"),
        INT("shards", &prepare->shard_tokens, "0", 0, INT32_MAX,
            "write llm.c's token shards, files of at most so many tokens (its own have 100000000), instead of "
            "train.bin and val.bin: corpus_train_000000.bin, ..., corpus_val_000000.bin"),
        INT("threads", &prepare->threads, "0", 0, 1024, "threads that encode; 0: one per core"),
        BOOL("resume", &prepare->resume, "true",
             "resume the work of an interrupted run with the same settings; --no-resume starts again"),
    };
    if (program_begin(&program, specs, COUNT(specs), argc, argv)) {
        program.status = run(&settings);
    }
    return program_end(&program);
}
