/* hc_prepare: text to token files. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include "runtime/system/interrupt.h"
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
        "Turns text into the token files that hc_train reads: DIR/train.bin, DIR/val.bin (little-endian 16-bit "
        "numbers, as nanoGPT has them) and DIR/meta.json (vocabulary, counts, sources with checksums). Files may "
        "be compressed by gzip or zstd and larger than memory. The results appear when they are complete, and not "
        "at all otherwise; when interrupted, the same command goes on from where it was.\n"
        "JSON lines (names ending in .jsonl, .json, .ndjson) have a document in each line: documents are shuffled, "
        "<|endoftext|> (with bytes, a blank line) goes after each, and some are held out for val.bin. With "
        "--documents files each file is a document.\n"
        "Other files are running text, which stays in order; held-out text is taken in chunks of about 64 KiB that "
        "are spread evenly over all of it from a start that the seed chooses, so that it resembles the training "
        "text. Chunks end at a blank line, or else at the end of a line. Small inputs have smaller chunks.",
    .info.usage = "--out DIR [OPTIONS] FILE...",
    .info.examples = "hc_prepare --out data/corpus/books books/*.txt\n"
                     "hc_prepare --out data/corpus/mine train.txt --val valid.txt\n"
                     "hc_prepare --out data/corpus/web --tokenizer gpt2 --val-fraction 0.0005 web-*.jsonl.zst\n"
                     "xz -dc log.xz | hc_prepare --out data/corpus/log --val-fraction 0.01 -",
    .takes_arguments = true,
};

/* The words of choices, and what they are called here. */
enum { BYTES_CHOICE, GPT2_CHOICE };
#define DOCUMENTS_WORDS "auto|chunks|files|jsonl"
enum documents_word { DOCUMENTS_BY_NAME, DOCUMENTS_FIRST_KIND /* of enum document_kind */ };

struct settings {
    char *out, *val;
    double val_fraction;
    int64_t seed;
    int tokenizer, documents, invalid; /* enum tokenizer_word, ... */
    char *vocabulary, *field, *order;
    bool shuffle, resume;
    int64_t threads;
};

static int report_unfinished(const struct settings *settings, const struct prepare_report *report, bool stopped) {
    if (stopped) {
        message_print(stderr, "%s: interrupted, %s\n", program.info.name,
                      report->kept ? "the work so far is kept" : "nothing written");
    } else {
        program_print_error(&program);
    }
    if (report->kept) {
        message_print(stderr, "The same command goes on from there; to give up, remove %s/.hc_prepare\n",
                      settings->out);
    }
    error_clear(); /* it has been said */
    return stopped ? PROGRAM_INTERRUPTED : PROGRAM_FAILED;
}

/* All files, that of --val behind the others; the list is the caller's to free. */
static const char **list_sources(const struct settings *settings, struct prepare_settings *prepare) {
    const char **sources = calloc(program.argument_count + 1, sizeof *sources);
    if (!sources) {
        error_set("out of memory");
        return NULL;
    }
    memcpy(sources, program.arguments, program.argument_count * sizeof *sources);
    prepare->sources = sources;
    prepare->source_count = program.argument_count;
    if (settings->val && *settings->val) {
        sources[prepare->source_count++] = settings->val;
        prepare->val_source = true;
        prepare->val_fraction = 0;
    }
    return sources;
}

/* False with an error where the settings contradict one another. */
static bool settings_agree(const struct settings *settings, struct prepare_settings *prepare) {
    prepare->kind = (enum document_kind)(settings->documents - DOCUMENTS_FIRST_KIND);
    if (settings->documents == DOCUMENTS_BY_NAME &&
        document_kind_by_names(prepare->sources, prepare->source_count, DOCUMENT_CHUNKS, &prepare->kind)) {
        return false;
    }
    if (prepare->order && prepare->kind == DOCUMENT_CHUNKS) {
        error_set("--order is of documents, but running text has none: see --documents");
        return false;
    }
    if (prepare->order && prepare->val_source) {
        error_set("--order and --val both say what is held out: give one of them");
        return false;
    }
    return true;
}

