/* The weights in a model's folder, tensor by tensor in the layout of the parameter table: of a checkpoint, or of
 * Hugging Face's GPT-2, whose linear layers are transposed (Conv1D) and whose names may lack "transformer.".
 * No device is needed. */
#ifndef HC_SRC_WEIGHTS_H
#define HC_SRC_WEIGHTS_H

#include "runtime/files/safetensors.h"
#include "src/model/parameters.h"

#define WEIGHTS_FILE "model.safetensors"

struct weights;

/* Opens <folder>/model.safetensors and checks it: every parameter of the model must be there with its shape, and
 * nothing else. The config, as read from the folder, says whether it is Hugging Face's: there the buffers of
 * attention masks are passed over, an lm_head.weight must equal the token embedding, and that may have fewer rows
 * than the model. The parameters must live as long. On success *opened is the caller's (weights_close). */
int weights_open(const char *folder, const struct model_config *config, const struct parameters *parameters,
                 struct weights **opened);
void weights_close(struct weights *weights);

/* Elements [first, first + count) of a parameter. Rows of the token embedding beyond those in the file are the mean
 * of the rows in it, so that the logit of an added token is the mean of the logits. */
int weights_read(struct weights *weights, const struct parameter *parameter, uint64_t first, uint64_t count,
                 float *values);

/* Whether Hugging Face has a parameter of an rc model as [in, out]. */
bool weights_is_transposed(const struct parameter *parameter);

/* to [columns, rows] from `from` [rows, columns]. */
void weights_transpose(uint64_t rows, uint64_t columns, const float *from, float *to);

/* ---- pieces that optimizer.safetensors shares */

/* The tensor of this name, with the parameter's shape. */
int weights_find(const struct safetensors *file, const char *name, const struct parameter *parameter,
                 const struct tensor_info **info);

/* An error unless the file at `path` has so many tensors. */
int weights_check_count(const struct safetensors *file, const char *path, size_t count);

#endif
