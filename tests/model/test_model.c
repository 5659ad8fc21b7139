/* Whole models of odd sizes: loss and logits against the reference in double precision, and the gradient of every
 * parameter against central differences of that reference, for all variants and numbers of streams, with and
 * without biases, dropout, and either way of reducing the streams. */
#include "runtime/gemm/gemm.h"
#include "runtime/system/random.h"
#include "tests/support/reference_model.h"
#include "tests/support/reference_residual.h"
#include "tests/support/rounding.h"
#include "tests/support/scratch.h"
#include "tests/support/small_model.h"
#include "tests/support/tensors.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double LOSS_TOLERANCE = 1e-5;     /* relative */
static const double LOGIT_TOLERANCE = 1e-5;    /* of the largest logit, at least of 1 */
static const double GRADIENT_TOLERANCE = 1e-4; /* of the tensor's norm, along a random direction */
static const double GRADIENT_FLOOR = 1e-7;     /* of the whole gradient's norm: see test_golden.c */
static const double STEP = 1e-5;               /* of central differences, L2 */

/* In 16 bits an activation is rounded each time that it is stored: a sublayer's streams, packed projections, branch
 * input, wide, inner and output, weights twice; and the embedding's and head's. These errors, each up to the type's
 * unit roundoff, are independent, so that of the result grows as the root of their number; twice that is allowed
 * for what the model amplifies. A gradient has as many again from the backward pass, and its error along a normal
 * direction is a normal number times its size, of which four deviations are allowed. */
static const double ROUNDINGS_OF_SUBLAYER = 8, ROUNDINGS_OUTSIDE = 4, AMPLIFICATION = 2;
static const double GRADIENT_AMPLIFICATION = 4 * 1.41;

static struct compute *compute;
static double worst_loss, worst_logits, worst_gradient;

/* How much memory there is: the activation's output is kept where there is enough, which is usual in fp32. */
enum memory { USUAL_MEMORY, ENOUGH_MEMORY, LITTLE_MEMORY };

struct model_case {
    const char *residual;
    int64_t streams;
    bool bias, norm_sum, dropout;
    enum element_type type;
    bool scaled;          /* streams */
    const char *settings; /* as small_model_set takes them, after all others; NULL: none */
    enum memory memory;
    const char *absent; /* a parameter that the model does not have */
    bool both_types;    /* if all is asked for, in fp32 and bf16 */
    struct lora_settings lora;
};

/* Tens of thousands of parameters a sublayer, such as mhc_lite's of 40320 permutations. */
static bool is_large(const struct model_case *shape) {
    return residual_sizes(residual_find(shape->residual), shape->streams, NULL).theta > 1000;
}

static struct model_config config_of(const struct model_case *shape) {
    struct model_config config = small_model_config(shape->residual, shape->streams);
    config.n_layer = is_large(shape) ? 1 : residual_has_frame(residual_find(shape->residual), "mudd") ? 3 : 2;
    config.n_head = is_large(shape) ? 1 : 3;
    config.n_embd = is_large(shape) ? 8 : 12;
    config.block_size = is_large(shape) ? 3 : 7; /* the reference takes seconds a token there */
    config.bias = shape->bias;
    config.stream_reduce = shape->norm_sum ? STREAM_REDUCE_NORM_SUM : STREAM_REDUCE_SUM_NORM;
    config.stream_expand = shape->scaled;
    config.dropout = shape->dropout ? 0.2 : 0.0;
    small_model_set(&config, shape->bias ? "vocab_size=19 sinkhorn_iters=9 attnres_block=3 mudd_round=0"
                                         : "vocab_size=19 sinkhorn_iters=9 attnres_block=1 mudd_round=16");
    small_model_set(&config, shape->settings ? shape->settings : "");
    config.lora = shape->lora;
    return config;
}

/* The model that is being compared, in words. */
static const char *compared = "";

static void judge(const char *name, double error, double allowed, double *so_far) {
    *so_far = fmax(*so_far, error / allowed);
    if (!(error <= allowed)) {
        fail_msg("%s: %s: error %.3g, allowed %.3g", compared, name, error, allowed);
    }
}

/* What rounding to 16 bits may add to a tolerance; 0 in fp32. */
static double rounding_of(const struct small_model *model) {
    const double sublayers = 2.0 * (double)model->gpt.config.n_layer;
    return AMPLIFICATION * sqrt(ROUNDINGS_OF_SUBLAYER * sublayers + ROUNDINGS_OUTSIDE) *
           rounding_unit(model->gpt.options.type);
}

/* ---- against the reference */

