#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "src/model/gpt.h"
#include "src/model/optimizer.h"
#include "src/model/parameters.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Most bytes of the outputs of activation functions that are kept on a CPU: about its caches. */
#define CPU_KEEPS ((uint64_t)32 << 20)

/* Most channels that a branch's output projection reads, or its input projection makes. */
static int64_t most_channels(const struct gpt *gpt, bool with_inputs) {
    size_t most = 0;
    for (int i = 0; i < BRANCHES; i++) {
        const struct sublayer_offsets *at = &gpt->parameters.sublayers[i];
        most = size_larger(most, with_inputs ? size_larger(at->out.in, at->in.out) : at->out.in);
    }
    return (int64_t)most;
}

/* ---- buffers */

struct buffer *gpt_plan_floats(struct gpt *gpt, const char *group, int64_t per_token) {
    return memory_plan_add(&gpt->plan, group, (uint64_t)per_token * gpt_tokens(gpt), ELEMENT_FP32);
}

struct buffer *gpt_plan_activations(struct gpt *gpt, const char *group, int64_t per_token) {
    return memory_plan_add(&gpt->plan, group, (uint64_t)per_token * gpt_tokens(gpt), gpt->options.type);
}

static const struct buffer *plan_integers(struct gpt *gpt, const char *group, uint64_t count) {
    return memory_plan_add(&gpt->plan, group, count, ELEMENT_INT32);
}

static bool is_training(const struct gpt *gpt) {
    return gpt->options.mode == GPT_TRAINING;
}

static void plan_narrow(struct gpt *gpt) {
    struct parameters *parameters = &gpt->parameters;
    const uint64_t blocks = (parameters->elements - parameters->narrow_from) / NARROW_BLOCK;
    const size_t words = narrow_block_bytes(parameters->frozen_weights) / sizeof(int32_t);
    size_t largest = 0;
    for (int i = 0; i < BRANCHES; i++) {
        const struct sublayer_offsets *at = &parameters->sublayers[i];
        largest = size_larger(largest, size_larger(at->in.in * at->in.out, at->out.in * at->out.out));
    }
    if (blocks > 0) {
        parameters->narrow.codes = plan_integers(gpt, "frozen weights", blocks * words);
        parameters->narrow.scales = memory_plan_add(&gpt->plan, "frozen weights", blocks, ELEMENT_FP32);
        parameters->expanded = memory_plan_add(&gpt->plan, "scratch", largest, gpt->options.type);
    }
}

static void plan_parameters(struct gpt *gpt) {
    struct parameters *parameters = &gpt->parameters;
    struct memory_plan *plan = &gpt->plan;
    const uint64_t elements = parameters->narrow_from;
    const bool frozen_lowp = parameters->frozen_weights != FROZEN_AS_OTHERS && gpt->options.type != ELEMENT_FP32;
    parameters->fp32_elements = gpt->options.optimizer.master != ELEMENT_FP32 ? parameters->lowp_only_from
                                : frozen_lowp                                 ? parameters->gradients_end
                                                                              : elements;
    struct buffer *weights = memory_plan_add(plan, "weights", parameters->fp32_elements, ELEMENT_FP32);
    weights->shareable = gpt->options.shareable && gpt->options.state_share; /* else nobody else wants them */
    parameters->weights = weights;
    parameters->weights_lowp = gpt->options.type == ELEMENT_FP32
                                   ? parameters->weights
                                   : memory_plan_add(plan, "low-precision weights", elements, gpt->options.type);
    plan_narrow(gpt);
    if (is_training(gpt)) {
        struct buffer *gradients = memory_plan_add(plan, "gradients", parameters->gradients_end, ELEMENT_FP32);
        gradients->shareable = gpt->options.shareable;
        parameters->gradients = gradients;
        const struct optimizer *optimizer = gpt->optimizer;
        const struct state_share *share = gpt->options.state_share;
        for (size_t i = 0; i < OPTIMIZER_MOST_STATES && optimizer->states[i]; i++) {
            const uint64_t kept = share
                                      ? share->elements[i]
                                      : optimizer_state_offset(optimizer, parameters, i, parameters->gradients_end);
            parameters->states[i] =
                memory_plan_add(plan, "optimizer states", kept, (enum element_type)gpt->options.optimizer.moments);
        }
    }
}

