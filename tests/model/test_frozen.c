/* Training with parameters that stay as they are, and with rates of their own for groups and for what a connection
 * adds. */
#include "src/model/parameters.h"
#include "src/operations/muon.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct compute *compute;

enum { BATCH = 3, STEPS = 3 };

static const struct optimizer_settings usual = {.learning_rate = 1e-2,
                                                .min_lr = 1e-2,
                                                .lr_decay_iters = 1000,
                                                .weight_decay = 0.1,
                                                .decay_all = true,
                                                .beta1 = 0.9,
                                                .beta2 = 0.95,
                                                .grad_clip = 1.0,
                                                .muon_momentum = 0.95,
                                                .muon_steps = 5,
                                                USUAL_RATES};

static struct model_config config_of(const char *residual) {
    struct model_config config = small_model_config(residual, 4);
    config.mlp = MLP_SWIGLU; /* c_gate and c_fc are one GEMM */
    config.bias = true;
    return config;
}

static void create(struct small_model *model, const struct model_config *config, const char *pattern, int optimizer,
                   bool recompute) {
    const struct gpt_options options = {.optimizer = {.optimizer = optimizer, .freeze = (char *)(uintptr_t)pattern},
                                        .recompute = recompute};
    small_model_create_planned(model, compute, config, &options);
    small_model_randomise(model, 3);
}

static void step(struct small_model *model, const struct optimizer_settings *settings, int64_t iteration) {
    small_model_backward(model, (struct gpt_pass){.dropout = false});
    small_model_accumulate(model, (struct gpt_pass){.dropout = false});
    optimizer_step(&model->gpt, settings, iteration);
}

static bool is_same(const struct parameter *parameter, const float *a, const float *b) {
    return memcmp(a + parameter->offset, b + parameter->offset, parameter->elements * sizeof *a) == 0;
}

/* ---- freezing */

/* Gradients of the others are the same bits as where nothing is frozen, at other places. */
static void assert_other_gradients(struct small_model *model, struct small_model *whole) {
    const struct parameters *parameters = &model->gpt.parameters, *all_parameters = &whole->gpt.parameters;
    double square = 0.0;
    float norm;
    small_model_backward(model, (struct gpt_pass){.dropout = false});
    small_model_backward(whole, (struct gpt_pass){.dropout = false});
    FREED float *own = small_model_gradients(model), *all = small_model_gradients(whole);
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        assert_true(parameter->frozen || memcmp(own + parameter->offset, all + all_parameters->table[i].offset,
                                                parameter->elements * sizeof *own) == 0);
        for (uint64_t k = 0; k < parameter->elements; k++) {
            const double gradient = (double)own[parameter->offset + k];
            assert_true(!parameter->frozen || fpclassify(gradient) == FP_ZERO);
            square += gradient * gradient;
        }
    }
    optimizer_step(&model->gpt, &usual, 0);
    require(buffer_read(compute, model->gpt.gradient_norm, 0, &norm, sizeof norm));
    assert_true(fabs((double)norm - sqrt(square)) < 1e-5 * sqrt(square));
}

static float *read_weights(const struct small_model *model) {
    const struct parameters *parameters = &model->gpt.parameters;
    float *values = malloc(parameters->elements * sizeof *values);
    require(parameters_read(compute, parameters, 0, parameters->elements, values));
    return values;
}

static void assert_frozen_stay(struct small_model *model, const char *pattern) {
    size_t frozen = 0;
    FREED float *before = read_weights(model);
    for (int64_t i = 0; i < STEPS; i++) {
        step(model, &usual, i);
    }
    FREED float *now = read_weights(model);
    for (size_t i = 0; i < model->gpt.parameters.count; i++) {
        const struct parameter *parameter = &model->gpt.parameters.table[i];
        frozen += parameter->frozen;
        if (parameter->frozen != is_same(parameter, before, now)) {
            fail_msg("freeze = %s: %s", pattern, parameter->name);
        }
    }
    assert_true(frozen > 0);
}

