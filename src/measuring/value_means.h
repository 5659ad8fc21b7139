/* Means over tokens of what a model's frame computes around each branch (src/model/frame.h): with which weights
 * sublayers read streams or earlier states, and with which they write. */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct gpt;

/* A value of one sublayer, or of the top. */
struct value_mean {
    char name[32]; /* as hc_probe writes it: "h_pre.3" */
    unsigned rank; /* of shape: 1 or 2 */
    uint64_t shape[2];
    double *sums; /* [shape], owned */
};

struct value_means {
    struct value_mean *values; /* owned */
    size_t count;
    uint64_t tokens; /* seen */
};

/* Adds the tokens of the last forward pass, mode GPT_ANALYSIS; the first time to a struct of zeros. A value with a
 * number for each channel, such as a gate, becomes the mean over channels. Waits. The caller frees it in any case.
 */
int value_means_add(struct value_means *means, struct gpt *gpt);
void value_means_free(struct value_means *means);

/* An object with an array for each name: [shape]. A new reference. */
json_t *value_means_json(const struct value_means *means);
