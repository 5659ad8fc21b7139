/* The operations of src/operations/operations.h in plain C and double precision, written from the papers' formulas:
 * what the kernels are held to. Slow and literal on purpose; nothing here follows the kernels' algorithms.
 *
 * Shapes as in src/operations/operations.h: N tokens, S streams, C channels; all matrices row-major. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Dropout's factor of one element: 0 with probability rate, else 1 / (1 - rate). */
double reference_dropout(float rate, uint64_t key, uint64_t row, uint32_t element);

/* A norm over the channels: of the model's kind (enum norm) and epsilon. */
struct reference_norm {
    int kind;
    double epsilon;
    const double *gain, *bias; /* NULL: 1, and none */
};

/* y = (x - mean) / sqrt(variance + epsilon) * gain + bias; of an RMSNorm x / sqrt(mean square + epsilon) * gain.
 * statistics: mean or 0, and 1 / sqrt(...); NULL: not wanted. */
void reference_norm(const struct reference_norm *norm, size_t width, const double *x, double *y,
                    double *statistics);

/* One token: u = sum_s pre_s x_s, normed = norm(u). h NULL: S = 1 and pre = 1. */
void reference_width_mix(const struct reference_norm *norm, size_t streams, size_t channels, const double *x,
                         const double *h, double *normed, double *statistics);

/* One token: mixed_i = sum_j res_ij x_j + post_i output. h NULL: mixed = x + output. */
void reference_depth_mix(size_t streams, size_t channels, const double *x, const double *h, const double *output,
                         double *mixed);

/* The residual connection `gated` around one branch, or with post NULL at the top. Parameters: gain [S C] (NULL:
 * 0), down [S C, rank], up [rank, S C], post [S C, S]. */
struct reference_gates {
    size_t streams, channels, rank;
    double epsilon;
    const double *gain, *down, *up, *post;
};

/* One token of fractions x [S, C / S] with the S (2 S + 1) numbers h = pre | post | res: u_i = sum_j pre_ij x_j,
 * and mixed_i = sum_j res_ij x_j + post_i output_i. */
void reference_fractions_read(size_t fractions, size_t channels, const double *x, const double *h, double *u);
void reference_fractions_write(size_t fractions, size_t channels, const double *x, const double *h,
                               const double *output, double *mixed);

/* One token: what the gates read of its streams x [S, C], u [C], and the weights s [S] of the output. */
void reference_gates_read(const struct reference_gates *gates, const double *x, double *u, double *s);

/* One token: the weights [heads, count] of states s_i [C], which are the softmax of <query, g s_i> / rms(s_i), and
 * mixed [C], the sum of states with them. Each head sums over its own of the channels, but in the rms, and mixes
 * these. gain NULL: g = 1. */
struct reference_depth {
    size_t count, channels;
    size_t heads; /* 0: 1 */
    const double *gain, *query;
    double epsilon; /* added to the mean square */
};
void reference_depth_read(const struct reference_depth *depth, const double *const *states, double *weights,
                          double *mixed);

/* log sum exp over `count` numbers `stride` apart */
double reference_log_sum_exp(const double *x, size_t count, size_t stride);

double reference_dot(size_t count, const double *a, const double *b);

struct reference_attention {
    size_t batch, sequence, heads, kv_heads, head_size;
    double scale; /* of scores; 0: 1 / sqrt(D) */
    float dropout;
    uint64_t key, first_row;
};

/* qkv [B, T, (H + 2 K) D] -> y [B, T, H, D], lse [B, H, T]; the T x T matrix of each head is formed. Query head h
 * reads key head h K / H, K = kv_heads. */
void reference_attention(const struct reference_attention *shape, const double *qkv, double *y, double *lse);

/* What q and k become before attention: with `normed` an RMSNorm with gains [D], or NULL for 1; then RoPE unless
 * theta is 0. */
struct reference_head_rows {
    size_t heads, kv_heads, head_size;
    bool normed;
    const double *q_gain, *k_gain;
    double epsilon, theta;
    double fraction; /* of the pairs, those that turn; 0: all */
};

/* One token at a position: qkv [(H + 2 K) D] -> changed, where v is as it was. */
void reference_head_rows(const struct reference_head_rows *shape, size_t position, const double *qkv,
                         double *changed);

/* Keys and values [rows, kv_heads, capacity, head_size] of sequences that are generated. */
struct reference_cache {
    size_t heads, kv_heads, head_size, capacity;
    double scale; /* as above */
    double *keys, *values;
};

/* One token's k and v of qkv [(H + 2 K) D] to a position; and its q over positions 0 .. position -> y [H, D]. */
void reference_cache_put(const struct reference_cache *cache, size_t row, size_t position, const double *qkv);
void reference_cache_attend(const struct reference_cache *cache, size_t row, size_t position, const double *qkv,
                            double *y);

/* The exact one, and the approximation by tanh. */
double reference_gelu(double x);
/* x [rows, columns] becomes (a I + b A + c A A) x with A = x x^T, so many times: coefficients are a, b, c. */
void reference_newton_schulz(size_t rows, size_t columns, int64_t steps, const float coefficients[3], double *x);

double reference_gelu_tanh(double x);
double reference_silu(double x);
double reference_relu2(double x);

/* s tanh(x / s), or of kind SOFTCAP_RSQRT s x / sqrt(x^2 + s^2); x for s = 0. */
double reference_capped(double s, int kind, double x);

/* -log softmax(logits)[target]; 0 for target -1. */
double reference_cross_entropy(size_t vocabulary, const double *logits, int32_t target);

struct reference_adamw {
    double rate, beta1, beta2, decay, clip, norm;
    int64_t step;
    double centre; /* that weights decay to */
};

/* One weight with its moments; `decay` of the settings is used as it is. */
void reference_adamw(const struct reference_adamw *settings, double gradient, double *weight, double *first,
                     double *second);