/* The head and the embeddings, each with a gradient of its own. */
static struct model_config untied(void) {
    struct model_config config = config_of("rc");
    config.tie_embeddings = false;
    config.head_bias = true;
    return config;
}

static struct model_config with_value_embeds(void) {
    struct model_config config = config_of("dar");
    config.value_embeds = config.x0_lambdas = true;
    return config;
}

UNIT_TEST(frozen_parameters_stay_and_others_move) {
    const struct {
        struct model_config config;
        const char *pattern;
        int optimizer;
        bool recompute;
    } cases[] = {
        {config_of("mhc_lite"), "wte|ln_", 0, false},
        {config_of("mhc_lite"), "^transformer\\.h\\.[0-9]+\\.(attn|mlp)\\.", 0, true},
        /* half of a GEMM, and a weight without its bias */
        {config_of("rc"), "c_gate|attn\\.c_proj\\.weight", 1, false},
        {config_of("mudd"), "attn|mlp", 0, false}, /* layers with several inputs */
        {config_of("shc"), "wpe", 1, false},
        {untied(), "wte", 0, false},
        {untied(), "lm_head\\.weight", 0, false},
        {untied(), "wte|lm_head|wpe", 0, false},
        {with_value_embeds(), "value_embed", 0, false},
        {with_value_embeds(), "ve_gate|lambda_x0", 1, false},
        {config_of("laurel"), "w_down|c_attn", 0, false},
        {config_of("krom"), "attn\\.c_|mlp\\.c_|wte|wpe|ln_", 0, true}, /* all but the connections */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        SMALL_MODEL model, whole;
        create(&model, &cases[i].config, cases[i].pattern, cases[i].optimizer, cases[i].recompute);
        create(&whole, &cases[i].config, NULL, cases[i].optimizer, cases[i].recompute);
        assert_other_gradients(&model, &whole);
        assert_frozen_stay(&model, cases[i].pattern);
    }
}

/* With weights and states in bf16, and a weight that has a gradient since its bias is trained. */
UNIT_TEST(frozen_weights_of_bf16_stay_too) {
    for (int optimizer = 0; optimizer_at((size_t)optimizer); optimizer++) {
        const char *const pattern = "wte|h\\.0\\.mlp|attn\\.c_proj\\.weight";
        const struct model_config config = config_of("shc");
        const struct gpt_options options = {.type = ELEMENT_BF16,
                                            .optimizer = {.optimizer = optimizer,
                                                          .freeze = (char *)(uintptr_t)pattern,
                                                          .moments = ELEMENT_BF16,
                                                          .master = ELEMENT_BF16}};
        SMALL_MODEL model;
        small_model_create_planned(&model, compute, &config, &options);
        small_model_randomise(&model, 3);
        assert_frozen_stay(&model, pattern);
    }
}

/* Tables in 16 bits although no parameter has lost its fp32 copy: all of them are trained. */
UNIT_TEST(tables_are_read_in_the_type_of_their_kernels) {
    const struct model_config configs[] = {config_of("rc"), with_value_embeds()};
    for (size_t i = 0; i < COUNT(configs); i++) {
        float losses[2];
        for (int narrow = 0; narrow < 2; narrow++) {
            const struct gpt_options options = {.type = ELEMENT_BF16,
                                                .optimizer = {.frozen_weights =
                                                                  narrow ? FROZEN_BF16 : FROZEN_AS_OTHERS}};
            SMALL_MODEL model;
            small_model_create_planned(&model, compute, &configs[i], &options);
            small_model_randomise(&model, 3);
            losses[narrow] = small_model_backward(&model, (struct gpt_pass){.dropout = false});
        }
        assert_float_equal(losses[0], losses[1], 0.01f * losses[0]);
    }
}

