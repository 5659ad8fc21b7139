/* The tensors of DeepSeek-V4's hyper-connections, which are mhc without the norm's gain: written from a checkpoint,
 * and read into a model that is to begin with them. All numbers of a sublayer are in three tensors, here of n
 * streams of C channels:
 *
 *   fn    [2 n + n^2, n C]   rows w_pre^T, w_post^T, and at 2 n + j n + i column i n + j of w_res
 *   base  [2 n + n^2]        b_pre, b_post, b_res in the same order
 *   scale [3]                alpha_pre, alpha_post, alpha_res
 *
 * and those of the sum at the top, with stream_reduce = head, in hc_fn [n, n C], hc_base [n], hc_scale [1]. Their
 * names are those of transformers' modules, model.layers.<l>.attn_hc.fn, .ffn_hc.fn and model.hc_head.hc_fn. Files
 * to read may also have the names of DeepSeek's files, layers.<l>.hc_attn_fn, .hc_ffn_fn and hc_head_fn, and
 * "model." before any name or none. */
#pragma once

#include "src/checkpoint/weights.h"
#include "src/model/gpt.h"
#include <jansson.h>

/* 0 if the model's hyper-connections have these tensors; -1 with an error that names the setting that is against
 * it. */
int deepseek_v4_check(const struct model_config *config);

/* The keys of a config.json of theirs that are about hyper-connections; a new reference. */
json_t *deepseek_v4_config(const struct model_config *config);

/* Writes the tensors, F32, as a safetensors file. *elements becomes how many numbers they have. `parameters` are
 * those of `weights`. */
int deepseek_v4_write(const char *path, const struct model_config *config, const struct parameters *parameters,
                      struct weights *weights, uint64_t *elements);

/* Reads them into the model's weights; all others stay. `path` is a safetensors file, or a folder with
 * model.safetensors, or with an index of several files. Other tensors there are ignored, but not those of a layer,
 * or of a sum at the top, that the model has not. Nothing is changed unless all names and shapes are right. Waits.
 */
int deepseek_v4_load(const char *path, struct gpt *gpt);
