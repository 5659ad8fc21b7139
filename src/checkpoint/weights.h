/* The weights in a model's folder, tensor by tensor in the layout of the parameter table: those of a checkpoint, or
 * of Hugging Face's GPT-2, whose linear layers are transposed (Conv1D) and whose names may lack "transformer.". No
 * device is needed. */
#pragma once

#include "runtime/files/safetensors.h"
#include "src/model/parameters.h"

#define WEIGHTS_FILE "model.safetensors"

struct weights;

/* Opens <folder>/model.safetensors and checks it: every parameter of the model must be there with its shape, and
 * nothing else. The config, as read from the folder, says whether it is Hugging Face's. Then buffers of attention
 * masks are ignored, an lm_head.weight must equal the token embedding, and the embedding may have fewer rows than
 * the model. The parameters must live as long. The caller closes *opened, also on failure. */
int weights_open(const char *folder, const struct model_config *config, const struct parameters *parameters,
                 struct weights **opened);
void weights_close(struct weights *weights);

/* Reads elements [first, first + count) of a parameter; with `transposed`, in Hugging Face's layout. Rows of the
 * token embedding that the file lacks are the mean of its rows, so that the logit of an added token is the mean of
 * the logits. */
int weights_read(struct weights *weights, const struct parameter *parameter, bool transposed, uint64_t first,
                 uint64_t count, float *values);

/* ---- shared with other files of tensors */

/* A parameter's tensor, with the parameter's name; Hugging Face's linear layers have the shape [in, out]. */
struct tensor_info weights_tensor(const struct parameter *parameter, bool hugging_face);

/* The file's tensor of this name; NULL with an error if there is none or it has another shape. */
const struct tensor_info *weights_find(const struct safetensors *file, const struct tensor_info *wanted);

/* An error unless the file at `path` has so many tensors. */
int weights_check_count(const struct safetensors *file, const char *path, size_t count);
