/* hc_sample: text from a checkpoint. */
#include "runtime/files/input.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/progress.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/config_file.h"
#include "src/programs/program.h"
#include "src/sampling/sample_print.h"
#include "src/settings/background_compile.h"
#include "src/settings/settings.h"
#include "src/settings/type_choice.h"
#include "src/text/text_buffer.h"
#include "src/text/tokenizer.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static struct program program = {
    .info.name = "hc_sample",
    .info.summary = "Continues a prompt with a checkpoint's model and prints the text as it comes.",
    .info.usage = "--checkpoint DIR [OPTIONS]",
    .info.examples =
        "hc_sample --checkpoint out/shc/ckpt-best --prompt 'Light, n. '\n"
        "hc_sample --checkpoint out/shc/ckpt-500 --temperature 0.7 --top-k 40 --max-new-tokens 500 --seed 7\n"
        "hc_sample --checkpoint out/gpt2/ckpt-best --prompt-file story.txt --top-p 0.9 --num-samples 4 --stop 'The "
        "End'",
    .computes = true,
};

enum { LARGEST_PROMPT = 1 << 26 };

struct session {
    /* set by options */
    struct device_settings device;
    struct model_files files;
    struct sample_settings sample;
    struct tokenizer_settings tokenizer_settings;
    char *checkpoint, *adapter, *base, *prompt, *prompt_file;
    struct option_texts stops;
    int dtype;          /* enum element_type, or TYPE_AUTO */
    int master;         /* enum element_type: see gpt_options */
    int frozen_weights; /* enum frozen_weights */
    int64_t seed, batch_size;
    bool compile_only;
    const struct option_spec *specs; /* the table that filled this */
    size_t spec_count;

    /* made of them */
    struct model_config config;
    struct tokenizer *tokenizer;
    struct text_buffer text; /* of the prompt */
    int32_t *tokens;         /* [count] of it */
    size_t count;
    struct compute *compute;
    struct gpt gpt;
    struct background_compile background;
};

/* ---- the prompt */

/* The token that the tokenizer puts before each text comes first, unless the prompt begins with it. An empty prompt
 * becomes the token that stands before a new text. */
static int open_prompt(struct session *session) {
    struct token_list list = {0};
    if (session->prompt) {
        text_append(&session->text, session->prompt, strlen(session->prompt));
    }
    if (session->prompt_file) {
        struct input *input;
        bool at_end;
        if (input_open(session->prompt_file, interrupt_descriptor(), &input)) {
            return -1;
        }
        const int failed = text_read(&session->text, input, LARGEST_PROMPT + 1, &at_end);
        input_close(input);
        if (failed) {
            return -1;
        }
        if (!at_end) {
            return error_set("%s: a prompt has %d bytes at most", input_name(session->prompt_file), LARGEST_PROMPT);
        }
    }
    const int status = tokenizer_encode(session->tokenizer, session->text.bytes, session->text.size, &list);
    const uint32_t beginning = tokenizer_beginning(session->tokenizer);
    const bool begins = beginning != UINT32_MAX && list.count > 0 && list.tokens[0] != beginning;
    session->tokens = memory_allocate(list.count + 1, sizeof *session->tokens);
    if (begins || list.count == 0) {
        session->tokens[session->count++] = (int32_t)tokenizer_prefix(session->tokenizer);
    }
    for (size_t i = 0; i < list.count; i++) {
        session->tokens[session->count++] = list.tokens[i];
    }
    token_list_free(&list);
    return status ? error_prefix("the prompt") : 0;
}

/* ---- the model */

/* A sequence is no longer than this text needs: the cache of keys and values is the larger part of a small model's
 * memory. */
static int open_model(struct session *session) {
    const int64_t samples = session->sample.samples, block_size = session->config.block_size,
                  needed = (int64_t)session->count + session->sample.count;
    struct device_settings device = session->device;
    struct type_choice choice;
    session->background = (struct background_compile){.specs = session->specs,
                                                      .spec_count = session->spec_count,
                                                      .model = &session->config};
    snprintf(session->background.purpose, sizeof session->background.purpose, "generation, type %d, master %d",
             session->dtype, session->master);
    device.background = session->compile_only ? NULL : &session->background;
    device.unverified = session->compile_only;
    if (type_choice_open(&device, session->dtype, (size_t)session->config.n_embd, &program.ranks, &session->compute,
                         &choice)) {
        return -1;
    }
    type_choice_print(&choice, choice.type == ELEMENT_FP32 ? NULL : stderr); /* fp32 is what anybody expects */
    const struct gpt_options options = {.batch = samples < session->batch_size ? samples : session->batch_size,
                                        .sequence = needed < block_size ? needed : block_size,
                                        .mode = GPT_GENERATION,
                                        .type = choice.type,
                                        .optimizer = {.master = session->master,
                                                      .frozen_weights = session->frozen_weights}};
    if (gpt_plan(session->compute, &session->config, &options, &session->gpt) || gpt_create(&session->gpt)) {
        return -1;
    }
    return session->compile_only ? 0 : model_files_load(&session->files, 0, &session->gpt);
}

/* For --compile-only: every kernel of a prompt and of a token after it, in a small model whose weights are zero. */
static int compile_kernels(struct session *session) {
    const double start = progress_clock();
    compile_only_reduce(&session->config);
    const int64_t capacity = session->config.block_size, count = capacity > 1 ? capacity - 1 : 1;
    session->count = (size_t)count;
    session->tokens = memory_zeroed(session->count, sizeof *session->tokens);
    float *logits = memory_allocate((size_t)session->config.vocab_size, sizeof *logits);
    const int status = open_model(session) ||
                       generation_prefill(&session->gpt, 0, session->tokens, session->count, logits) ||
                       (count < session->gpt.options.sequence &&
                        generation_step(&session->gpt, 1, count, session->tokens, logits));
    free(logits);
    if (status == 0) {
        compile_only_print(session->compute, start);
    }
    return status ? -1 : 0;
}