/* Activations of a branch. Layers share them, except in training without recompute. */
static void plan_branch(struct gpt *gpt, struct sublayer *sublayer) {
    const char *const group = "branch activations";
    const struct branch *branch = sublayer->branch;
    const bool shared = sublayer->index >= BRANCHES;
    if (gpt->options.mode == GPT_GENERATION && branch->plan_cache) {
        branch->plan_cache(gpt, sublayer);
    }
    if (branch->plan_each) {
        branch->plan_each(gpt, sublayer);
    }
    if (shared && (!is_training(gpt) || gpt->options.recompute)) {
        return;
    }
    sublayer->mix.normed = gpt_plan_activations(gpt, group, gpt->config.n_embd);
    sublayer->mix.statistics = gpt_plan_floats(gpt, group, 2);
    sublayer->in_proj_out = gpt_plan_activations(gpt, group, (int64_t)sublayer->at->in.out);
    if (!(shared && branch->recomputed)) {
        sublayer->out_proj_in = gpt_plan_activations(gpt, group, (int64_t)sublayer->at->out.in);
    }
    if (branch->plan_activations) {
        branch->plan_activations(gpt, sublayer);
    }
    /* no backward pass reads the output */
    const bool unread = !gpt->frame->reads_output || !is_training(gpt);
    sublayer->mix.output = unread && sublayer->index > 0 ? gpt->sublayers[0].mix.output
                                                         : gpt_plan_activations(gpt, group, gpt->config.n_embd);
}

/* Streams before x0_lambdas: training keeps them, for the lambdas' gradients. */
static void plan_arriving(struct gpt *gpt, struct sublayer *sublayer) {
    const bool begins = gpt->config.x0_lambdas && sublayer->index % BRANCHES == 0;
    if (sublayer->index == 0) {
        gpt->first_streams =
            begins ? gpt_plan_activations(gpt, "streams", gpt_stream_row(gpt)) : sublayer->mix.streams;
        sublayer->arriving = begins ? gpt->first_streams : NULL;
    } else if (begins) {
        sublayer->arriving =
            is_training(gpt) ? gpt_plan_activations(gpt, "streams", gpt_stream_row(gpt)) : sublayer->mix.streams;
    }
}

static void plan_sublayers(struct gpt *gpt) {
    const struct parameters *parameters = &gpt->parameters;
    const int64_t count = BRANCHES * gpt->config.n_layer;
    for (int64_t index = 0; index < count; index++) {
        struct sublayer *sublayer = &gpt->sublayers[index];
        if (index >= BRANCHES) { /* share all buffers with the layer before, except those planned below */
            *sublayer = sublayer[-BRANCHES];
        }
        sublayer->index = index;
        sublayer->branch = branches[index % BRANCHES];
        sublayer->at = &parameters->sublayers[index];
        sublayer->mix.norm = gpt_norm(parameters->weights, sublayer->at->norm);
        gpt->frame->plan_sublayer(gpt, sublayer);
        plan_arriving(gpt, sublayer);
        plan_branch(gpt, sublayer);
    }
    gpt->sublayers[count] = (struct sublayer){.index = count, .at = &parameters->sublayers[count]};
    gpt->sublayers[count].mix.norm = gpt_norm(parameters->weights, parameters->sublayers[count].norm);
    gpt->frame->plan_sublayer(gpt, &gpt->sublayers[count]);
}

