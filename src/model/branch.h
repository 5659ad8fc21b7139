/* The two branches of a layer, attention and MLP. Each is a module: a file with its parameters, memory, forward and
 * backward pass, and a row of the table in gpt.c. It has an input projection, an operation of its own, and an
 * output projection, whose sizes its parameters give:
 *
 *     normed [N, C] -> in_proj_out [N, in.out] -> out_proj_in [N, out.in] -> output [N, C]
 *
 * A frame may give attention inputs of their own for keys and values: sublayer->key_input and value_input, whose
 * gradients attention then computes in scratch.d_key_input and d_value_input. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct buffer;
struct gpt;
struct parameter_builder;
struct sublayer;
struct sublayer_offsets;

struct branch {
    const char *norm;             /* name of its layer norm in checkpoints, after the layer's prefix */
    const char *hyper_connection; /* prefix of the parameters of the hyper-connection around it */
    bool recomputed; /* the backward pass recomputes out_proj_in, so that all layers share one buffer for it, unless
                      * gpt->keeps_activation */

    /* Adds both projections, at->in and at->out. */
    void (*add_parameters)(struct parameter_builder *builder, struct sublayer_offsets *at);
    /* These put what else it needs on the memory plan, by gpt_plan_floats and gpt_plan_activations; NULL: nothing.
     */
    void (*plan_activations)(struct gpt *gpt, struct sublayer *sublayer); /* as long as in_proj_out is kept */
    void (*plan_each)(struct gpt *gpt, struct sublayer *sublayer);        /* for each layer */
    void (*plan_cache)(struct gpt *gpt, struct sublayer *sublayer);       /* of generation, for each layer */
    void (*plan_scratch)(struct gpt *gpt);                                /* one for all layers */

    /* Computes in_proj_out and out_proj_in from sublayer->mix.normed. */
    void (*forward)(struct gpt *gpt, const struct sublayer *sublayer);
    /* Computes scratch.d_normed and the gradients of both projections from d_output. */
    void (*backward)(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_output);
};

extern const struct branch branch_attention, branch_mlp;

enum { BRANCHES = 2 };
extern const struct branch *const branches[BRANCHES]; /* in the order of a layer */

/* Puts a buffer with `per_token` floats, or activations, for every token on the model's memory plan. */
struct buffer *gpt_plan_floats(struct gpt *gpt, const char *group, int64_t per_token);
struct buffer *gpt_plan_activations(struct gpt *gpt, const char *group, int64_t per_token);