/* ---- the text */

static int print_samples(struct session *session) {
    const struct token_ids *ends = &session->config.ends;
    const uint32_t end = tokenizer_end_of_text(session->tokenizer);
    struct sample_settings sample = session->sample;
    struct sample_printer printer;
    if (open_prompt(session) || open_model(session)) {
        return -1;
    }
    sample.vocabulary = tokenizer_count(session->tokenizer);
    memcpy(sample.ends, ends->ids, ends->count * sizeof *ends->ids);
    sample.end_count = ends->count;
    if (end != UINT32_MAX) {
        sample.ends[sample.end_count++] = (int64_t)end;
    }
    sample.seed = (uint64_t)session->seed;
    sample_printer_create(&printer, stdout, session->tokenizer, session->text.bytes, session->text.size,
                          &session->stops, session->gpt.options.batch);
    const int status = sample_run(&session->gpt, &sample, session->tokens, session->count, &printer.sink);
    sample_printer_release(&printer);
    return status;
}

static int run(struct session *session) {
    interrupt_install();
    signal(SIGPIPE, SIG_DFL); /* text that nobody reads is not worth writing */
    if (!session->checkpoint || (session->prompt && session->prompt_file)) {
        error_set(session->checkpoint ? "--prompt and --prompt-file are two prompts: give one of them"
                                      : "--checkpoint is needed; see hc_sample --help");
        return PROGRAM_WRONG;
    }
    int status = model_files_open(session->checkpoint, session->adapter, session->base, &session->files);
    session->config = session->files.config;
    status = status || config_file_read_tokens(session->files.base, &session->config);
    if (status == 0 && tokenizer_open_for(&session->config, session->checkpoint, &session->tokenizer_settings,
                                          &session->tokenizer)) {
        status = error_prefix("%s", session->checkpoint);
    }
    if (status == 0) {
        status = session->compile_only ? compile_kernels(session) : print_samples(session);
    }
    background_compile_end(&session->background, session->compute, status == 0 && !interrupt_requested());
    gpt_release(&session->gpt);
    compute_close(session->compute);
    model_files_close(&session->files);
    tokenizer_close(session->tokenizer);
    text_free(&session->text);
    free(session->tokens);
    if (status) {
        return program_failed(&program);
    }
    return interrupt_requested() ? PROGRAM_INTERRUPTED : PROGRAM_DONE;
}

int main(int argc, char **argv) {
    static struct session session;
    struct option_spec specs[] = {
        HEADING("What to write"),
        TEXT("checkpoint", &session.checkpoint, NULL, "checkpoint folder"),
        ADAPTER_OPTIONS(&session.adapter, &session.base),
        PROCESS_TEXT("prompt", &session.prompt, NULL, "text to continue; without it a new text begins",
                     .may_be_empty = true),
        PROCESS_TEXT(
            "prompt_file", &session.prompt_file, NULL,
            "file with the text to continue, used as it is, final newline included; may be gzip or zstd; - is "
            "standard input"),
        INT("max_new_tokens", &session.sample.count, "300", 0, 1e9, "tokens to add, at most"),
        TEXTS("stop", &session.stops,
              "end a sample before this text, when it appears among the added text; may be given several times"),
        INT("num_samples", &session.sample.samples, "1", 1, 1e6,
            "number of continuations, printed one after the other with a line of dashes between them"),
        HEADING("Choosing tokens"),
        FLOAT("temperature", &session.sample.choice.temperature, "0.8", 0, 100,
              "divides the logits: below 1 safer text, above 1 more varied; 0 always takes the likeliest token"),
        INT("top_k", &session.sample.choice.top_k, "0", 0, 1e9,
            "choose among the k likeliest tokens only; 0: among all"),
        FLOAT("top_p", &session.sample.choice.top_p, "1", 0, 1,
              "choose among the fewest likeliest tokens that have this probability together, after top_k; 1: among "
              "all"),
        FLOAT("min_p", &session.sample.choice.min_p, "0", 0, 1,
              "leave out tokens that have less than this times the probability of the likeliest, after top_p; 0: "
              "none"),
        FLOAT("repetition_penalty", &session.sample.repetition_penalty, "1", 0.01, 100,
              "make tokens of the prompt and of the text so far less likely, before all else: their logits are "
              "divided by this if they are positive, else multiplied; 1: no penalty"),
        INT("seed", &session.seed, "1337", 0, 9e15, "the same seed gives the same texts, whatever the batch size"),
        HEADING("Model"),
        TOKENIZER_OPTIONS(&session.tokenizer_settings, "auto",
                          "the model's tokenizer; auto: as the checkpoint says; "),
        INT("batch_size", &session.batch_size, "8", 1, FEW_ROWS,
            "samples computed together: faster, for more memory"),
        DEVICE_OPTIONS(&session.device),
        TYPE_OPTION(&session.dtype, "auto"),
        MASTER_OPTION(&session.master),
        FROZEN_WEIGHTS_OPTION(&session.frozen_weights),
        COMPILE_ONLY_OPTION(&session.compile_only),
    };
    session.specs = specs;
    session.spec_count = COUNT(specs);
    if (program_begin(&program, specs, COUNT(specs), argc, argv)) {
        program.status = run(&session);
    }
    return program_end(&program);
}