/* What linear.c needs for adapters, one for all layers. */
static void plan_adapters(struct gpt *gpt) {
    struct parameters *parameters = &gpt->parameters;
    size_t rows = 0, inputs = 0;
    for (int i = 0; i < BRANCHES; i++) {
        const struct linear *layers[] = {&parameters->sublayers[i].in, &parameters->sublayers[i].out};
        for (size_t k = 0; k < COUNT(layers); k++) {
            rows = size_larger(rows, layers[k]->adapter_count * parameters->adapter_rank);
            inputs = size_larger(inputs, layers[k]->adapter_count ? layers[k]->in : 0);
        }
    }
    parameters->adapter_low = rows ? gpt_plan_activations(gpt, "scratch", (int64_t)rows) : NULL;
    if (rows && is_training(gpt)) {
        parameters->d_adapter_low = gpt_plan_activations(gpt, "scratch", (int64_t)rows);
        parameters->adapter_input =
            gpt->config.lora.dropout > 0.0 ? gpt_plan_activations(gpt, "scratch", (int64_t)inputs) : NULL;
    }
}

static void plan_scratch(struct gpt *gpt) {
    const char *const group = "scratch";
    const int64_t width = gpt->config.n_embd;
    struct gpt_scratch *scratch = &gpt->scratch;
    if (is_training(gpt)) {
        scratch->d_streams =
            scratch->d_streams ? scratch->d_streams : gpt_plan_activations(gpt, group, gpt_stream_row(gpt));
        scratch->d_output = gpt_plan_activations(gpt, group, width);
        scratch->d_normed = gpt_plan_activations(gpt, group, width);
        scratch->d_out_proj_in = gpt_plan_activations(gpt, group, most_channels(gpt, false));
        scratch->d_embedding = gpt_plan_floats(gpt, group, width);
        scratch->d_first =
            gpt->config.x0_lambdas ? gpt_plan_activations(gpt, group, gpt_stream_row(gpt)) : scratch->d_streams;
    }
    if (gpt->config.embed_norm) {
        scratch->embedding_scales = gpt_plan_floats(gpt, group, 1);
    }
    plan_adapters(gpt);
    if (gpt->frame->plan_scratch) {
        gpt->frame->plan_scratch(gpt);
    }
    for (int i = 0; i < BRANCHES; i++) {
        if (branches[i]->plan_scratch) {
            branches[i]->plan_scratch(gpt);
        }
    }
}

/* Tokens in a block of logits, at least 16: as many as fit into 64 MiB on a CPU, so that a block stays near the
 * caches. On a GPU, as many as fit with their gradients into 1/16 of its memory: each block's GEMMs must fill the
 * device, and each adds to the whole gradient of the token embedding. There at most 8192, since more gain nothing,
 * and a multiple of 64 where GEMMs need aligned blocks (gemm_copies). */
static size_t logit_rows(const struct gpt *gpt) {
    if (gpt->options.mode == GPT_GENERATION) {
        return (size_t)gpt->options.batch;
    }
    const struct device *device = &gpt->compute->device;
    const uint64_t least = (uint64_t)64 << 20;
    const uint64_t share = size_smaller(device->memory_bytes / 16, device->max_buffer_bytes);
    const size_t bytes = device->is_gpu ? size_larger(share, least) : least;
    const bool has_gradients = is_training(gpt) && gpt->options.type != ELEMENT_FP32; /* see plan_head */
    const size_t each = sizeof(float) + (has_gradients && device->is_gpu ? element_size(gpt->options.type) : 0);
    /* some GEMM libraries address 2^31 */
    const size_t most = size_smaller(bytes / each, INT32_MAX) / gpt->vocabulary;
    const size_t unit = device->is_gpu && most >= 64 ? 64 : 1;
    size_t fitting = size_larger(most / unit * unit, 16);
    if (device->is_gpu) {
        fitting = size_smaller(fitting, 8192);
    }
    const size_t tokens = gpt_tokens(gpt), blocks = groups_for(tokens, fitting);
    const size_t equal = groups_for(tokens, blocks); /* of one size: a small last block would be slow */
    return blocks == 1 ? equal : groups_for(equal, unit) * unit;
}

