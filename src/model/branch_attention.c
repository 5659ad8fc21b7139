/* Attention: qkv = normed W_attn^T, y = softmax(q k^T / sqrt(D)) v for each of H query heads, output = y W_proj^T.
 * Queries, keys and values may have inputs of their own. Query heads may share key and value heads (struct
 * head_shape). Before, q and k may be normed and turned: RoPE. */
#include "src/model/gpt.h"
#include "src/model/linear.h"

static void add_parameters(struct parameter_builder *builder, struct sublayer_offsets *at) {
    const struct model_config *config = builder->config;
    const struct head_shape heads = model_config_heads(config);
    const uint64_t q = (uint64_t)heads.y_row, k = (uint64_t)heads.kv_row;
    const uint64_t matrices[PARAMETER_MOST_MATRICES] = {q, k, k};
    const size_t width = (size_t)config->n_embd;
    parameters_add_linear(builder, "attn.c_attn", width, (size_t)heads.qkv_row, matrices,
                          model_config_has_qkv_bias(config), LINEAR_INNER, &at->in);
    if (model_config_modules(config).gpt2) {
        parameters_add_adapters(builder, &at->in, 1, (enum lora_module[]){LORA_Q}, (uint64_t[]){q + 2 * k});
    } else {
        parameters_add_adapters(builder, &at->in, 3, (enum lora_module[]){LORA_Q, LORA_K, LORA_V}, matrices);
    }
    if (config->qk_norm == QK_NORM_GAINED) {
        parameters_add_gain(builder, "attn.q_norm", (size_t)heads.size, &at->q_gain);
        parameters_add_gain(builder, "attn.k_norm", (size_t)heads.size, &at->k_gain);
    }
    parameters_add_linear(builder, "attn.c_proj", q, width, NULL, config->bias, LINEAR_OUTPUT, &at->out);
    parameters_add_adapters(builder, &at->out, 1, (enum lora_module[]){LORA_O}, (uint64_t[]){width});
}

static struct head_shape heads_of(const struct gpt *gpt) {
    return head_shape(&gpt->operations.shape);
}

/* ---- memory */

/* A layer's buffers begin as those of the layer before, but gates of values are of every other layer. */
static void plan_value_gates(struct gpt *gpt, struct sublayer *sublayer) {
    const struct buffer *before = sublayer->index >= 2 * BRANCHES ? sublayer[-2 * BRANCHES].value_gates : NULL;
    if (!model_config_has_value_embed(&gpt->config, sublayer->index / BRANCHES)) {
        sublayer->value_gates = NULL;
    } else if (before && gpt_shares_streams(gpt)) {
        sublayer->value_gates = before;
    } else {
        sublayer->value_gates = gpt_plan_floats(gpt, "branch activations", heads_of(gpt).kv_heads);
    }
}

static void plan_activations(struct gpt *gpt, struct sublayer *sublayer) {
    sublayer->lse = gpt_plan_floats(gpt, "branch activations", gpt->config.n_head);
}

static void plan_cache(struct gpt *gpt, struct sublayer *sublayer) {
    const uint64_t elements = (uint64_t)(gpt->options.batch * gpt->options.sequence * heads_of(gpt).kv_row);
    sublayer->keys = memory_plan_add(&gpt->plan, "keys and values", elements, gpt->options.type);
    sublayer->values = memory_plan_add(&gpt->plan, "keys and values", elements, gpt->options.type);
}

