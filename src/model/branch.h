/* The two branches of a layer, attention and MLP. Each is an input projection, an operation of its own, and an
 * output projection:
 *
 *     normed [N, C] -> in_proj_out [N, in_proj_width C] -> out_proj_in [N, out_proj_width C] -> output [N, C]
 *
 * branches.c has the table and the functions. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct buffer;
struct gpt;
struct sublayer;

struct branch {
    const char *norm, *in, *out;           /* names of its parameters in checkpoints, after the layer's prefix */
    const char *hyper_connection;          /* prefix of the parameters of the hyper-connection around it */
    int64_t in_proj_width, out_proj_width; /* multiples of C */
    bool attends;                          /* is attention: keeps lse, and in generation keys and values */
    bool recomputed; /* the backward pass recomputes out_proj_in, so that all layers share one buffer for it, unless
                      * gpt->keeps_activation */

    /* Computes in_proj_out and out_proj_in from sublayer->mix.normed. */
    void (*forward)(struct gpt *gpt, const struct sublayer *sublayer);
    /* Computes scratch.d_normed and the gradients of both projections from d_output. */
    void (*backward)(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_output);
};

enum { BRANCHES = 2 };
extern const struct branch branches[BRANCHES]; /* in the order of a layer */

/* Computes sublayer->mix.output from sublayer->mix.normed, dropout included. */
void branch_forward(struct gpt *gpt, const struct sublayer *sublayer);

/* Computes scratch.d_normed from d_output [N, C], which dropout overwrites, and the gradients of the branch's
 * parameters. */
void branch_backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_output);