static void plan_head(struct gpt *gpt) {
    const char *const group = "head";
    struct memory_plan *plan = &gpt->plan;
    struct stream_mix *top = &gpt->sublayers[BRANCHES * gpt->config.n_layer].mix;
    top->normed = gpt->final = gpt_plan_activations(gpt, group, gpt->config.n_embd);
    top->statistics = gpt_plan_floats(gpt, group, 2 * gpt->config.n_streams);
    gpt->losses = gpt_plan_floats(gpt, group, 1);
    gpt->logit_rows = logit_rows(gpt);
    const uint64_t logits = gpt->logit_rows * gpt->vocabulary;
    gpt->logits = memory_plan_add(plan, group, logits, ELEMENT_FP32);
    gpt->loss = memory_plan_add(plan, group, 1, ELEMENT_FP32);
    gpt->gradient_norm = memory_plan_add(plan, group, 1, ELEMENT_FP32);
    gpt->tokens = plan_integers(gpt, group, gpt_tokens(gpt));
    gpt->targets = plan_integers(gpt, group, gpt_tokens(gpt));
    if (is_training(gpt)) {
        gpt->d_logits = gpt->options.type == ELEMENT_FP32 ? gpt->logits
                                                          : memory_plan_add(plan, group, logits, gpt->options.type);
        gpt->d_final = gpt_plan_activations(gpt, group, gpt->config.n_embd);
        gpt->groups.ids = plan_integers(gpt, group, gpt_tokens(gpt));
        gpt->groups.starts = plan_integers(gpt, group, gpt_tokens(gpt) + 1);
        gpt->groups.places = plan_integers(gpt, group, gpt_tokens(gpt));
    }
}

/* The fp32 copies of matrices where the GEMM backend takes only fp32: as large as the largest A, B and C of all
 * GEMMs. */
static void plan_copies(struct gpt *gpt) {
    const uint64_t width = (uint64_t)gpt->config.n_embd, channels = (uint64_t)most_channels(gpt, true);
    const uint64_t hidden = gpt_tokens(gpt) * channels;
    const uint64_t frame = gpt->frame->largest_matrix ? gpt->frame->largest_matrix(gpt) : 0;
    if (!gemm_copies(gpt->compute, gpt->options.type)) {
        return;
    }
    uint64_t a = size_larger(hidden, frame), c = a;
    uint64_t b = size_larger(width * size_larger(gpt->vocabulary, channels), frame);
    if (is_training(gpt)) {
        a = size_larger(a, gpt->logit_rows * gpt->vocabulary); /* d_logits */
        b = size_larger(b, hidden);
    }
    if (is_training(gpt) &&
        optimizer_matrix_type(&gpt->options.optimizer, gpt->compute, gpt->options.type) != ELEMENT_FP32) {
        a = size_larger(a, width * channels); /* matrices of the optimizer */
        c = size_larger(c, width * channels);
    }
    const uint64_t elements[] = {a, b, c};
    for (size_t i = 0; i < COUNT(elements); i++) {
        memory_plan_count_floats(&gpt->plan, "fp32 copies for GEMMs", elements[i]);
    }
}

/* Keeps the outputs of MLPs' activations for the backward pass if the whole plan then stays below 3/4 of the
 * device's memory; on a CPU only up to CPU_KEEPS bytes, since recomputing them costs less than half a per cent of
 * the time there. */
static void plan_kept_activations(struct gpt *gpt) {
    const uint64_t capacity = gpt->compute->device.memory_bytes / 4 * 3, layers = (uint64_t)gpt->config.n_layer;
    uint64_t per_token = 0;
    for (int i = 0; i < BRANCHES; i++) {
        per_token += branches[i]->recomputed ? gpt->parameters.sublayers[i].out.in : 0;
    }
    const uint64_t bytes = layers * per_token * gpt_tokens(gpt) * element_size(gpt->options.type);
    gpt->keeps_activation = (gpt->compute->device.is_gpu || bytes <= CPU_KEEPS) && is_training(gpt) &&
                            !gpt->options.recompute && gpt->plan.total_bytes + bytes <= capacity;
    for (int64_t i = BRANCHES; gpt->keeps_activation && i < BRANCHES * gpt->config.n_layer; i++) {
        if (gpt->sublayers[i].branch->recomputed) {
            gpt->sublayers[i].out_proj_in =
                gpt_plan_activations(gpt, "branch activations", (int64_t)gpt->sublayers[i].at->out.in);
        }
    }
}

