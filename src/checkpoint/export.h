/* Exports a checkpoint, or a folder of Hugging Face's, as a folder for transformers or for PyTorch alone. It needs
 * no device, and memory for a few copies of the largest linear layer only. docs/exchange.md describes the
 * folders. */
#pragma once

#include "runtime/system/embedded_text.h"
#include "src/model/model_config.h"

/* Files that exports for PyTorch get beside the weights: model.py. */
extern const struct embedded_text export_files[];

enum export_format {
    EXPORT_HUGGING_FACE, /* transformers.GPT2LMHeadModel: rc only */
    EXPORT_TORCH,        /* with model.py: all variants */
};

struct export_settings {
    char *adapter, *base;   /* as in model_files_open; NULL: none */
    bool merge;             /* the adapter is added to the weights; a model without one has none to merge */
    char *checkpoint, *out; /* folders */
    int format;             /* enum export_format */
    int64_t vocab_size;     /* rows of the embedding to keep; 0: all, for transformers without GPT-2's padding */
};

/* Writes the folder `out`, whole or not at all. An earlier export there is replaced; anything else there is an
 * error. A request to stop (runtime/system/interrupt.h) is an error too. Prints on stdout what it has written. */
int export_run(const struct export_settings *settings);
