/* hc_sample: text from a checkpoint. */
#include "runtime/error.h"
#include "runtime/files.h"
#include "runtime/interrupt.h"
#include "src/checkpoint.h"
#include "src/sample.h"
#include "src/settings.h"
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct program_info program = {
    .name = "hc_sample",
    .summary = "Continues a prompt with a checkpoint of a byte-level model and prints the text as it comes.",
    .usage = "--checkpoint DIR [OPTIONS]",
    .examples =
        "hc_sample --checkpoint out/shc/ckpt-best --prompt 'Light, n. '\n"
        "hc_sample --checkpoint out/shc/ckpt-500 --temperature 0.7 --top-k 40 --max-new-tokens 500 --seed 7",
};

struct settings {
    struct device_settings device;
    struct sample_settings sample;
    char *checkpoint, *prompt;
    int64_t seed;
};

static int print_byte(int32_t token, void *context) {
    (void)context;
    putchar(token);
    return fflush(stdout) != 0 || ferror(stdout);
}

/* A token is a byte. */
static int continue_prompt(struct gpt *gpt, const struct settings *settings) {
    const size_t length = strlen(settings->prompt);
    int32_t *tokens = malloc((length ? length : 1) * sizeof *tokens);
    if (!tokens) {
        return error_set("out of memory");
    }
    tokens[0] = '\n'; /* what an empty prompt continues */
    for (size_t i = 0; i < length; i++) {
        tokens[i] = (unsigned char)settings->prompt[i];
    }
    fputs(settings->prompt, stdout);
    const int status = sample_run(gpt, &settings->sample, tokens, length ? length : 1, print_byte, NULL);
    free(tokens);
    putchar('\n');
    return status == 0 ? files_flush(stdout, "the text") : -1;
}

static int open_model(struct compute *compute, const struct settings *settings, struct gpt *gpt) {
    struct model_config config;
    if (model_config_read(settings->checkpoint, &config)) {
        return -1;
    }
    if (config.vocab_size < 256 || (*config.tokenizer && strcmp(config.tokenizer, "byte") != 0)) {
        return error_set(
            "%s is not a byte-level model (tokenizer '%s', vocab_size %lld): its tokens cannot be printed",
            settings->checkpoint, config.tokenizer, (long long)config.vocab_size);
    }
    const struct gpt_options options = {.batch = 1, .sequence = config.block_size, .mode = GPT_INFERENCE};
    return gpt_plan(compute, &config, &options, gpt) || gpt_create(gpt) ||
                   checkpoint_load_weights(settings->checkpoint, gpt)
               ? -1
               : 0;
}

static int run(struct settings *settings) {
    struct compute *compute = NULL;
    struct gpt gpt = {0};
    if (!settings->checkpoint) {
        error_set("--checkpoint is needed; see hc_sample --help");
        return settings_fail(program.name, 2);
    }
    settings->sample.seed = (uint64_t)settings->seed;
    int status = settings_open_device(&settings->device, 0, &compute);
    status = status || open_model(compute, settings, &gpt) || continue_prompt(&gpt, settings);
    gpt_release(&gpt);
    compute_close(compute);
    return status ? settings_fail(program.name, 1) : interrupt_requested() ? 130 : 0;
}

int main(int argc, char **argv) {
    static struct settings settings;
    struct option_spec specs[] = {
        {.type = OPTION_HEADING, .help = "What to write"},
        {.type = OPTION_TEXT, .name = "checkpoint", .target = &settings.checkpoint, .help = "checkpoint folder"},
        {.type = OPTION_TEXT,
         .name = "prompt",
         .target = &settings.prompt,
         .default_value = "",
         .help = "text to continue; empty starts at a new line"},
        {.type = OPTION_INT,
         .name = "max_new_tokens",
         .target = &settings.sample.count,
         .default_value = "300",
         .minimum = 0,
         .maximum = 1e9,
         .help = "tokens to add"},
        {.type = OPTION_FLOAT,
         .name = "temperature",
         .target = &settings.sample.temperature,
         .default_value = "0.8",
         .minimum = 0,
         .maximum = 100,
         .help = "below 1 surer, above 1 wilder; 0 always takes the likeliest token"},
        {.type = OPTION_INT,
         .name = "top_k",
         .target = &settings.sample.top_k,
         .default_value = "0",
         .minimum = 0,
         .maximum = 1e9,
         .help = "choose among the k likeliest only; 0 among all"},
        {.type = OPTION_INT,
         .name = "seed",
         .target = &settings.seed,
         .default_value = "1337",
         .minimum = 0,
         .maximum = 9e15,
         .help = "the same seed gives the same text"},
        DEVICE_OPTIONS(&settings.device),
    };
    device_prepare_environment();
    interrupt_install();
    int status = settings_parse(specs, COUNT(specs), &program, argc, argv, NULL);
    if (status == 0) {
        status = run(&settings);
    }
    options_free(specs, COUNT(specs));
    return status < 0 ? 0 : status;
}