/* Buffers for rows of token gradients, but for no more than half of the vocabulary. */
static void plan_row_gradients(struct gpt *gpt) {
    const char *const group = "gradients of token rows";
    const size_t most = is_training(gpt) ? gpt->options.row_gradients : 0,
                 half = (size_t)gpt->config.vocab_size / 2;
    struct row_gradients *rows = &gpt->row_gradients;
    rows->most = most < half ? most : half;
    if (rows->most) {
        struct buffer *sums =
            memory_plan_add(&gpt->plan, group, rows->most * (uint64_t)gpt->config.n_embd, ELEMENT_FP32);
        sums->shareable = gpt->options.shareable;
        rows->rows = sums;
        rows->ids = plan_integers(gpt, group, rows->most);
        rows->places = plan_integers(gpt, group, gpt_tokens(gpt));
        rows->numbers = plan_integers(gpt, group, rows->most + 1);
    }
}

/* Fills them once the plan is allocated. */
static int create_row_gradients(struct gpt *gpt) {
    struct row_gradients *rows = &gpt->row_gradients;
    const size_t count = rows->most + 1, bytes = (rows->most + gpt_tokens(gpt)) * sizeof(int32_t);
    if (rows->most == 0) {
        return 0;
    }
    if (upload_create(gpt->compute, &rows->upload, bytes)) {
        return -1;
    }
    int32_t *numbers = memory_allocate(count, sizeof *numbers);
    for (size_t i = 0; i < count; i++) {
        numbers[i] = (int32_t)i;
    }
    const int status = buffer_write(gpt->compute, rows->numbers, 0, numbers, count * sizeof *numbers);
    free(numbers);
    return status;
}

/* ---- all of it */

static int check_options(const struct gpt *gpt) {
    const struct model_config *config = &gpt->config;
    const struct gpt_options *options = &gpt->options;
    if (gpt->vocabulary > (size_t)config->vocab_size) {
        return error_set("the model's vocabulary of %" PRId64 " tokens has no %zu of them to score",
                         config->vocab_size, gpt->vocabulary);
    }
    if (options->batch < 1 || options->batch > 1 << 20 || options->sequence < 1 ||
        options->sequence > config->block_size || options->batch * options->sequence > INT32_MAX / 2) {
        return error_set("a batch of %s of %s is out of range (block_size %" PRId64 ")",
                         message_count(options->batch, "sequence").text,
                         message_count(options->sequence, "token").text, config->block_size);
    }
    if (options->optimizer.master == ELEMENT_BF16 && options->type != ELEMENT_BF16) {
        return error_set("master = bf16 needs dtype = bf16, not %s: give --dtype bf16, or --master fp32",
                         element_name(options->type));
    }
    if (options->optimizer.frozen_weights == FROZEN_BF16 && options->type != ELEMENT_BF16) {
        return error_set("frozen_weights = bf16 needs dtype = bf16, not %s: give --dtype bf16, or int8 or nf4",
                         element_name(options->type));
    }
    if (options->mode == GPT_TRAINING && frozen_weights_are_narrow(options->optimizer.frozen_weights) &&
        config->lora.rank == 0) {
        return error_set(
            "frozen_weights = int8 and nf4 are for adapters, whose checkpoints leave frozen weights out: "
            "give lora_rank, or frozen_weights = bf16");
    }
    if (options->optimizer.master == ELEMENT_BF16 && options->state_share) {
        return error_set("master = bf16 and shard_optimizer cannot be together: ranks send each other new weights "
                         "in fp32");
    }
    return 0;
}

