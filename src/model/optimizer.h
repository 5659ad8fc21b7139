/* Optimizers: a row each, in adamw.c and muon.c. The step clips gradients by their global norm. A next one, such as
 * Lion, is src/model/lion.c and cl/lion.cl, with a row of `programs` in src/operations/kernels.c, its launch in
 * src/operations/optimizers.c, its name in the table of optimizer.c and its options in optimizer_settings.h ("An
 * optimizer" in CONTRIBUTING.md). */
#pragma once

#include "runtime/options/options.h"
#include "src/model/gpt.h"
#include "src/model/optimizer_settings.h"

enum { OPTIMIZER_MOST_STATES = 2 };

/* What an optimizer has for parameters of matrices (parameter.matrices), if it updates these whole. */
struct optimizer_matrices {
    const char *state; /* that it keeps for them, instead of states[0] and [1] */
    /* What the update of a matrix costs, in any unit; the settings have a type (set_type). */
    double (*cost)(const struct optimizer_settings *settings, uint64_t rows, uint64_t columns);
    /* The type in which it multiplies matrices, where activations are of type `activations`. If the settings leave
     * it open, that depends on the device. */
    enum element_type (*type)(const struct optimizer_settings *settings, const struct compute *compute,
                              enum element_type activations);
    void (*set_type)(struct optimizer_settings *settings, enum element_type type);
};

struct optimizer {
    const char *name;
    const char *updates; /* "all weights": which, for --help */
    /* Its states, of type `moments` for each weight, by the prefix of their tensors in checkpoints. The memory
     * plan, checkpoints and --shard-optimizer follow from this list; `step` has only to honour
     * range.states_first. */
    const char *states[OPTIMIZER_MOST_STATES];
    /* Appends rows for its own options. Their names are those of no other option, of other optimizers either. */
    void (*options)(struct optimizer_settings *settings, struct option_table *table);
    int (*check)(const struct optimizer_settings *settings); /* refuses, in words, its options; NULL: none */
    /* Sets what its kernels are built for, or refuses, in words, the model's type. NULL: `shape` stays. */
    int (*describe)(const struct gpt *gpt, struct operation_shape *shape);
    void (*plan)(struct gpt *gpt); /* plans its buffers, in gpt->scratch.of_optimizer; NULL: it has none */
    /* Updates a range of weights, weights_lowp and states from the gradients. The kernels unscale and clip them
     * and apply weight decay, as the top of cl/adamw.cl says; gpt->gradient_norm has their norm, unscaled. If
     * that is not finite the kernels change nothing. Parameters that are `frozen` stay, and some have rates of
     * their own: step_groups in adamw.c. Launches. */
    void (*step)(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
                 struct optimizer_range range);
    /* Then `step` updates the parameters of matrices that begin in its range. NULL: it treats all weights alike. */
    const struct optimizer_matrices *matrices;
    const struct optimizer *others; /* whose step updates other parameters; it has options, too. NULL: its own */
};

/* The optimizer of this number, NULL beyond the last; all names, "adamw|..."; and in words what they update. */
const struct optimizer *optimizer_at(size_t number);
const char *optimizer_names(void);
const char *optimizer_help(void);

/* The type in which the settings' optimizer multiplies matrices; fp32 if it multiplies none. */
enum element_type optimizer_matrix_type(const struct optimizer_settings *settings, const struct compute *compute,
                                        enum element_type activations);

/* The prefix of a state's tensor in checkpoints: state 0, 1 of this parameter. NULL: it has no such state. */
const char *optimizer_state(const struct optimizer *optimizer, const struct parameter *parameter, size_t state);

/* Where the state has what belongs to this place of the arena. A state that matrices lack has no place for them. */
uint64_t optimizer_state_offset(const struct optimizer *optimizer, const struct parameters *parameters,
                                size_t state, uint64_t offset);

/* How many steps have changed the parameter's states by the end of `iteration` iterations of the run: all that were
 * not skipped, but for those in which it was frozen. What is frozen and has lost its states has 0. */
int64_t optimizer_steps(const struct gpt *gpt, const struct parameter *parameter, int64_t iteration);

/* Whether the optimizer has the option, itself or by `others`. */
bool optimizer_has_option(const struct optimizer *optimizer, const char *name);

/* Refuses settings that contradict each other; those of other optimizers may. */
int optimizer_check(const struct optimizer_settings *settings);

/* One step with the gradients in the arena; gpt->gradient_norm becomes their norm before clipping. Launches. */
void optimizer_step(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration);

/* The step on a range of the arena, with the norm in gpt->gradient_norm. Launches. */
void optimizer_update(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
                      struct optimizer_range range);

/* ---- for the files of the optimizers */

/* The rows of the table. muon updates matrices inside the model (parameter.matrices) by their momentum, which is
 * made orthogonal, and leaves all other parameters to adamw. */
extern const struct optimizer optimizer_adamw, optimizer_muon;

/* Refuses a setting that is negative, unless it is -1, which stands for what it `follows`. */
int optimizer_check_following(const char *name, double value, const char *follows);

/* The key of a step's random bits, which round what is kept in bf16: of the seed of the last pass. */
uint64_t rounding_key(const struct gpt *gpt, int64_t iteration);

/* The steps of a parameter that is trained, by the end of `iteration` iterations: bias correction counts them. */
int64_t trained_steps(const struct gpt *gpt, const struct parameter *parameter, int64_t iteration);
