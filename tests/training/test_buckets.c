/* Buckets of the arena: together they are what is trained, and none goes out before all of it is complete. */
#include "runtime/system/array.h"
#include "src/model/optimizer.h"
#include "src/training/data_parallel.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <stdlib.h>
#include <string.h>

static bool has(const struct bucket *bucket, uint64_t element) {
    return element >= bucket->range.offset && element - bucket->range.offset < bucket->range.count;
}

/* Every element that is trained is in one bucket, and no other is in any. */
static void assert_partition(const struct buckets *buckets, const struct parameters *parameters) {
    FREED uint8_t *times = calloc(parameters->elements, sizeof *times);
    for (size_t i = 0; i < buckets->count; i++) {
        const struct element_range range = buckets->table[i].range;
        assert_true(range.offset + range.count <= parameters->gradients_end);
        for (uint64_t k = 0; k < range.count; k++) {
            times[range.offset + k]++;
        }
    }
    for (uint64_t i = 0; i < parameters->gradients_end; i++) {
        assert_int_equal(times[i], 1);
    }
}

/* A sublayer's gradients are complete after those of the sublayers above it. */
static void assert_complete(const struct buckets *buckets, const struct parameters *parameters) {
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        for (size_t k = 0; k < buckets->count && !parameter->without_gradient; k++) {
            const struct bucket *bucket = &buckets->table[k];
            if (has(bucket, parameter->offset) || has(bucket, parameter->offset + parameter->elements - 1)) {
                assert_true(bucket->complete_after <= parameter->sublayer);
                assert_true(!bucket->is_embedding || parameter->offset == parameters->token_embedding);
            }
        }
    }
}

static void check(const struct model_config *config, const char *freeze, uint64_t elements, int optimizer) {
    const struct optimizer_settings sharing = {.optimizer = optimizer, .muon_steps = 5};
    struct parameters parameters;
    struct buckets buckets;
    parameters_create(config, &parameters);
    assert_int_equal(frozen_mark(&parameters, freeze), 0);
    buckets_create(&parameters, elements, optimizer < 0 ? NULL : &sharing, &ranks_alone, &buckets);
    assert_partition(&buckets, &parameters);
    assert_complete(&buckets, &parameters);
    buckets_release(&buckets);
    parameters_release(&parameters);
}

UNIT_TEST(buckets_are_complete_when_they_go_out) {
    static const char *const residuals[] = {"rc",   "mhc",   "shc",    "gated", "attnres",
                                            "mudd", "dense", "laurel", "dar",   "frac"};
    static const char *const frozen[] = {NULL, "wte|wpe", "wte|wpe|h\\.0\\.attn", "wte|wpe|h\\.[01]\\.(attn|mlp)",
                                         "wte|wpe|\\.attn\\.|\\.mlp\\."};
    for (size_t residual = 0; residual < COUNT(residuals); residual++) {
        const bool is_plain = strcmp(residuals[residual], "rc") == 0;
        struct model_config config = small_model_config(residuals[residual], is_plain ? 1 : 4);
        config.n_layer = 4;
        config.value_embeds = residual % 2 == 0;
        small_model_set_if_taken(&config, "x0_lambdas=true");
        small_model_set_if_taken(&config, "mudd_norm=prepost");
        require(model_config_check(&config));
        for (size_t i = 0; i < COUNT(frozen); i++) {
            for (uint64_t elements = 1; elements < (uint64_t)1 << 18; elements += elements / 4 + 64) {
                for (int optimizer = -1; optimizer < 2; optimizer++) {
                    check(&config, frozen[i], elements, optimizer);
                }
            }
        }
    }
}

UNIT_TEST_MAIN(NULL, NULL)
