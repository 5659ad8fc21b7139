/* The weights in a model's folder, tensor by tensor in the layout of the parameter table: those of a checkpoint, or
 * of one of Hugging Face's models, whose tensors have other names and layouts. No device is needed but to load a
 * model. */
#pragma once

#include "runtime/files/checksum.h"
#include "runtime/files/safetensors.h"
#include "src/model/gpt.h"

#define WEIGHTS_FILE "model.safetensors"

struct weights;

/* Opens <folder>/model.safetensors and checks it: every parameter of the model must be there with its shape, and
 * nothing else. The config, as read from the folder, says whether it is Hugging Face's. Then several files may
 * divide the weights, as model.safetensors.index.json says, buffers of older versions are ignored, the
 * lm_head.weight of a tied model must equal the token embedding, and the vocabulary may have fewer rows than the
 * model. Config and parameters must live as long. The caller closes *opened, also on failure. */
int weights_open(const char *folder, const struct model_config *config, const struct parameters *parameters,
                 struct weights **opened);
void weights_close(struct weights *weights);

/* Reads elements [first, first + count) of a parameter; with `transposed`, of its transpose, which must be one
 * tensor. Rows of the vocabulary that the file lacks are the mean of its rows, so that the logit of an added token
 * is the mean of the logits. */
int weights_read(struct weights *weights, const struct parameter *parameter, bool transposed, uint64_t first,
                 uint64_t count, float *values);

/* A tensor [rows, columns] that is in memory transposed, since it is read in pieces. Begin with all zero; the
 * caller frees `values`. */
struct transposed_tensor {
    const struct tensor_info *info; /* NULL: none */
    float *values;                  /* [columns, rows] */
};

/* Reads elements [first, first + count) of the transpose of a tensor, which is held until another one is wanted. */
int weights_read_transposed(struct transposed_tensor *held, const struct safetensors *file,
                            const struct tensor_info *info, uint64_t first, uint64_t count, float *values);

/* The SHA-256 of the file, or of the files' ones if there are several. */
int weights_checksum(const char *folder, char digest[CHECKSUM_SIZE]);

/* ---- shared with other files of tensors */

/* A parameter's tensor in our files, with the parameter's name; and those of all parameters, heap memory. */
struct tensor_info weights_tensor(const struct parameter *parameter);
struct tensor_info *weights_tensors(const struct parameters *parameters);

/* The tensor `info` if it was found, and has the shape that is wanted; NULL with an error. */
const struct tensor_info *weights_require(const struct tensor_info *info, const struct tensor_info *wanted);

/* The tensors of a parameter in Hugging Face's files, in its order: queries, keys and values may be three. */
enum { HUGGING_FACE_MOST_PARTS = 3, HUGGING_FACE_MOST_NAME = 128 };
struct hugging_face_tensors {
    size_t count;
    bool transposed; /* the only part is [in, out], as in GPT-2 (Conv1D) */
    char names[HUGGING_FACE_MOST_PARTS][HUGGING_FACE_MOST_NAME];
    struct tensor_info infos[HUGGING_FACE_MOST_PARTS]; /* their names are not set */
};
void hugging_face_tensors(const struct model_config *config, const struct parameter *parameter,
                          struct hugging_face_tensors *tensors);