static void compare_forward(struct small_model *model, const struct reference_model *reference, float loss) {
    const size_t tokens = gpt_tokens(&model->gpt), count = tokens * (size_t)model->gpt.config.vocab_size;
    FREED float *actual = malloc(count * sizeof *actual);
    FREED double *expected = malloc(count * sizeof *expected);
    double largest = 1.0, error = 0.0;
    const double wanted = reference_model_loss(reference, expected);
    require(gpt_read_logits(&model->gpt, 0, tokens, actual));
    judge("loss", fabs((double)loss - wanted), (LOSS_TOLERANCE + rounding_of(model)) * wanted, &worst_loss);
    for (size_t i = 0; i < count; i++) {
        assert_true(isfinite(actual[i]));
        largest = fmax(largest, fabs(expected[i]));
        error = fmax(error, fabs((double)actual[i] - expected[i]));
    }
    judge("logits", error, (LOGIT_TOLERANCE + rounding_of(model)) * largest, &worst_logits);
}

/* The reference's derivative along a direction of one parameter. */
static double derivative(const struct reference_model *reference, double *values, const struct parameter *parameter,
                         const float *direction) {
    const size_t count = parameter->elements;
    double *place = values + parameter->offset, loss[2];
    FREED double *kept = malloc(count * sizeof *kept);
    const double step = STEP / tensors_norm(direction, count);
    memcpy(kept, place, count * sizeof *kept);
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < count; i++) {
            place[i] = kept[i] + (side ? -step : step) * (double)direction[i];
        }
        loss[side] = reference_model_loss(reference, NULL);
    }
    memcpy(place, kept, count * sizeof *kept);
    return (loss[0] - loss[1]) / (2.0 * step);
}

static void compare_gradients(const struct small_model *model, const float *gradients,
                              const struct reference_model *reference, double *values) {
    const struct parameters *parameters = &model->gpt.parameters;
    const double rounding = GRADIENT_AMPLIFICATION * rounding_of(model);
    const double whole = tensors_norm(gradients, parameters->elements);
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        const float *gradient = gradients + parameter->offset;
        FREED float *direction = malloc(parameter->elements * sizeof *direction);
        double along = 0.0;
        random_normal(random_key(11, parameter->name), 0, parameter->elements, 0.0, 1.0, direction);
        for (size_t k = 0; k < parameter->elements; k++) {
            along += (double)gradient[k] * (double)direction[k];
        }
        judge(parameter->name, fabs(along - derivative(reference, values, parameter, direction)),
              (GRADIENT_TOLERANCE + rounding) * tensors_norm(gradient, parameter->elements) +
                  (GRADIENT_FLOOR + 1e-3 * rounding) * whole,
              &worst_gradient);
    }
}

/* Leaves the device only what the model takes with GELU's outputs kept, which is too little to keep them. */
static void leave_little_memory(const struct model_config *config, const struct gpt_options *options) {
    SMALL_MODEL model;
    small_model_create_planned(&model, compute, config, options);
    compute->device.memory_bytes = model.gpt.plan.total_bytes;
}

/* Compares the last pass, over a batch of this shape. */
static void compare_pass(struct small_model *model, struct token_shape shape, struct gpt_pass pass, float loss) {
    const struct parameters *parameters = &model->gpt.parameters;
    FREED float *weights = small_model_read(model, parameters->weights), *gradients = small_model_gradients(model);
    FREED double *values = malloc(parameters->elements * sizeof *values);
    for (size_t i = 0; i < parameters->elements; i++) {
        values[i] = (double)weights[i];
    }
    const struct reference_model reference = {.config = &model->gpt.config,
                                              .parameters = parameters,
                                              .values = values,
                                              .shape = shape,
                                              .x = model->x,
                                              .y = model->y,
                                              .pass = pass};
    compare_forward(model, &reference, loss);
    compare_gradients(model, gradients, &reference, values);
    for (size_t i = 0; i < parameters->count; i++) {
        memset(gradients + parameters->table[i].offset, 0, parameters->table[i].elements * sizeof *gradients);
    }
    for (uint64_t i = 0; i < parameters->elements; i++) {
        assert_true(gradients[i] == 0.0f); /* between parameters nothing is written */
    }
}