static void plan_scratch(struct gpt *gpt) {
    const char *const group = "scratch";
    const struct gpt_options *options = &gpt->options;
    const struct head_shape heads = heads_of(gpt);
    struct attention_scratch *scratch = &gpt->scratch.attention;
    const uint64_t keys =
        (uint64_t)(gpt->shape.batch * heads.kv_row) * operations_transposed(&gpt->operations, options->sequence);
    scratch->keys_t = memory_plan_add(&gpt->plan, group, keys, options->type);
    gpt->scratch.angles =
        memory_plan_add(&gpt->plan, group, head_rows_table(&gpt->operations, options->sequence), ELEMENT_FP32);
    if (gpt->config.qk_norm != QK_NORM_NONE) {
        gpt->scratch.qkv = gpt_plan_activations(gpt, group, heads.qkv_row);
        gpt->scratch.head_scales = gpt_plan_floats(gpt, group, heads.heads + heads.kv_heads);
    }
    if (options->mode == GPT_GENERATION) {
        const uint64_t scores = (uint64_t)(options->batch * gpt->config.n_head) *
                                operations_padded(&gpt->operations, options->sequence);
        gpt->scratch.scores = memory_plan_add(&gpt->plan, group, scores, ELEMENT_FP32);
    }
    if (options->mode == GPT_TRAINING) {
        scratch->values_t = memory_plan_add(&gpt->plan, group, keys, options->type);
        scratch->delta = gpt_plan_floats(gpt, group, gpt->config.n_head);
        gpt->scratch.d_value_gates = gpt->config.value_embeds ? gpt_plan_floats(gpt, group, heads.kv_heads) : NULL;
        gpt->scratch.d_in_proj_out = gpt_plan_activations(gpt, group, heads.qkv_row);
        scratch->d_queries = heads.y_row > gpt->config.n_embd
                                 ? gpt_plan_floats(gpt, group, heads.y_row)
                                 : gpt->scratch.d_embedding; /* which is needed only after the last attention */
    }
}

/* ---- passes */

/* Inputs of the input projection: one, or those of queries, keys and values. Returns how many. */
static size_t list_inputs(const struct gpt *gpt, const struct sublayer *sublayer, struct linear_input inputs[3]) {
    const struct head_shape heads = heads_of(gpt);
    const struct gpt_scratch *scratch = &gpt->scratch;
    const size_t y_row = (size_t)heads.y_row, kv_row = (size_t)heads.kv_row;
    const struct dropout dropout = gpt_adapter_dropout(gpt, sublayer->index, "in");
    inputs[0] = (struct linear_input){0, y_row, sublayer->mix.normed, scratch->d_normed, dropout};
    inputs[1] = (struct linear_input){y_row, kv_row, sublayer->key_input, scratch->d_key_input, dropout};
    inputs[2] =
        (struct linear_input){y_row + kv_row, kv_row, sublayer->value_input, scratch->d_value_input, dropout};
    if (sublayer->key_input) {
        return 3;
    }
    inputs[0].count += 2 * kv_row;
    return 1;
}

static struct head_gains gains_of(const struct sublayer *sublayer, const struct buffer *arena) {
    return (struct head_gains){{arena, sublayer->at->q_gain}, {arena, sublayer->at->k_gain}};
}

static struct head_rows rows_of(const struct gpt *gpt, const struct sublayer *sublayer) {
    const bool normed = gpt->config.qk_norm != QK_NORM_NONE;
    return (struct head_rows){.raw = sublayer->in_proj_out,
                              .qkv = normed ? gpt->scratch.qkv : sublayer->in_proj_out,
                              .table = gpt->scratch.angles,
                              .scales = normed ? gpt->scratch.head_scales : gpt->scratch.angles,
                              .gains = gains_of(sublayer, gpt->parameters.weights)};
}

/* ---- embeddings of values */

static struct value_embed value_embed_of(const struct sublayer *sublayer, const struct buffer *tables,
                                         const struct buffer *others) {
    return (struct value_embed){{tables, sublayer->at->value_embed}, {others, sublayer->at->value_gate}};
}

static struct value_embed_values value_embed_values(const struct gpt *gpt, const struct sublayer *sublayer) {
    const struct buffer *own = sublayer->value_input;
    return (struct value_embed_values){gpt->tokens, own ? own : sublayer->mix.normed, sublayer->value_gates};
}

/* After the input projection has computed the gradient of its input. */
static void value_embed_part_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct parameters *parameters = &gpt->parameters;
    const struct value_embed_values values = value_embed_values(gpt, sublayer);
    const size_t row = (size_t)heads_of(gpt).kv_row, vocabulary = (size_t)gpt->config.vocab_size;
    struct value_embed_gradients gradients = {.d_qkv = scratch->d_in_proj_out,
                                              .d_y = sublayer->value_input ? scratch->d_value_input
                                                                           : scratch->d_normed,
                                              .d_gates = scratch->d_value_gates,
                                              .groups = gpt->groups,
                                              .weights = value_embed_of(sublayer, parameters->gradients,
                                                                        parameters->gradients)};
    if (!parameters_train(parameters, gradients.weights.table.offset)) {
        gradients.weights.table.buffer = NULL;
    } else if (!parameters->accumulate) { /* most rows have none */
        buffer_zero(gpt->compute, parameters->gradients, gradients.weights.table.offset * sizeof(float),
                    vocabulary * row * sizeof(float));
    }
    value_embed_backward(&gpt->operations, gpt_tokens(gpt),
                         value_embed_of(sublayer, gpt_tables(gpt), parameters->weights), &values, &gradients,
                         parameters->accumulate);
}