static struct operation_shape operation_shape(const struct gpt *gpt) {
    const struct model_config *config = &gpt->config;
    return (struct operation_shape){
        .streams = config->n_streams,
        .channels = config->n_embd,
        .heads = config->n_head,
        .kv_heads = config->n_kv_head,
        .head_size = config->head_dim,
        .vocabulary = (int64_t)gpt->vocabulary,
        .sublayers = BRANCHES * config->n_layer,
        .hidden = config->mlp_width,
        .bias = config->bias,
        .embed_norm = config->embed_norm,
        .value_embeds = config->value_embeds,
        .head_bias = config->head_bias,
        .adapters = config->lora.rank > 0,
        .drops = config->dropout != 0.0 && is_training(gpt),
        .frozen_weights = gpt->options.optimizer.frozen_weights,
        .norm_sum = config->stream_reduce == STREAM_REDUCE_NORM_SUM,
        .scaled = config->stream_expand == STREAM_EXPAND_SCALED,
        .norm = config->norm,
        .norm_eps = config->norm_eps,
        .softcap = config->logit_softcap,
        .softcap_kind = config->softcap_kind,
        .position = config->position,
        .collapsed = config->stream_reduce == STREAM_REDUCE_HEAD || config->stream_reduce == STREAM_REDUCE_READ,
        .fixed_top = config->stream_reduce == STREAM_REDUCE_READ || !config->hc_dynamic,
        .read_delay = config->read_delay,
        .x0_lambdas = config->x0_lambdas,
        .gainless = !config->hc_norm_gain,
        .freeze_alpha_res = gpt->options.optimizer.freeze_alpha_res,
        .hc_eps = config->hc_eps,
        .hc_norm_eps = config->hc_norm_eps,
        .h_res_transposed = config->h_res_transposed,
        .mlp = config->mlp,
        .qk_norm = config->qk_norm,
        .attn_scale = config->attn_scale,
        .activation = config->activation,
        .type = gpt->options.type,
        .moments = (enum element_type)gpt->options.optimizer.moments,
        .master = (enum element_type)gpt->options.optimizer.master,
        .forward_only = !is_training(gpt),
        .residual = config->residual,
        .settings = model_config_connection(config, 0),
    };
}

int gpt_plan(struct compute *compute, const struct model_config *config, const struct gpt_options *options,
             struct gpt *gpt) {
    *gpt = (struct gpt){.compute = compute,
                        .config = *config,
                        .options = *options,
                        .vocabulary = (size_t)(options->vocabulary ? options->vocabulary : config->vocab_size),
                        .shape = {options->batch, options->sequence},
                        .optimizer = optimizer_at((size_t)options->optimizer.optimizer),
                        .loss_scale = loss_scale_begin(options->type)};
    struct operation_shape shape = operation_shape(gpt);
    if (check_options(gpt) ||
        (is_training(gpt) && gpt->optimizer->describe && gpt->optimizer->describe(gpt, &shape))) {
        return -1;
    }
    if (options->parameters) {
        gpt->parameters = *options->parameters;
    } else if (frozen_create(config, &options->optimizer, is_training(gpt), &gpt->parameters)) {
        return -1;
    }
    if (options->mode == GPT_GENERATION) { /* one sequence, or a token of each */
        const int64_t tokens = options->batch > options->sequence ? options->batch : options->sequence;
        gpt->shape = (struct token_shape){1, tokens};
    }
    gpt->frame = frame_of(config);
    operations_describe(compute, &shape, &gpt->operations);
    if (gpt_is_unmixed(gpt, BRANCHES * config->n_layer - 1)) {
        shape.settings = model_config_connection(config, config->hc_until);
        operations_describe(compute, &shape, &gpt->unmixed);
    }
    gpt->sublayers = memory_zeroed(BRANCHES * (size_t)config->n_layer + 1, sizeof *gpt->sublayers);
    gpt->token_counts = memory_zeroed((size_t)config->vocab_size, sizeof *gpt->token_counts);
    plan_parameters(gpt);
    if (gpt->frame->plan) {
        gpt->frame->plan(gpt);
    }
    plan_sublayers(gpt);
    plan_head(gpt);
    plan_row_gradients(gpt);
    plan_scratch(gpt);
    if (is_training(gpt) && gpt->optimizer->plan) {
        gpt->optimizer->plan(gpt);
    }
    memory_plan_count(&gpt->plan, "scratch", operations_scratch_bytes(&gpt->operations));
    if (gpt->unmixed.compute) {
        memory_plan_count(&gpt->plan, "scratch", operations_scratch_bytes(&gpt->unmixed));
    }
    plan_copies(gpt);
    memory_plan_count(&gpt->plan, "split-K sums of GEMMs", gemm_parts_bytes(compute, options->type));
    plan_kept_activations(gpt);
    return 0;
}