static void compare_case(const struct model_case *shape) {
    struct model_config config = config_of(shape);
    const size_t memory = compute->device.memory_bytes;
    const bool keeps_activation =
        shape->memory == USUAL_MEMORY ? shape->type == ELEMENT_FP32 : shape->memory == ENOUGH_MEMORY;
    const struct gpt_pass pass = {.dropout = shape->dropout, .seed = 5, .iteration = 3, .first_row = 70};
    char all[] = "."; /* is trained beside adapters, too */
    const struct gpt_options options = {.batch = is_large(shape) ? 1 : 3,
                                        .type = shape->type,
                                        .optimizer.lora_train = shape->lora.rank ? all : NULL};
    SMALL_MODEL model;
    compared = scratch_format("%s of %d streams%s%s%s%s in %s, %s", shape->residual, (int)shape->streams,
                              shape->bias ? ", biases" : "", shape->norm_sum ? ", norm_sum" : "",
                              shape->dropout ? ", dropout" : "", shape->scaled ? ", scaled" : "",
                              element_name(shape->type), shape->settings ? shape->settings : "usual settings");
    print_message("  %s\n", compared);
    require(model_config_check(&config));
    if (!keeps_activation) {
        leave_little_memory(&config, &options);
    }
    small_model_create_planned(&model, compute, &config, &options);
    compute->device.memory_bytes = memory;
    small_model_randomise(&model, 2);
    const float loss = small_model_backward(&model, pass);
    assert_int_equal(model.gpt.keeps_activation, keeps_activation);
    assert_true(!shape->absent || !parameters_find(&model.gpt.parameters, shape->absent));
    compare_pass(&model, model.gpt.shape, pass, loss);
}

#define SHC   .residual = "shc", .streams = 5
#define MUDD  .residual = "mudd", .streams = 1
#define RC    .residual = "rc", .streams = 1
#define MHC   .residual = "mhc", .streams = 3
#define HC    .residual = "hc", .streams = 2
#define HEADS "n_layer=2 n_head=4 n_kv_head=2 rope_theta=30 " /* mudd amplifies roundings from layer to layer */

