/* The frame of a model: what its residual connection does around the branches, and where the streams begin and
 * end. Each kind is a file, frame_<name>.c, and a row of the table below, which rows of
 * src/variants/residual.c name; gpt.c calls it in the order of the model and knows nothing of how it works.
 *
 *     embedding -> streams of sublayer 0
 *     begin
 *     of each sublayer:  enter   streams -> mix.normed, the branch's input (attention may have three)
 *                        branch  mix.output
 *                        leave   -> streams of the next sublayer, or what x0_lambdas then make them of: frame_next
 *     top       streams of the last sublayer -> gpt->final, the input of the output layer
 *
 * and backward in reverse. Sublayers are numbered 0 .. 2 n_layer - 1; the number 2 n_layer stands for the top,
 * whose `struct sublayer` has no branch. Functions that are NULL do nothing. leave and the enter that follows may
 * be one kernel (frame_is_fused in operations.h). frame_parts.h has what several frames share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buffer;
struct gpt;
struct model_config;
struct parameter_builder;
struct sublayer;

/* Numbers that a frame computes for each token and that users may look at: hc_probe writes them as a tensor
 * [B, T, shape]. They are in a buffer of floats or of the activations' type [N, row], from
 * `first` of each row on, or with row 0 the same for all tokens; the next call of `values` may write to it. */
struct frame_value {
    char name[32]; /* "h_pre.3" of sublayer 3, "h_gate.top" */
    const struct buffer *buffer;
    size_t row, first;
    unsigned rank; /* of shape: 1 or 2 */
    uint64_t shape[2];
};

enum { FRAME_MOST_VALUES = 4 }; /* of a sublayer */

struct frame {
    const char *name;
    bool reads_output; /* its backward pass reads mix.output: training keeps that of every sublayer */
    /* The gradients of sublayer i + 1 are complete after leave_backward of sublayer i; else after enter_backward of
     * i + 1. Those of sublayer 0 are complete after its enter_backward in either case. */
    bool completes_next;

    /* These two add the parameters of a sublayer, or of the top, to the table: the norm before the branch or the
     * output layer, and what is in hc_attn, hc_mlp or hc_head. builder->prefix and builder->sublayer are set. */
    void (*add_norm)(struct parameter_builder *builder, int64_t sublayer);
    void (*add_parameters)(struct parameter_builder *builder, int64_t sublayer);

    /* Refuses settings with which the frame cannot begin as the same function as a plain model, whose streams are
     * all equal (src/checkpoint/weights.h). -1 with an error; NULL: there are none. */
    int (*check_upcycling)(const struct model_config *config);

    /* These put buffers on the memory plan: of the whole model first, then of each sublayer and of the top in their
     * order, then what one sublayer uses after the other. gpt->frame_state is the frame's own; gpt_release frees it
     * as one block. A sublayer's struct begins as a copy of the one a layer before, so layers share what is planned
     * for the first of them only. */
    void (*plan)(struct gpt *gpt);
    void (*plan_sublayer)(struct gpt *gpt, struct sublayer *sublayer);
    void (*plan_scratch)(struct gpt *gpt);
    uint64_t (*largest_matrix)(const struct gpt *gpt); /* elements of the largest one that its GEMMs touch */
    int (*create)(struct gpt *gpt);                    /* once buffers exist: fills tables. -1 with an error */

    /* All of these launch. */
    void (*begin)(struct gpt *gpt); /* once in a forward pass, after the embedding */
    /* Called after x0_lambdas have written mix.streams of a layer's first sublayer. NULL: nothing to do. */
    void (*weighed)(struct gpt *gpt, const struct sublayer *sublayer);
    void (*enter)(struct gpt *gpt, const struct sublayer *sublayer);
    void (*leave)(struct gpt *gpt, const struct sublayer *sublayer);
    void (*top)(struct gpt *gpt);

    /* Backward pass of top: gpt->d_final -> scratch.d_streams, the gradient of the last streams. */
    void (*top_backward)(struct gpt *gpt);
    /* Backward pass of leave, as far as the branch needs it: returns d_output, computed from scratch.d_streams, the
     * gradient of the next sublayer's streams. */
    const struct buffer *(*leave_backward)(struct gpt *gpt, const struct sublayer *sublayer);
    /* Backward pass of enter, and the rest of that of leave: scratch.d_normed and scratch.d_streams of the next
     * sublayer become scratch.d_streams of this one, in place; adds the gradients of parameters. */
    void (*enter_backward)(struct gpt *gpt, const struct sublayer *sublayer);
    /* Completes the gradients of a sublayer's parameters that enter_backward has not summed yet; with NULL those of
     * all sublayers in one launch, after the last enter_backward. */
    void (*finish_backward)(struct gpt *gpt, const struct sublayer *sublayer);

    /* Describes what the last forward pass has computed in a sublayer, or at the top, where the mode keeps it
     * (GPT_ANALYSIS, GPT_TRAINING without recompute). Returns how many values there are. */
    size_t (*values)(const struct gpt *gpt, int64_t sublayer, struct frame_value values[FRAME_MOST_VALUES]);
};

/* The table: FRAME(name) stands for frame_<name> in frame_<name>.c. */
#define FRAMES(FRAME)                                                                                              \
    FRAME(mixed)                                                                                                   \
    FRAME(early)                                                                                                   \
    FRAME(gated)                                                                                                   \
    FRAME(attnres)                                                                                                 \
    FRAME(dar)                                                                                                     \
    FRAME(laurel)                                                                                                  \
    FRAME(mudd)                                                                                                    \
    FRAME(plain)

#define FRAME_DECLARATION(name) extern const struct frame frame_##name;
FRAMES(FRAME_DECLARATION)

/* The frame of a config's residual connection; NULL: there is none of that name. */
const struct frame *frame_of(const struct model_config *config);
