/* The token embedding's gradient in two pieces, joined, is the one in one piece, bit for bit; and before they are
 * joined the first piece is complete when the listener is told of the top. */
#include "src/model/gpt.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 75, ROOM = 37 };

static struct compute *compute;

static void create(struct small_model *model, size_t rows) {
    struct model_config config = small_model_config("mhc", 3);
    config.vocab_size = VOCABULARY;
    small_model_create_planned(model, compute, &config, &(struct gpt_options){.row_gradients = rows});
    small_model_randomise(model, 5);
}

/* What a listener keeps of the token embedding's gradient. */
struct witness {
    struct small_model *model;
    float *early; /* as it is when the top is done; NULL before */
};

static void look(void *context, int64_t sublayer) {
    struct witness *witness = context;
    if (sublayer == BRANCHES * witness->model->gpt.config.n_layer) {
        assert_null(witness->early);
        witness->early = small_model_read(witness->model, witness->model->gpt.parameters.gradients);
    }
}

/* The words of the batch, and some more, as if other ranks had them. */
static void mark(const struct small_model *model, uint32_t *words, size_t more) {
    row_gradients_mark(&model->gpt, words);
    for (size_t id = 0; id < VOCABULARY && more; id += 7) {
        more -= !(words[id / 32] >> id % 32 & 1);
        words[id / 32] |= 1U << id % 32;
    }
}

static size_t wte_bytes(const struct small_model *model) {
    return VOCABULARY * (size_t)model->gpt.config.n_embd * sizeof(float);
}

/* Two passes whose gradients add up, with rows apart in the second one or not; the sums, and what a listener saw.
 */
static float *two_passes(struct small_model *model, const uint32_t *words, struct witness *witness) {
    struct gpt *gpt = &model->gpt;
    gpt_zero(gpt);
    for (int pass = 0; pass < 2; pass++) {
        gpt_forward(gpt, (struct gpt_pass){.iteration = pass});
        gpt_loss(gpt, 0.5f, true);
        if (words && pass == 1) {
            row_gradients_begin(gpt, words);
        }
        gpt_backward(gpt, pass == 1 ? &(struct gpt_listener){look, witness} : NULL);
    }
    FREED float *apart = small_model_read(model, gpt->parameters.gradients);
    if (words) {
        const uint64_t first = gpt->parameters.token_embedding;
        assert_memory_equal(apart + first, witness->early + first, wte_bytes(model));
    }
    row_gradients_join(gpt);
    assert_int_equal(gpt->row_gradients.count, 0);
    return small_model_read(model, gpt->parameters.gradients);
}

/* Also where other ranks have tokens, which add nothing. */
UNIT_TEST(pieces_join_to_the_whole) {
    for (size_t more = 0; more <= 5; more += 5) {
        SMALL_MODEL model;
        uint32_t words[(VOCABULARY + 31) / 32] = {0};
        create(&model, ROOM);
        struct witness whole = {&model, NULL}, pieces = {&model, NULL};
        mark(&model, words, more);
        FREED float *expected = two_passes(&model, NULL, &whole), *found = two_passes(&model, words, &pieces);
        const uint64_t first = model.gpt.parameters.token_embedding;
        assert_memory_not_equal(pieces.early + first, expected + first, wte_bytes(&model));
        assert_memory_equal(found, expected, model.gpt.parameters.elements * sizeof *found);
        free(whole.early);
        free(pieces.early);
    }
}

UNIT_TEST(too_many_tokens_are_not_kept_apart) {
    uint32_t all[(VOCABULARY + 31) / 32];
    SMALL_MODEL model;
    memset(all, 0xff, sizeof all);
    all[2] = (1U << VOCABULARY % 32) - 1;
    create(&model, 1000);
    assert_int_equal(model.gpt.row_gradients.most, VOCABULARY / 2);
    row_gradients_begin(&model.gpt, all);
    assert_int_equal(model.gpt.row_gradients.count, 0);
}

SMALL_MODEL_TEST_MAIN(compute)