/* What models can be beside their connections. Rows of one subject share compiled kernels where they can. */
static const struct model_case cases[] = {
    /* 16 bits */
    {RC, .bias = true, .dropout = true, .type = ELEMENT_FP16},
    {"hc", 4, .type = ELEMENT_FP16},
    {"mhc", 4, .bias = true, .norm_sum = true, .type = ELEMENT_FP16},
    {"shc", 4, .norm_sum = true, .dropout = true, .type = ELEMENT_BF16},
    {MUDD, .bias = true, .norm_sum = true, .dropout = true, .type = ELEMENT_BF16},
    /* activations and positions */
    {RC, .bias = true, .norm_sum = true, .settings = "activation=gelu_tanh"},
    {SHC, .settings = "position=none", .absent = "transformer.wpe.weight"},
    /* heads that share keys, and whose channels together are not those of the model: wider than it, and of a size
     * that no vector divides */
    {SHC, .bias = true, .dropout = true, .settings = "n_head=4 n_kv_head=2 head_dim=6", .both_types = true},
    {MUDD, .bias = true, .dropout = true, .type = ELEMENT_BF16, .settings = "n_head=4 n_kv_head=2 head_dim=6",
     .both_types = true},
    {SHC, .bias = true, .dropout = true, .type = ELEMENT_BF16, .settings = "n_head=5 n_kv_head=1 head_dim=3",
     .both_types = true},
    {MUDD, .bias = true, .dropout = true, .settings = "n_head=5 n_kv_head=1 head_dim=3", .both_types = true},
    {SHC, .bias = true, .dropout = true, .settings = "n_head=2 n_kv_head=2 head_dim=32", .both_types = true},
    {MUDD, .bias = true, .dropout = true, .type = ELEMENT_BF16, .settings = "n_head=2 n_kv_head=2 head_dim=32",
     .both_types = true},
    /* RoPE in place and qk_norm, alone and together, then with a scale of scores; grouped and odd heads */
    {SHC, .bias = true, .norm_sum = true, .type = ELEMENT_BF16,
     .settings = HEADS "position=rope head_dim=6 qkv_bias=false", .both_types = true},
    {MUDD, .bias = true, .norm_sum = true, .settings = HEADS "position=rope head_dim=6 qkv_bias=false",
     .both_types = true},
    {SHC, .bias = true, .norm_sum = true, .settings = HEADS "qk_norm=true head_dim=5", .both_types = true},
    {MUDD, .bias = true, .norm_sum = true, .type = ELEMENT_BF16, .settings = HEADS "qk_norm=true head_dim=5",
     .both_types = true},
    {SHC, .bias = true, .norm_sum = true, .type = ELEMENT_BF16,
     .settings = HEADS "position=rope qk_norm=true head_dim=6 attn_scale=0.7 rope_fraction=0.666666666666666667",
     .both_types = true},
    {MUDD, .bias = true, .norm_sum = true,
     .settings = HEADS "position=rope qk_norm=plain head_dim=6 attn_scale=0.7 rope_fraction=0.666666666666666667",
     .both_types = true},
    /* norms, with biases, which an RMSNorm has not, and of both an epsilon that shows */
    {SHC, .bias = true, .norm_sum = true, .settings = "norm_eps=0.03"},
    {SHC, .bias = true, .norm_sum = true, .settings = "norm=rmsnorm norm_eps=0.03",
     .absent = "transformer.ln_f.bias"},
    /* normed embeddings before all kinds of connections, with learned positions and without, and scaled streams */
    {SHC, .bias = true, .dropout = true, .scaled = true, .settings = "embed_norm=true norm_eps=0.03"},
    {"gated", 2, .dropout = true, .type = ELEMENT_FP16, .settings = "embed_norm=true norm_eps=0.03 position=none"},
    {"attnres", 1, .bias = true, .settings = "embed_norm=true norm_eps=0.03"},
    {MUDD, .bias = true, .dropout = true, .type = ELEMENT_BF16,
     .settings = "embed_norm=true norm_eps=0.03 position=none"},
    {RC, .settings = "embed_norm=true norm_eps=0.03"},
    /* capped logits by a head's own weights, then by those of the token embedding with a bias, in 16 bits and
     * bounded in another way */
    {RC, .settings = "qkv_bias=true tie_embeddings=false logit_softcap=0.7"},
    {RC, .type = ELEMENT_BF16, .settings = "qkv_bias=true head_bias=true logit_softcap=0.7"},
    {RC, .settings = "qkv_bias=true head_bias=true logit_softcap=0.7 softcap_kind=rsqrt"},
    /* MLPs of all kinds, of usual and odd widths, with the activation's output kept or not */
    {MHC, .bias = true, .norm_sum = true, .settings = "n_layer=1", .memory = LITTLE_MEMORY},
    {RC, .bias = true, .norm_sum = true, .settings = "n_layer=1 mlp=swiglu mlp_width=20", .memory = LITTLE_MEMORY},
    {MHC, .bias = true, .norm_sum = true, .settings = "n_layer=1 mlp=relu2 mlp_width=31", .memory = LITTLE_MEMORY},
    {RC, .norm_sum = true, .settings = "n_layer=1 mlp_width=20"},
    {MHC, .norm_sum = true, .type = ELEMENT_BF16, .settings = "n_layer=1 mlp=swiglu mlp_width=31",
     .memory = ENOUGH_MEMORY},
    {RC, .norm_sum = true, .settings = "n_layer=1 mlp=relu2"},
    /* connections without gains: the kind of norm that runs over all streams, and that over each */
    {MHC, .bias = true, .settings = "hc_norm_gain=false hc_eps=0.01"},
    {HC, .settings = "hc_norm_gain=false hc_eps=0.01"},
    /* transposed: what the public code of s2HC has beyond the paper's text */
    {"shc", 4, .settings = "h_res_transposed=true hc_norm_eps=0"},
    {MHC, .bias = true, .dropout = true, .settings = "h_res_transposed=true hc_norm_eps=1e-3"},
    {HC, .settings = "h_res_transposed=true hc_norm_eps=0"},
    {"circulant", 5, .settings = "h_res_transposed=true hc_norm_eps=1e-3 read_delay=true"},
    /* streams summed at the top with weights that are learned; rc has one and ignores it */
    {MHC, .bias = true, .settings = "stream_reduce=head hc_eps=0.01"},
    {HC, .settings = "stream_reduce=head hc_eps=0.01 norm=rmsnorm"},
    {"krom", 8, .type = ELEMENT_FP16, .settings = "stream_reduce=head hc_eps=0.01"},
    {RC, .settings = "stream_reduce=head hc_eps=0.01 norm=rmsnorm"},
    /* sublayers that read with the H_pre of the one before; three kinds of top */
    {MHC, .bias = true, .dropout = true, .settings = "read_delay=true stream_reduce=auto hc_norm_gain=false"},
    {HC, .bias = true, .settings = "read_delay=true stream_reduce=norm_sum norm=rmsnorm"},
    {"krom", 4, .scaled = true, .settings = "read_delay=true stream_reduce=head hc_norm_gain=false"},
    {SHC, .type = ELEMENT_BF16, .settings = "read_delay=true stream_reduce=auto norm=rmsnorm"},
    {"hc", 3, .bias = true, .type = ELEMENT_FP16,
     .settings = "read_delay=true stream_reduce=norm_sum hc_norm_gain=false"},
    {"wide", 4, .settings = "read_delay=true stream_reduce=head norm=rmsnorm"},
};