/* Those that take too long: the first one takes the C library's regexec hours; one asks for a limit of its own. */
UNIT_TEST(patterns_that_cannot_be_meant_or_take_too_long_are_refused) {
    static const char invalid[] = "is not a valid regular expression: ",
                      slow[] = "cannot be compared with names, a simpler expression is needed: ";
    static char long_one[2000];
    memset(long_one, 'w', sizeof long_one - 1);
    static const struct {
        const char *pattern, *why;
    } cases[] = {
        {"(wte", "freeze = (wte is not a valid regular expression: "},
        {"\x1b[31m(", "freeze = \\x1b[31m( is not a valid regular expression: "},
        {"(((w{9,99}){9,99}){9,99}){9,99}", invalid},
        {long_one, "at most 1000 bytes"},
        {"hc_", "matches no parameter: names are like transformer.wte.weight"},
        {"t", "matches all parameters: nothing would be trained"},
        {"((((((((((((((((((((.+)+)+)+)+)+)+)+)+)+)+)+)+)+)+)+)+)+)+)+)+[0-9][0-9]", slow},
        {"(.+)+[0-9]{5}", slow},
        {"(*LIMIT_MATCH=4000000000)(.+)+\\d\\d\\d", slow},
        {"(a|(?R))*b", slow},
    };
    struct model_config config = config_of("rc");
    require(model_config_check(&config));
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct parameters parameters;
        parameters_create(&config, &parameters);
        assert_error(frozen_mark(&parameters, cases[i].pattern), cases[i].why);
        parameters_release(&parameters);
    }
}

/* Braces and references to groups: c_attn, c_proj, ... */
UNIT_TEST(whole_expressions_are_taken) {
    static const struct {
        const char *pattern, *frozen, *other;
    } cases[] = {{"h\\.\\d{1,2}\\.ln_1", "transformer.h.1.ln_1.weight", "transformer.ln_f.weight"},
                 {"(t)\\1n\\.c_proj", "transformer.h.0.attn.c_proj.weight", "transformer.h.0.mlp.c_proj.weight"},
                 {"^(?!.*(attn|mlp))", "transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"}};
    const struct model_config config = config_of("rc");
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct parameters parameters;
        parameters_create(&config, &parameters);
        require(frozen_mark(&parameters, cases[i].pattern));
        assert_true(parameters_find(&parameters, cases[i].frozen)->frozen);
        assert_false(parameters_find(&parameters, cases[i].other)->frozen);
        parameters_release(&parameters);
    }
}

/* What is not trained lies behind the others, and there is no memory for its gradient and states. */
UNIT_TEST(frozen_tables_have_neither_gradients_nor_states) {
    for (int optimizer = 0; optimizer_at((size_t)optimizer); optimizer++) {
        const struct model_config config = config_of("mhc");
        SMALL_MODEL model;
        create(&model, &config, "wte|h\\.0\\.(attn|mlp)\\.|h\\.1\\.mlp\\.c_gate", optimizer, false);
        const struct parameters *parameters = &model.gpt.parameters;
        uint64_t others = 0, untrained = 0;
        for (size_t i = 0; i < parameters->count; i++) {
            const struct parameter *parameter = &parameters->table[i];
            const bool half = strstr(parameter->name, "h.1.mlp.c_gate") != NULL; /* c_fc needs its gradient */
            assert_int_equal(parameter->without_gradient, parameter->frozen && parameter->lowp_only && !half);
            assert_int_equal(parameter->without_gradient, parameter->offset >= parameters->gradients_end);
            untrained += parameter->without_gradient;
            others += !parameter->without_gradient && !parameter->matrices[0] ? parameter->elements : 0;
        }
        assert_int_equal(untrained, 6); /* wte, c_attn, attn.c_proj, c_gate, c_fc, mlp.c_proj */
        assert_int_equal(parameters->weights->bytes, parameters->elements * sizeof(float));
        assert_int_equal(parameters->gradients->bytes, parameters->gradients_end * sizeof(float));
        assert_int_equal(parameters->states[0]->bytes, parameters->gradients_end * sizeof(float));
        assert_true(parameters->states[1]->bytes <= parameters->gradients_end * sizeof(float));
        assert_true(parameters->states[1]->bytes >= others * sizeof(float));
    }
}