static int prepare_and_tell(const struct settings *settings, struct prepare_settings *prepare) {
    struct prepare_report report;
    if (settings->tokenizer == GPT2_CHOICE &&
        !(prepare->vocabulary = tokenizer_find_vocabulary(settings->vocabulary))) {
        return PROGRAM_FAILED;
    }
    interrupt_install();
    prepare->stop_descriptor = interrupt_descriptor();
    const enum prepare_result result = prepare_run(prepare, &report);
    if (result != PREPARE_DONE) {
        return report_unfinished(settings, &report, result == PREPARE_STOPPED);
    }
    const double tokens = (double)report.train_tokens + (double)report.val_tokens;
    message_print(stdout, "%s: %" PRIu64 " training tokens, %" PRIu64 " held out (%.3g %% of all", settings->out,
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

static int run(const struct settings *settings) {
    struct prepare_settings prepare = {
        .folder = settings->out,
        .field = settings->field,
        .val_fraction = settings->val_fraction,
        .seed = (uint64_t)settings->seed,
        .replace_invalid = settings->invalid == INVALID_REPLACE,
        .shuffle = settings->shuffle,
        .order = settings->order && *settings->order ? settings->order : NULL,
        .threads = settings->threads > 0 ? (unsigned)settings->threads : host_cores(),
        .resume = settings->resume,
        .save_interval = PREPARE_SAVE_INTERVAL,
        .bucket_bytes = PREPARE_BUCKET_BYTES,
    };
    if (!settings->out || !*settings->out) {
        error_set("--out is missing: which folder shall hold the results?");
        return PROGRAM_WRONG;
    }
    if (program.argument_count == 0) {
        error_set("no input files (use - for standard input)");
        return PROGRAM_WRONG;
    }
    const char **sources = list_sources(settings, &prepare);
    if (!sources) {
        return PROGRAM_FAILED;
    }
    const int status = settings_agree(settings, &prepare) ? prepare_and_tell(settings, &prepare) : PROGRAM_WRONG;
    free(sources);
    return status;
}

int main(int argc, char **argv) {
    struct settings settings = {0};
    struct option_spec specs[] = {
        TEXT("out", &settings.out, NULL, "folder of the results, made if missing"),
        FLOAT(
            "val_fraction", &settings.val_fraction, "0.1", 0, 0.5,
            "share to hold out, of running text by its length, else of the documents by their number; 0 writes no "
            "val.bin. What came out is printed, and is held_out_fraction in meta.json"),
        TEXT("val", &settings.val, NULL,
             "file to hold out instead: what comes from it is val.bin, all else train.bin"),
        INT("seed", &settings.seed, "1337", 0, 9.3e18, "chooses what is held out, and the order of documents"),
        CHOICE("tokenizer", &settings.tokenizer, "byte", "byte|gpt2",
               "byte: a token is a byte; gpt2: GPT-2's byte-pair encoding, the same tokens as tiktoken's"),
        VOCABULARY_OPTION(&settings.vocabulary),
        CHOICE("documents", &settings.documents, "auto", DOCUMENTS_WORDS,
               "what a document is: a chunk of running text, a file, or a line of JSON; auto: by the files' names"),
        TEXT("field", &settings.field, "text", "of JSON lines: where the text is"),
        CHOICE("invalid", &settings.invalid, "error", INVALID_WORDS,
               "what is not UTF-8: an error, or U+FFFD in its place (bytes of running text are taken as they are)"),
        BOOL("shuffle", &settings.shuffle, "true",
             "documents in an order that the seed chooses; --no-shuffle keeps the order of the input"),
        TEXT("order", &settings.order, NULL,
             "documents in the order of this file's numbers (little-endian, 64 bits), the first ones held out: see "
             "docs/data.md"),
        INT("threads", &settings.threads, "0", 0, 1024, "that tokenise; 0: one for each core"),
        BOOL("resume", &settings.resume, "true",
             "go on with what an interrupted run of the same settings left; --no-resume begins anew"),
    };
    if (program_begin(&program, specs, COUNT(specs), argc, argv)) {
        program.status = run(&settings);
    }
    return program_end(&program);
}