/* Keys that change connections. */
#define STATIC "hc_dynamic=false "
static const struct model_case wirings[] = {
    /* matrices that no token changes: of all kinds of maps, and with all kinds of tops */
    {MHC, .bias = true, .settings = STATIC "stream_reduce=head hc_eps=0.01", .absent = "transformer.hc_head.w_pre"},
    {HC, .dropout = true, .scaled = true, .settings = STATIC "norm=rmsnorm",
     .absent = "transformer.h.1.hc_mlp.norm.weight"},
    {SHC, .bias = true, .norm_sum = true, .settings = STATIC, .absent = "transformer.h.1.hc_mlp.gamma_u"},
    {SHC, .type = ELEMENT_BF16, .settings = STATIC "read_delay=true stream_reduce=auto"},
    {"mhc_lite", 3, .settings = STATIC "h_res_transposed=true"},
    {"krom", 4, .type = ELEMENT_FP16, .settings = STATIC "h_res_transposed=true stream_reduce=head"},
    {"circulant", 5, .settings = STATIC "read_delay=true stream_reduce=norm_sum"},
    {"go_mhc", 3, .settings = STATIC},
    {"ohc", 4, .settings = STATIC},
    {"identity", 2, .settings = STATIC},
    {"frac", 3, .bias = true, .settings = STATIC, .absent = "transformer.h.0.hc_attn.alpha_mix"},
    /* sublayers that leave the streams unmixed: some or nearly all */
    {MHC, .norm_sum = true, .settings = "hc_until=3 stream_reduce=head", .absent = "transformer.h.1.hc_mlp.b_res"},
    {MHC, .dropout = true, .settings = STATIC "hc_until=2 read_delay=true stream_reduce=auto"},
    {SHC, .bias = true, .settings = "hc_until=1 read_delay=true stream_reduce=auto", .both_types = true,
     .absent = "transformer.h.0.hc_mlp.gamma_u"},
    {HC, .bias = true, .settings = "hc_until=1", .absent = "transformer.h.0.hc_mlp.alpha_res"},
    {HC, .type = ELEMENT_BF16, .settings = STATIC "hc_until=2"},
    {"krom", 8, .type = ELEMENT_FP16, .settings = "hc_until=1 h_res_transposed=true hc_norm_gain=false"},
    {"wide", 4, .settings = "hc_until=2 wide_retention=true", .absent = "transformer.h.1.hc_attn.b_res"},
    {"frac", 6, .dropout = true, .settings = "hc_until=3 hc_norm_gain=false"},
    /* layers that begin with the first streams again, scaled ones too */
    {RC, .bias = true, .dropout = true, .settings = "x0_lambdas=true embed_norm=true"},
    {MHC, .scaled = true, .settings = "x0_lambdas=true"},
    {SHC, .bias = true, .settings = "x0_lambdas=true read_delay=true stream_reduce=auto"},
    {"mhc", 4, .type = ELEMENT_BF16, .settings = "x0_lambdas=true"},
    {HC, .scaled = true, .dropout = true, .settings = "x0_lambdas=true " STATIC},
    {"gated", 2, .scaled = true, .settings = "x0_lambdas=true"},
    {"wide", 4, .scaled = true, .settings = "x0_lambdas=true wide_retention=true"},
    {"laurel", 1, .dropout = true, .settings = "x0_lambdas=true"},
    {"dar", 1, .dropout = true, .settings = "x0_lambdas=true attnres_block=1"},
    {"frac", 2, .bias = true, .dropout = true, .settings = "x0_lambdas=true"},
    /* embeddings of values: in the last layer and in every other one before it, for heads of all kinds */
    {RC, .bias = true, .settings = "value_embeds=true n_layer=3 x0_lambdas=true",
     .absent = "transformer.h.1.attn.ve_gate.weight"},
    {SHC, .type = ELEMENT_BF16, .settings = "value_embeds=true n_embd=18 n_layer=1", .both_types = true},
    {MUDD, .bias = true, .dropout = true, .settings = "value_embeds=true " HEADS "position=rope head_dim=6",
     .absent = "transformer.h.0.attn.value_embed.weight"},
    {"attnres", 1, .settings = "value_embeds=true " HEADS "qk_norm=plain head_dim=5"},
    {"gated", 2, .type = ELEMENT_FP16, .settings = "value_embeds=true n_head=5 n_kv_head=1 head_dim=3"},
    /* norms around mixtures of layers */
    {MUDD, .bias = true, .dropout = true, .settings = "mudd_norm=prepost norm_eps=0.03"},
    {MUDD, .type = ELEMENT_BF16, .settings = "mudd_norm=prepost value_embeds=true n_layer=2"},
    /* heads over depth */
    {"attnres", 1, .bias = true, .settings = "attnres_heads=3"},
    {"attnres", 1, .type = ELEMENT_BF16, .settings = "attnres_heads=12 norm=rmsnorm hc_norm_gain=false"},
    {"dar", 1, .bias = true, .settings = "attnres_heads=2 attnres_block=2 dar_gate=none", .both_types = true,
     .absent = "transformer.h.0.hc_attn.gate"},
    {"dar", 1, .bias = true, .dropout = true, .settings = "n_layer=3 attnres_block=4 hc_norm_gain=false"},
    /* one stream: parts of laurel's form, ranks that no vector divides; sums over depth in 16 bits */
    {"laurel", 1, .bias = true, .settings = "laurel_form=rw", .absent = "transformer.h.0.hc_attn.w_up"},
    {"laurel", 1, .type = ELEMENT_BF16, .settings = "laurel_form=lr laurel_rank=5", .both_types = true,
     .absent = "transformer.h.0.hc_attn.b_mix"},
    {"laurel", 1, .bias = true, .settings = "laurel_rank=1 n_layer=1", .memory = LITTLE_MEMORY},
    {"dense", 1, .dropout = true, .type = ELEMENT_FP16, .settings = "value_embeds=true"},
    {"frac", 4, .bias = true, .dropout = true, .type = ELEMENT_BF16, .both_types = true},
};

