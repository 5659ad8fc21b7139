/* hc_prepare: text to token files. */
#include "runtime/error.h"
#include "runtime/files.h"
#include "runtime/options.h"
#include "src/prepare.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_WRONG_USAGE = 2, EXIT_INTERRUPTED = 130 };

static const struct program_info program = {
    .name = "hc_prepare",
    .summary =
        "Turns text into the token files that hc_train reads: DIR/train.bin, DIR/val.bin (little-endian 16-bit "
        "numbers, a token for each byte) and DIR/meta.json (vocabulary, counts, sources with checksums). Reads "
        "in pieces, so inputs may be larger than memory. The results appear when they are complete, and not at "
        "all otherwise.\n"
        "Held-out text (val.bin) is taken in chunks of about 64 KiB that are spread evenly over all inputs from "
        "a start that the seed chooses, so that it resembles the training text. Chunks end at a blank line, or "
        "else at the end of a line. Small inputs have smaller chunks.",
    .usage = "--out DIR [OPTIONS] FILE...",
    .examples = "  hc_prepare --out data/corpus/books books/*.txt\n"
                "  zcat log.gz | hc_prepare --out data/corpus/log --val-fraction 0.01 -\n",
};

struct settings {
    char *out;
    double val_fraction;
    int64_t seed;
    char *strip_markup;
};

static int stop_pipe[2] = {-1, -1};

static void request_stop(int signal_number) {
    (void)signal_number;
    const int kept = errno;
    /* A full pipe says the same. */
    if (write(stop_pipe[1], "", 1) < 0) {
        errno = kept;
    }
}

/* A descriptor that becomes readable when the user or the system asks to stop; -1 with an error text. A handler and
 * a pipe, since blocking the signals for signalfd would not do: libraries have threads from before main. */
static int open_stop_descriptor(void) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    if (pipe2(stop_pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
        return error_set_errno("cannot make a pipe");
    }
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct sigaction action = {0};
        sigaction(signals[i], NULL, &action);
        if (action.sa_handler != SIG_IGN) { /* nohup stays in force */
            action = (struct sigaction){.sa_handler = request_stop, .sa_flags = SA_RESTART};
            sigaction(signals[i], &action, NULL);
        }
    }
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is an error like others */
    return stop_pipe[0];
}

static int run(const struct settings *settings, const char *const *sources, size_t source_count) {
    const struct prepare_settings prepare = {
        .folder = settings->out,
        .sources = sources,
        .source_count = source_count,
        .val_fraction = settings->val_fraction,
        .seed = (uint64_t)settings->seed,
        .markup = strcmp(settings->strip_markup, "gcide") == 0 ? PREPARE_MARKUP_GCIDE : PREPARE_MARKUP_NONE,
        .stop_descriptor = open_stop_descriptor(),
        .progress = isatty(STDERR_FILENO) == 1,
    };
    if (prepare.stop_descriptor < 0) {
        fprintf(stderr, "%s: %s\n", program.name, error_text());
        return EXIT_FAILED;
    }
    struct prepare_report report;
    switch (prepare_run(&prepare, &report)) {
    case PREPARE_DONE:
        break;
    case PREPARE_STOPPED:
        fprintf(stderr, "%s: interrupted, nothing written\n", program.name);
        return EXIT_INTERRUPTED;
    case PREPARE_FAILED:
        fprintf(stderr, "%s: %s\n", program.name, error_text());
        return EXIT_FAILED;
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
         .help = "chooses which chunks are held out"},
        {.type = OPTION_CHOICE,
         .name = "strip_markup",
         .target = &settings.strip_markup,
         .default_value = "none",
         .choices = "none|gcide",
         .help = "markup to take out first: of the dictionary GCIDE in dict's format"},
    };
    const size_t count = sizeof specs / sizeof specs[0];
    int first_free = argc;
    int status = EXIT_WRONG_USAGE;
    switch (options_parse(specs, count, &program, argc, argv, &first_free)) {
    case OPTIONS_DONE:
        status = EXIT_DONE;
        break;
    case OPTIONS_FAILED:
        status = EXIT_FAILED;
        fprintf(stderr, "%s: %s\n", program.name, error_text());
        break;
    case OPTIONS_WRONG:
        fprintf(stderr, "%s: %s\n", program.name, error_text());
        break;
    case OPTIONS_OK:
        if (settings.out == NULL || *settings.out == '\0') {
            fprintf(stderr, "%s: --out is missing: which folder shall hold the results?\n", program.name);
        } else if (first_free == argc) {
            fprintf(stderr, "%s: no input files (use - for standard input)\n", program.name);
        } else {
            status = run(&settings, (const char *const *)argv + first_free, (size_t)(argc - first_free));
        }
        break;
    }
    options_free(specs, count);
    if (status == EXIT_DONE && files_flush(stdout, "the summary") != 0) {
        fprintf(stderr, "%s: %s\n", program.name, error_text());
        status = EXIT_FAILED;
    }
    return status;
}