static void forward(struct gpt *gpt, const struct sublayer *sublayer) {
    struct operations *operations = &gpt->operations;
    const struct attention_cache cache = {sublayer->keys, sublayer->values, gpt->options.sequence};
    struct linear_input inputs[3];
    const size_t count = list_inputs(gpt, sublayer, inputs);
    linear_forward(operations, &gpt->parameters, &sublayer->at->in, gpt_tokens(gpt), inputs, count,
                   sublayer->in_proj_out, NULL);
    compute_set_module(gpt->compute, "attention");
    if (sublayer->value_gates) {
        const struct value_embed_values values_of = value_embed_values(gpt, sublayer);
        value_embed_forward(operations, gpt_tokens(gpt),
                            value_embed_of(sublayer, gpt_tables(gpt), gpt->parameters.weights), &values_of,
                            sublayer->in_proj_out);
    }
    const struct head_rows rows = rows_of(gpt, sublayer);
    const struct buffer *qkv = rows.qkv;
    if (head_rows_change(&operations->shape)) {
        head_rows_forward(operations, gpt->shape, gpt->pass.position, &rows);
    }
    const struct attention_values values = {qkv, sublayer->out_proj_in, sublayer->lse};
    if (gpt->pass.cache == CACHE_STEP) {
        attention_step(operations, gpt->shape.batch, gpt->pass.position, qkv, cache, gpt->scratch.scores,
                       sublayer->out_proj_in);
        return;
    }
    if (gpt->pass.cache == CACHE_FILL) {
        attention_fill(operations, gpt->shape, qkv, gpt->pass.cache_row, 0, cache);
    }
    attention_forward(operations, gpt->shape, &values, &gpt->scratch.attention,
                      gpt_dropout(gpt, sublayer->index, "attention"));
}

static void backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_output) {
    struct operations *operations = &gpt->operations;
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct head_rows rows = rows_of(gpt, sublayer);
    const struct attention_values values = {rows.qkv, sublayer->out_proj_in, sublayer->lse};
    const size_t tokens = gpt_tokens(gpt);
    const struct linear_input y = {0, sublayer->at->out.out, sublayer->out_proj_in, scratch->d_out_proj_in,
                                   gpt_adapter_dropout(gpt, sublayer->index, "out")};
    linear_backward(operations, &gpt->parameters, &sublayer->at->out, tokens, &y, 1, d_output, NULL);
    compute_set_module(gpt->compute, "attention");
    if (gpt->config.qk_norm != QK_NORM_NONE) { /* all layers share these rows */
        head_rows_forward(operations, gpt->shape, 0, &rows);
    }
    attention_backward(operations, gpt->shape, &values, &scratch->attention,
                       gpt_dropout(gpt, sublayer->index, "attention"), scratch->d_out_proj_in,
                       scratch->d_in_proj_out);
    if (head_rows_change(&operations->shape)) {
        head_rows_backward(operations, gpt->shape, &rows, scratch->d_in_proj_out,
                           gains_of(sublayer, gpt->parameters.gradients), gpt->parameters.accumulate);
    }
    struct linear_input inputs[3];
    const size_t count = list_inputs(gpt, sublayer, inputs);
    linear_backward(operations, &gpt->parameters, &sublayer->at->in, tokens, inputs, count, scratch->d_in_proj_out,
                    NULL);
    if (sublayer->value_gates) {
        value_embed_part_backward(gpt, sublayer);
    }
}

const struct branch branch_attention = {
    .norm = "ln_1",
    .hyper_connection = "hc_attn",
    .add_parameters = add_parameters,
    .plan_activations = plan_activations,
    .plan_each = plan_value_gates,
    .plan_cache = plan_cache,
    .plan_scratch = plan_scratch,
    .forward = forward,
    .backward = backward,
};