static void compare_all(const struct model_case *all, size_t count) {
    for (size_t i = 0; i < count; i++) {
        struct model_case shape = all[i];
        compare_case(&shape);
        if (shape.both_types && test_is_whole()) {
            shape.type = shape.type == ELEMENT_FP32 ? ELEMENT_BF16 : ELEMENT_FP32;
            compare_case(&shape);
        }
    }
}

UNIT_TEST(models_agree) {
    compare_all(cases, COUNT(cases));
}

/* Adapters of some modules, of Llama's and of GPT-2's, beside every other gradient; with dropout; where queries,
 * keys and values are made of other inputs; and with the frame of hyper-connections. */
#define TARGETS(...)       .targets = LORA_BITS(__VA_ARGS__)
#define LORA_BITS(a, b, c) (1u << LORA_##a | 1u << LORA_##b | 1u << LORA_##c)
#define LORA_ALL_BITS      ((1u << LORA_MODULES) - 1)
#define LORA_GPT2_BITS     (LORA_ALL_BITS & ~(1u << LORA_GATE))
static const struct model_case adapters[] = {
    {RC, .settings = "norm=rmsnorm mlp=swiglu mlp_width=20 " HEADS "head_dim=6",
     .lora = {.rank = 3, .alpha = 5.0, .targets = LORA_ALL_BITS}, .both_types = true},
    {RC, .bias = true, .lora = {.rank = 1, .alpha = 2.0, .by_root = true, .targets = LORA_GPT2_BITS}},
    {SHC, .dropout = true, .settings = "norm=rmsnorm mlp=swiglu",
     .lora = {.rank = 4, .alpha = 3.0, .dropout = 0.3, TARGETS(Q, V, DOWN)}},
    {MUDD, .bias = true, .lora = {.rank = 2, .alpha = 3.0, .dropout = 0.2, .targets = LORA_GPT2_BITS}},
    {MUDD, .type = ELEMENT_BF16, .settings = "norm=rmsnorm", .lora = {.rank = 2, .alpha = 1.0, TARGETS(K, V, UP)},
     .both_types = true},
    {MHC, .type = ELEMENT_FP16, .settings = "norm=rmsnorm mlp=swiglu n_layer=1", .memory = LITTLE_MEMORY,
     .lora = {.rank = 5, .alpha = 5.0, TARGETS(O, GATE, DOWN)}},
};

UNIT_TEST(adapters_agree) {
    compare_all(adapters, COUNT(adapters));
}

UNIT_TEST(wirings_agree) {
    compare_all(wirings, COUNT(wirings));
}

/* GEMMs by a backend that reads 16 bits and has an epilogue, as on a GPU: bias and both GELUs. */
UNIT_TEST(matrix_units_agree_too) {
    static const char *const settings[] = {NULL, "activation=gelu_tanh", "mlp=swiglu mlp_width=20",
                                           "mlp=relu2 mlp_width=20 activation=gelu_tanh"};
    struct compute *usual = compute;
    const struct compute_options options = {.device = "pocl",
                                            .gemm = "mma",
                                            .operands = ELEMENT_BF16,
                                            .cache_dir = ""};
    require(gemm_compute_open(&compute, &options));
    assert_true(gemm_fuses(compute, ELEMENT_BF16));
    for (size_t i = 0; i < (test_is_whole() ? COUNT(settings) : 1); i++) {
        compare_case(&(struct model_case){RC, .bias = true, .norm_sum = true, .type = ELEMENT_BF16,
                                          .settings = settings[i],
                                          .memory = i == 1 ? ENOUGH_MEMORY : LITTLE_MEMORY});
    }
    compute_close(compute);
    compute = usual;
}

/* ---- parts of a model's life */

/* These have the same kernels, which are compiled once. */
static const struct model_case plain_shc = {SHC}, plain_rc = {RC};