UNIT_TEST(muon_has_scratch_for_what_it_updates) {
    static const char *const patterns[] = {"wte", "mlp", "attn|mlp"}; /* matrices of mlp are the largest */
    uint64_t bytes[COUNT(patterns)];
    for (size_t i = 0; i < COUNT(patterns); i++) {
        const struct model_config config = config_of("mhc");
        SMALL_MODEL model;
        create(&model, &config, patterns[i], 1, false);
        bytes[i] = ((const struct muon_scratch *)model.gpt.scratch.of_optimizer)->x[0]->bytes;
    }
    assert_true(bytes[0] > bytes[1] && bytes[1] > bytes[2]);
}

/* By two for each weight, of the GEMM that would compute its gradient; tables that are only looked up have none. */
UNIT_TEST(frozen_weights_take_fewer_flops) {
    const struct model_config config = untied();
    SMALL_MODEL model, whole;
    create(&model, &config, "wte|wpe|lm_head|attn", 0, false);
    create(&whole, &config, NULL, 0, false);
    double untrained = 0.0;
    for (size_t i = 0; i < model.gpt.parameters.count; i++) {
        const struct parameter *parameter = &model.gpt.parameters.table[i];
        const bool multiplied = strstr(parameter->name, "attn.c_") || strstr(parameter->name, "lm_head");
        untrained += parameter->without_gradient && multiplied ? (double)parameter->elements : 0.0;
    }
    assert_true(untrained > 0.0);
    assert_float_equal(gpt_flops_per_token(&whole.gpt) - gpt_flops_per_token(&model.gpt), 2.0 * untrained, 0.5);
}

/* ---- rates of groups, and of what a connection adds */

enum group { EMBEDDINGS, HEAD, SCALARS, MATRICES, OTHERS, ADDED, GROUPS };

/* By name, rank and table, where src/model/adamw.c looks at offsets. */
static enum group group_of(const struct parameter *parameter) {
    if (strstr(parameter->name, ".wte.") || strstr(parameter->name, ".wpe.")) {
        return EMBEDDINGS;
    }
    if (strncmp(parameter->name, "lm_head.", 8) == 0) {
        return HEAD;
    }
    return parameter->rank < 2 ? SCALARS : parameter->matrices[0] ? MATRICES : OTHERS;
}

/* A step leaves a group whose rate is zero to the bit, and moves all others but alpha_res. */
static void check_group(struct small_model *model, const struct optimizer_settings *settings, enum group group) {
    const struct parameters *parameters = &model->gpt.parameters;
    FREED float *before = small_model_read(model, parameters->weights);
    small_model_step(model, settings, 0);
    FREED float *after = small_model_read(model, parameters->weights);
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        const bool added = strstr(parameter->name, ".hc_") != NULL;
        const bool zero = group == ADDED ? added : group != OTHERS && group_of(parameter) == group;
        assert_int_equal(parameter->auxiliary, added);
        if (is_same(parameter, before, after) != (zero || parameter_is_alpha_res(parameter))) {
            fail_msg("rate of group %d is zero: %s", (int)group, parameter->name);
        }
    }
}

/* alpha_res is frozen all the time, where decay would move it. */
UNIT_TEST(groups_whose_rate_is_zero_stay) {
    struct optimizer_settings settings[GROUPS] = {usual, usual, usual, usual, usual, usual};
    struct model_config config = config_of("mhc");
    config.tie_embeddings = false;
    settings[EMBEDDINGS].embed_learning_rate = 0.0;
    settings[HEAD].head_learning_rate = 0.0;
    settings[SCALARS].scalar_learning_rate = 0.0;
    settings[MATRICES].muon_learning_rate = 0.0;
    settings[ADDED].new_learning_rate = 0.0;
    for (int optimizer = 0; optimizer_at((size_t)optimizer); optimizer++) {
        const struct gpt_options options = {
            .optimizer = {.optimizer = optimizer, .muon_dtype = MUON_FP32, .freeze_alpha_res = true}};
        SMALL_MODEL model;
        small_model_create_planned(&model, compute, &config, &options);
        small_model_randomise(&model, 5);
        for (enum group group = 0; group < GROUPS; group++) {
            if (optimizer == 1 || group != MATRICES) {
                check_group(&model, &settings[group], group);
            }
        }
    }
}

SMALL_MODEL_TEST_MAIN(compute)