/* The kernels that differ where streams are not mixed, and what launches them. */
static int build_unmixed(struct gpt *gpt) {
    static const char *const files[] = {"hc_map.cl", "frame.cl", "projections.cl", "few_rows.cl", "reduce.cl"};
    int status = 0;
    for (size_t i = 0; gpt->unmixed.compute && i < COUNT(files) && status == 0; i++) {
        status = operations_build(&gpt->unmixed, files[i]);
    }
    return status;
}

int gpt_create(struct gpt *gpt) {
    gpt->upload_tokens = gpt_tokens(gpt) + 1; /* the groups' starts are one more */
    if (memory_plan_check(&gpt->plan, &gpt->compute->device) || memory_plan_allocate(&gpt->plan, gpt->compute) ||
        operations_build(&gpt->operations, NULL) || build_unmixed(gpt) ||
        (gpt->frame->create && gpt->frame->create(gpt)) ||
        head_rows_fill_table(&gpt->operations, (struct rope){gpt->config.rope_theta, gpt->config.rope_fraction},
                             gpt->options.sequence, gpt->scratch.angles) ||
        upload_create(gpt->compute, &gpt->upload, 5 * gpt->upload_tokens * sizeof(int32_t)) ||
        create_row_gradients(gpt) || attention_open(&gpt->operations)) {
        return -1;
    }
    return gpt->compute->verify ? operations_check_loops(&gpt->operations, gpt->shape, gpt->parameters.total) : 0;
}

void gpt_release(struct gpt *gpt) {
    if (gpt->compute && !compute_settle(gpt->compute)) {
        return;
    }
    upload_release(&gpt->upload);
    upload_release(&gpt->row_gradients.upload);
    operations_release(&gpt->operations);
    if (gpt->unmixed.compute) {
        operations_release(&gpt->unmixed);
    }
    memory_plan_release(&gpt->plan, gpt->compute);
    if (!gpt->options.parameters) {
        parameters_release(&gpt->parameters);
    }
    free(gpt->frame_state);
    free(gpt->scratch.of_optimizer);
    free(gpt->sublayers);
    free(gpt->token_counts);
    memset(gpt, 0, sizeof *gpt);
}

double gpt_flops_per_token(const struct gpt *gpt) {
    const struct parameters *parameters = &gpt->parameters;
    const double scores =
        (double)model_config_heads(&gpt->config).y_row * (double)gpt->shape.sequence; /* of a token and layer */
    double flops = 12.0 * (double)gpt->config.n_layer * scores;
    for (const struct parameter *next = parameters->table; next < parameters->table + parameters->count; next++) {
        const bool is_wte = next->offset == parameters->token_embedding;
        const bool is_wpe =
            gpt->config.position == POSITION_LEARNED && next->offset == parameters->position_embedding;
        const struct sublayer_offsets *at = next->sublayer >= 0 ? &parameters->sublayers[next->sublayer] : NULL;
        const bool is_value_embed = next->offset_copy && at && next->offset_copy == &at->value_embed;
        if (is_wpe || is_value_embed || (is_wte && !parameters->head_is_embedding)) {
            continue; /* rows of it are looked up, and no GEMM reads it */
        }
        flops += (next->without_gradient ? 4.0 : 6.0) * (double)next->elements;
    }
    return flops;
}
