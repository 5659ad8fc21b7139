/* The folders that a model's weights come from, and loading them: one folder, of a checkpoint or of Hugging Face's
 * transformers; or for a model with an adapter that of its base model, that of the adapter, and what was trained
 * beside it.
 *
 * Upcycling: a plain model (rc; ours or Hugging Face's) goes on with another residual connection, and at first
 * computes the same function, to rounding. All streams begin as the plain model's one. They stay equal, since rows
 * of H_res sum to 1 and each gets the branch's output once (H_post = 1); branches and the top read them with
 * weights that sum to 1. The weights differ by sublayer, so that training parts the streams. docs/pretrained.md
 * describes it. */
#pragma once

#include "runtime/files/checksum.h"
#include "src/model/gpt.h"

struct model_files {
    char *folder;    /* the folder that the user named; it has config.json */
    char *base;      /* the folder with the base's weights; equals `folder` unless base.json names another */
    char *adapter;   /* the folder of the adapter; NULL: none */
    int64_t trained; /* tensors in `folder` that were trained beside its adapter; 0 for other folders */
    char checksum[CHECKSUM_SIZE]; /* SHA-256 of the base's weights; "": not known */
    bool is_verified;             /* the base's weights have this checksum */
    struct model_config plain;    /* of the base, as read */
    struct model_config config;   /* of the model */
};

/* Reads the configs. `folder` is a model's, or a checkpoint of a run with an adapter, whose base.json names the
 * base model; `base` is its folder now if it has moved, else NULL. `adapter` is PEFT's folder, or such a
 * checkpoint, for the model in `folder`; NULL: none. -1 with an error; model_files_close is needed then, too. */
int model_files_open(const char *folder, const char *adapter, const char *base, struct model_files *files);
void model_files_close(struct model_files *files);

/* Computes the checksum of the base's weights, which reads all of them. They must be those that base.json names, if
 * there is one. */
int model_files_verify(struct model_files *files);

/* Whether the folder is a checkpoint of a run with an adapter. */
bool model_files_has_adapter(const char *folder);

/* Completes the settings of the residual connection: stream_reduce = auto becomes head, with which a plain model
 * can go on. Refuses, in words, settings with which the function would be another. The other settings are the
 * plain model's. */
int upcycle_check(struct model_config *config);

/* Loads the weights, and verifies those of a base that base.json names unless that has been done. The config of gpt
 * differs from files->config at most in the residual connection and in its adapter. What the folders lack has first
 * values: adapters that begin, and what upcycling adds; random ones depend on the seed. Marks the parameters that
 * differ from the base's. -1 with an error, which leaves a part of the weights written. */
int model_files_load(struct model_files *files, uint64_t seed, struct gpt *gpt);

/* ---- its weights one by one, on the host, with the adapter merged: W + s B A */

struct model_reader;

/* The parameters are the model's, with its adapter; they, config and files must live as long. The caller closes
 * *opened, also on failure. Verifies as model_files_load does. */
int model_reader_open(struct model_files *files, const struct model_config *config,
                      const struct parameters *parameters, struct model_reader **opened);
void model_reader_close(struct model_reader *reader);

/* Reads elements [first, first + count), to values [count], of one of the parameters, which is neither an adapter's
 * nor new; with `transposed`, of its transpose: see weights_read. */
int model_reader_read(struct model_reader *reader, const struct parameter *parameter, bool transposed,
                      uint64_t first, uint64_t count, float *values);