/* A batch smaller than planned, right after a larger one. */
UNIT_TEST(smaller_batches_agree_too) {
    const struct model_config config = config_of(&plain_shc);
    const struct gpt_pass pass = {.dropout = false};
    const struct token_shape small = {2, 5};
    SMALL_MODEL model;
    small_model_create(&model, compute, &config, 3);
    small_model_randomise(&model, 2);
    small_model_backward(&model, pass);
    require(gpt_set_batch(&model.gpt, small, model.x, model.y));
    compare_pass(&model, small, pass, small_model_backward(&model, pass));
}

/* Where their squares are infinite in floats, too. */
UNIT_TEST(huge_logits_are_capped) {
    for (int kind = SOFTCAP_TANH; kind <= SOFTCAP_RSQRT; kind++) {
        struct model_config config = config_of(&plain_rc);
        SMALL_MODEL model;
        config.logit_softcap = 15.0;
        config.softcap_kind = kind;
        small_model_create(&model, compute, &config, 3);
        small_model_randomise(&model, 5);
        const struct parameter *gain = parameters_find(&model.gpt.parameters, "transformer.ln_f.weight");
        const size_t vocabulary = model.gpt.vocabulary;
        float gains[64], logits[64], loss;
        assert_true(gain->elements <= COUNT(gains) && vocabulary <= COUNT(logits));
        for (size_t i = 0; i < gain->elements; i++) {
            gains[i] = 1e24f;
        }
        require(parameters_write(compute, &model.gpt.parameters, gain->offset, gain->elements, gains));
        small_model_forward(&model, (struct gpt_pass){.dropout = false});
        gpt_loss(&model.gpt, 1.0f, false);
        const size_t token = model.y[0] >= 0 ? 0 : 1;
        double sum = 0.0;
        require(buffer_read(compute, model.gpt.losses, token * sizeof loss, &loss, sizeof loss));
        require(gpt_read_logits(&model.gpt, token, 1, logits));
        for (size_t i = 0; i < vocabulary; i++) {
            assert_float_equal(fabsf(logits[i]), 15.0f, 1e-5f);
            sum += exp((double)logits[i]);
        }
        assert_true(model.y[token] >= 0);
        assert_float_equal(loss, (float)(log(sum) - (double)logits[model.y[token]]), 1e-4f);
    }
}

static const int64_t few_to_many[] = {2, 5, 8};

/* Whether models of 12 channels and of 16 can have so many streams, which may be fractions of them. */
static bool takes(const struct residual_variant *variant, int64_t streams) {
    return residual_takes(variant, streams) && !(variant->has_fractions && 12 % streams);
}

/* Of variant i, in turn: tests that use these share compiled kernels. */
static int64_t streams_of(size_t i) {
    const struct residual_variant *variant = residual_at(i);
    for (size_t k = i; k < i + COUNT(few_to_many); k++) {
        if (takes(variant, few_to_many[k % COUNT(few_to_many)])) {
            return few_to_many[k % COUNT(few_to_many)];
        }
    }
    return reference_streams(variant, 4);
}

/* The gradients of variant i, each alpha_res's zero with `frozen`; *norm is what is clipped. */
static float *gradients_of(size_t i, bool frozen, struct small_model *model, float *norm) {
    const struct model_config config = small_model_config(residual_at(i)->name, streams_of(i));
    const struct gpt_options options = {.optimizer = {.freeze_alpha_res = frozen}};
    small_model_create_planned(model, compute, &config, &options);
    small_model_randomise(model, 2);
    small_model_backward(model, (struct gpt_pass){.dropout = false});
    float *gradients = small_model_read(model, model->gpt.parameters.gradients);
    optimizer_step(&model->gpt, &(struct optimizer_settings){.beta1 = 0.9, .beta2 = 0.95, USUAL_RATES}, 0);
    require(buffer_read(compute, model->gpt.gradient_norm, 0, norm, sizeof *norm));
    return gradients;
}

/* Of every variant, all other gradients are the same to the bit, and the norm is that of the others. */
UNIT_TEST(frozen_alpha_res_has_no_gradient) {
    size_t with_one = 0;
    for (size_t i = 0; residual_at(i); i++) {
        SMALL_MODEL free_model, frozen_model;
        float free_norm, frozen_norm;
        double frozen_squares = 0.0;
        FREED float *whole = gradients_of(i, false, &free_model, &free_norm);
        FREED float *others = gradients_of(i, true, &frozen_model, &frozen_norm);
        for (size_t k = 0; k < free_model.gpt.parameters.count; k++) {
            const struct parameter *parameter = &free_model.gpt.parameters.table[k];
            float *values = whole + parameter->offset;
            if (strcmp(strrchr(parameter->name, '.'), ".alpha_res") == 0) {
                frozen_squares += (double)*values * (double)*values;
                with_one += *values != 0.0f; /* in the first sublayer it may be zero: all streams are equal */
                *values = 0.0f;
            }
            assert_memory_equal(values, others + parameter->offset, parameter->elements * sizeof *values);
        }
        const double expected = sqrt((double)free_norm * (double)free_norm - frozen_squares);
        assert_true(fabs((double)frozen_norm - expected) <= 1e-6 * expected);
        assert_true(frozen_squares == 0.0 || frozen_norm < free_norm);
    }
    assert_true(with_one >= 7 * 3);
}

