/* The files of an adapter (LoRA), as PEFT has them, and which model it belongs to. docs/exchange.md describes
 * them. */
#pragma once

#include "runtime/files/checksum.h"
#include "runtime/files/safetensors.h"
#include "src/model/parameters.h"

#define ADAPTER_FILE        "adapter_model.safetensors"
#define ADAPTER_CONFIG_FILE "adapter_config.json"
#define ADAPTER_BASE_FILE   "base.json"

/* Reads <folder>/adapter_config.json: sets config->lora, for this model. -1 with an error that names the key where
 * it is of another kind than LoRA as lora.h has it; config->lora has changed then, too. */
int adapter_config_read(const char *folder, struct model_config *config);

/* The same from parsed JSON. */
int adapter_config_parse(const json_t *json, struct model_config *config);

/* Writes <folder>/adapter_config.json. `base` is the base model's folder, as PEFT will look for it. */
int adapter_config_write(const char *folder, const struct model_config *config, const char *base);

/* PEFT's name of a parameter whose `adapter` is set; heap memory. */
char *adapter_tensor_name(const struct model_config *config, const struct parameter *parameter);

/* <folder>/base.json: the folder of the base model, heap memory, NULL on failure; the SHA-256 of its weights in
 * hex, of which reading checks the length alone; and how many tensors were trained beside the adapter, which are in
 * <folder>/model.safetensors. */
int adapter_base_read(const char *folder, char **base, char checksum[CHECKSUM_SIZE], int64_t *trained);
int adapter_base_write(const char *folder, const char *base, const char *checksum, int64_t trained);