/* Variant and number of streams do not change what the other parameters start from. */
UNIT_TEST(initial_weights_do_not_depend_on_the_variant) {
    const struct model_config configs[2] = {config_of(&plain_rc), config_of(&plain_shc)};
    struct small_model models[2];
    float *weights[2];
    for (int i = 0; i < 2; i++) {
        small_model_create(&models[i], compute, &configs[i], 3);
        weights[i] = small_model_read(&models[i], models[i].gpt.parameters.weights);
    }
    for (size_t i = 0; i < models[0].gpt.parameters.count; i++) {
        const struct parameter *first = &models[0].gpt.parameters.table[i];
        const struct parameter *second = parameters_find(&models[1].gpt.parameters, first->name);
        assert_memory_equal(weights[0] + first->offset, weights[1] + second->offset,
                            first->elements * sizeof(float));
    }
    for (int i = 0; i < 2; i++) {
        free(weights[i]);
        small_model_release(&models[i]);
    }
}

/* The deviation of a parameter's first values, and what it is to be. */
static void judge_deviation(const struct small_model *model, const float *weights, const char *name,
                            double expected) {
    const struct parameter *parameter = parameters_find(&model->gpt.parameters, name);
    const double count = (double)parameter->elements;
    const double deviation = tensors_norm(weights + parameter->offset, parameter->elements) / sqrt(count);
    if (!(fabs(deviation - expected) <= 4.0 / sqrt(2.0 * count) * expected)) {
        fail_msg("%s: deviation %g, expected %g", name, deviation, expected);
    }
}

UNIT_TEST(track3_begins_with_zeros_and_wide_embeddings) {
    const struct model_config config =
        config_of(&(struct model_case){RC, .settings = "tie_embeddings=false mlp=swiglu init=track3"});
    SMALL_MODEL model;
    small_model_create(&model, compute, &config, 3);
    FREED float *weights = small_model_read(&model, model.gpt.parameters.weights);
    const double inner = sqrt(0.33 / (double)config.n_embd);
    judge_deviation(&model, weights, "transformer.wte.weight", 1.0);
    judge_deviation(&model, weights, "transformer.wpe.weight", 1.0);
    judge_deviation(&model, weights, "transformer.h.1.attn.c_attn.weight", inner);
    judge_deviation(&model, weights, "transformer.h.1.attn.c_proj.weight", 0.0);
    judge_deviation(&model, weights, "transformer.h.1.mlp.c_gate.weight", inner);
    judge_deviation(&model, weights, "transformer.h.1.mlp.c_fc.weight", inner);
    judge_deviation(&model, weights, "transformer.h.1.mlp.c_proj.weight", 0.0);
    judge_deviation(&model, weights, "lm_head.weight", 0.0);
}

static int begin(void **state) {
    return small_model_begin(state, &compute);
}

static int end(void **state) {
    assert_int_equal(compute->programs_refused, 0);
    compute_close(compute);
    print_message("largest errors, as parts of the tolerances: loss %.2g, logits %.2g, gradients %.2g\n",
                  worst_loss, worst_logits, worst_gradient);
    return scratch_end(state);
}

/* ---- every variant, with few, several or many streams in turn, and all settings in turn */

static void compare_variant(const char *residual, int64_t streams) {
    static const struct model_case settings[] = {{.norm_sum = true},
                                                 {.bias = true, .dropout = true, .scaled = true},
                                                 {.bias = true, .norm_sum = true, .scaled = true},
                                                 {.dropout = true}};
    static size_t turn;
    struct model_case shape = settings[turn++ % COUNT(settings)];
    shape.residual = residual;
    shape.streams = streams;
    shape.scaled &= streams > 1 && !residual_find(residual)->has_fractions;
    compare_case(&shape);
}

UNIT_TEST(every_variant_agrees) {
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        if (residual_is_single(variant)) {
            compare_variant(variant->name, 1);
            compare_variant(variant->name, 1);
            continue;
        }
        const int64_t usual = streams_of(i);
        compare_variant(variant->name, usual);
        for (size_t k = 0; k < COUNT(few_to_many) && test_is_whole(); k++) {
            if (few_to_many[k] != usual && takes(variant, few_to_many[k])) {
                compare_variant(variant->name, few_to_many[k]);
            }
        }
    }
}

DEVICE_TEST_MAIN(begin, end)
