/* Instructions of whole warps: exchange between lanes, NVIDIA's matrix cores and copies to local memory; and, as
 * functions that kernels call, the matrix cores of AMD and Intel. Who holds which element is told by the vendors'
 * documents, named at each. Sums are made in double and rounded once: hardware rounds in ways of its own. */
#include "runtime/system/array.h"
#include "runtime/system/element.h"
#include "runtime/system/memory.h"
#include "tests/emulator/ptx_machine.h"
#include <string.h>

#define WORDS(i) ((union word *)(void *)(warp->registers + x->operands[i]))

/* Half `which` of a word, as a number. */
static float half_of(uint32_t word, unsigned which, bool is_fp16) {
    return element_decode((uint16_t)(word >> 16 * which), is_fp16 ? ELEMENT_FP16 : ELEMENT_BF16);
}

/* shfl.sync.bfly: the lane whose number differs in these bits. */
void execute_shuffle(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    uint32_t values[PTX_LANES_MOST];
    (void)lanes;
    for (unsigned lane = 0; lane < warp->count; lane++) {
        values[lane] = WORDS(1)[(lane ^ WORDS(2)[lane].u) % warp->count].u;
    }
    for (unsigned lane = 0; lane < warp->count; lane++) {
        WORDS(0)[lane].u = values[lane];
    }
}

/* mma.m16n8k16, PTX ISA 9.7.13.4.8: with group = lane / 4 and member = lane % 4, half h of register r of
 *   A is element (group + 8 (r % 2), 2 member + h + 8 (r / 2)), of B element (2 member + h + 8 r, group);
 *   register r of C is element (group + 8 (r / 2), 2 member + r % 2). */
void execute_mma(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    enum { D = 0, A = 4, B = 8, C = 10 };
    float matrix_a[16][16], matrix_b[16][8];
    (void)lanes;
    for (unsigned lane = 0; lane < 32; lane++) {
        const unsigned group = lane / 4, member = lane % 4;
        for (unsigned half = 0; half < 2; half++) {
            for (unsigned r = 0; r < 4; r++) {
                matrix_a[group + 8 * (r % 2)][2 * member + half + 8 * (r / 2)] =
                    half_of(WORDS(A + r)[lane].u, half, x->is_fp16);
            }
            for (unsigned r = 0; r < 2; r++) {
                matrix_b[2 * member + half + 8 * r][group] = half_of(WORDS(B + r)[lane].u, half, x->is_fp16);
            }
        }
    }
    for (unsigned lane = 0; lane < 32; lane++) {
        for (unsigned r = 0; r < 4; r++) {
            const unsigned row = lane / 4 + 8 * (r / 2), column = lane % 4 * 2 + r % 2;
            double sum = 0.0;
            for (unsigned k = 0; k < 16; k++) {
                sum += (double)matrix_a[row][k] * matrix_b[k][column];
            }
            WORDS(D + r)[lane].f = (float)(sum + (double)WORDS(C + r)[lane].f);
        }
    }
}

/* ldmatrix.m8n8.x4, PTX ISA 9.7.13.4.15: lane l says where row l % 8 of matrix l / 8 is; register m of a lane gets
 * elements 2 (lane % 4) and the next one of row lane / 4 of matrix m, with .trans of its column. */
void execute_ldmatrix(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    uint16_t matrices[4][8][8];
    (void)lanes;
    for (unsigned lane = 0; lane < 32; lane++) {
        const char *row = memory_place(warp, x, lane, SPACE_SHARED, WORDS(4)[lane].u, 16, false);
        memcpy(matrices[lane / 8][lane % 8], row, 16);
    }
    for (unsigned lane = 0; lane < 32; lane++) {
        const unsigned major = lane / 4, minor = lane % 4 * 2;
        for (unsigned m = 0; m < 4; m++) {
            const uint16_t low = x->transposes ? matrices[m][minor][major] : matrices[m][major][minor];
            const uint16_t high = x->transposes ? matrices[m][minor + 1][major] : matrices[m][major][minor + 1];
            WORDS(m)[lane].u = (uint32_t)high << 16 | low;
        }
    }
}

/* ---- cp.async, PTX ISA 9.7.8.22: 16 bytes, of which the first ones come from global memory */

static uint64_t register_value(const struct warp *warp, const struct instruction *x, unsigned i, unsigned lane,
                               bool is_wide) {
    const char *place = warp->registers + x->operands[i];
    return is_wide ? ((const union wide *)(const void *)place)[lane].u
                   : ((const union word *)(const void *)place)[lane].u;
}

void execute_copy(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    for (unsigned lane = 0; lane < warp->count; lane++) {
        if (!(lanes & LANE_BIT(lane))) {
            continue;
        }
        const uint32_t to = (uint32_t)register_value(warp, x, 0, lane, false);
        const uint64_t from = register_value(warp, x, 1, lane, x->address_is_wide);
        const uint32_t bytes = (uint32_t)register_value(warp, x, 2, lane, false);
        if (bytes > 16 || from % 16) {
            fault(warp, x, lane, "copies %u bytes, or from an address that is not aligned to 16", bytes);
            return;
        }
        const char *source = bytes ? memory_place(warp, x, lane, SPACE_GLOBAL, from, bytes, false) : NULL;
        if (warp->copy_count == warp->copy_capacity) {
            warp->copy_capacity = warp->copy_capacity ? 2 * warp->copy_capacity : 256;
            warp->copies = memory_resize(warp->copies, warp->copy_capacity, sizeof *warp->copies);
        }
        warp->copies[warp->copy_count++] =
            (struct copy){to, source, (uint8_t)lane, (uint8_t)bytes, false, warp->committed[lane]};
        copy_begins(warp, x, lane, to);
    }
}

/* A group holds all copies of the lane since the one before. */
void execute_copy_commit(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    (void)x;
    for (size_t i = 0; i < warp->copy_count; i++) {
        warp->copies[i].is_committed |= (lanes & LANE_BIT(warp->copies[i].lane)) != 0;
    }
    for (unsigned lane = 0; lane < warp->count; lane++) {
        warp->committed[lane] += (lanes & LANE_BIT(lane)) != 0;
    }
}

/* Until at most so many of the lane's youngest groups are under way. */
void execute_copy_wait(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    size_t kept = 0;
    for (size_t i = 0; i < warp->copy_count; i++) {
        const struct copy copy = warp->copies[i];
        const bool is_due = copy.is_committed && copy.group + (uint64_t)x->offset < warp->committed[copy.lane] &&
                            (lanes & LANE_BIT(copy.lane));
        if (is_due) {
            copy_ends(warp, &copy);
        } else {
            warp->copies[kept++] = copy;
        }
    }
    warp->copy_count = kept;
}

/* ---- functions: arguments and results of a lane lie in its `call` memory */

static char *argument(struct warp *warp, const struct instruction *x, unsigned i, unsigned lane) {
    return warp->call + lane * warp->kernel->call_bytes + x->operands[i];
}

static float element_of(struct warp *warp, const struct instruction *x, unsigned i, unsigned lane, unsigned element,
                        enum element_type type) {
    return element_at(argument(warp, x, i, lane), element, type);
}

static void element_set(struct warp *warp, const struct instruction *x, unsigned lane, unsigned element,
                        float value) {
    memcpy(argument(warp, x, 0, lane) + element * sizeof value, &value, sizeof value);
}

/* Which elements of A [m, k], B [k, n] and C [m, n] a lane holds: of A and of B as many per lane. */
struct place {
    unsigned row, column;
};
struct layout {
    unsigned m, n, k, shares, sums; /* elements of a lane: of A (and B), of C */
    struct place (*a)(unsigned lane, unsigned i), (*b)(unsigned lane, unsigned i), (*c)(unsigned lane, unsigned i);
};

/* result = A B + C. Elements that several lanes hold must be the same in all of them. */
static void multiply(struct warp *warp, const struct instruction *x, const struct layout *layout, unsigned shares_b,
                     enum element_type type) {
    float matrix_a[16][16], matrix_b[16][16];
    bool known_a[16][16] = {{false}}, known_b[16][16] = {{false}};
    for (unsigned lane = 0; lane < warp->count; lane++) {
        for (unsigned i = 0; i < layout->shares; i++) {
            const struct place at = layout->a(lane, i);
            const float value = element_of(warp, x, 1, lane, i, type);
            if (known_a[at.row][at.column] && memcmp(&matrix_a[at.row][at.column], &value, sizeof value) != 0) {
                fault(warp, x, lane, "holds another element (%u, %u) of A than other lanes", at.row, at.column);
            }
            matrix_a[at.row][at.column] = value;
            known_a[at.row][at.column] = true;
        }
        for (unsigned i = 0; i < shares_b; i++) {
            const struct place at = layout->b(lane, i);
            const float value = element_of(warp, x, 2, lane, i, type);
            if (known_b[at.row][at.column] && memcmp(&matrix_b[at.row][at.column], &value, sizeof value) != 0) {
                fault(warp, x, lane, "holds another element (%u, %u) of B than other lanes", at.row, at.column);
            }
            matrix_b[at.row][at.column] = value;
            known_b[at.row][at.column] = true;
        }
    }
    for (unsigned lane = 0; lane < warp->count; lane++) {
        for (unsigned i = 0; i < layout->sums; i++) {
            const struct place at = layout->c(lane, i);
            double sum = 0.0;
            for (unsigned k = 0; k < layout->k; k++) {
                sum += (double)matrix_a[at.row][k] * matrix_b[k][at.column];
            }
            element_set(warp, x, lane, i, (float)(sum + (double)element_of(warp, x, 3, lane, i, ELEMENT_FP32)));
        }
    }
}

/* AMD, "RDNA 3 Instruction Set Architecture", 7.9: a lane has row lane % 16 of A and column lane % 16 of B, all 16
 * elements along k, the two halves of the wave the same; element i of C is (2 i + lane / 16, lane % 16). */
static struct place wmma_a(unsigned lane, unsigned i) {
    return (struct place){lane % 16, i};
}
static struct place wmma_b(unsigned lane, unsigned i) {
    return (struct place){i, lane % 16};
}
static struct place wmma_c(unsigned lane, unsigned i) {
    return (struct place){2 * i + lane / 16, lane % 16};
}
static const struct layout wmma = {16, 16, 16, 16, 8, wmma_a, wmma_b, wmma_c};

/* AMD, "RDNA 4 Instruction Set Architecture", 7.12: each half of the wave has 8 of the 16 along k, and 8 rows of C.
 * */
static struct place wmma12_a(unsigned lane, unsigned i) {
    return (struct place){lane % 16, lane / 16 * 8 + i};
}
static struct place wmma12_b(unsigned lane, unsigned i) {
    return (struct place){lane / 16 * 8 + i, lane % 16};
}
static struct place wmma12_c(unsigned lane, unsigned i) {
    return (struct place){lane / 16 * 8 + i, lane % 16};
}
static const struct layout wmma12 = {16, 16, 16, 8, 8, wmma12_a, wmma12_b, wmma12_c};

/* AMD, matrix instruction calculator, v_mfma_f32_16x16x16_f16 and _bf16_1k: each quarter of the wave has 4 of the
 * 16 along k, and 4 rows of C. */
static struct place mfma_a(unsigned lane, unsigned i) {
    return (struct place){lane % 16, lane / 16 * 4 + i};
}
static struct place mfma_b(unsigned lane, unsigned i) {
    return (struct place){lane / 16 * 4 + i, lane % 16};
}
static struct place mfma_c(unsigned lane, unsigned i) {
    return (struct place){lane / 16 * 4 + i, lane % 16};
}
static const struct layout mfma = {16, 16, 16, 4, 4, mfma_a, mfma_b, mfma_c};

/* The same, v_mfma_f32_16x16x8_bf16: 2 of the 8 along k. */
static struct place mfma8_a(unsigned lane, unsigned i) {
    return (struct place){lane % 16, lane / 16 * 2 + i};
}
static struct place mfma8_b(unsigned lane, unsigned i) {
    return (struct place){lane / 16 * 2 + i, lane % 16};
}
static const struct layout mfma8 = {16, 16, 8, 2, 4, mfma8_a, mfma8_b, mfma_c};

/* Khronos, cl_intel_subgroup_matrix_multiply_accumulate, 8 rows: a lane has column `lane` of B and C, B in pairs
 * along k, and of each row of A in sub-groups of 16 element k = lane, in those of 8 elements 2 lane and 2 lane + 1.
 * */
static struct place xmx16_a(unsigned lane, unsigned i) {
    return (struct place){i, lane};
}
static struct place xmx8_a(unsigned lane, unsigned i) {
    return (struct place){i / 2, 2 * lane + i % 2};
}
static struct place xmx_b(unsigned lane, unsigned i) {
    return (struct place){i, lane};
}
static struct place xmx_c(unsigned lane, unsigned i) {
    return (struct place){i, lane};
}
static const struct layout xmx16 = {8, 16, 16, 8, 8, xmx16_a, xmx_b, xmx_c};
static const struct layout xmx8 = {8, 8, 16, 16, 8, xmx8_a, xmx_b, xmx_c};

#define MULTIPLIER(name, layout, shares_b, type)                                                                   \
    static void name(struct warp *warp, const struct instruction *x, uint64_t lanes) {                             \
        (void)lanes;                                                                                               \
        multiply(warp, x, layout, shares_b, type);                                                                 \
    }
MULTIPLIER(wmma_bf16, &wmma, 16, ELEMENT_BF16)
MULTIPLIER(wmma_fp16, &wmma, 16, ELEMENT_FP16)
MULTIPLIER(wmma12_bf16, &wmma12, 8, ELEMENT_BF16)
MULTIPLIER(wmma12_fp16, &wmma12, 8, ELEMENT_FP16)
MULTIPLIER(mfma_bf16, &mfma, 4, ELEMENT_BF16)
MULTIPLIER(mfma_fp16, &mfma, 4, ELEMENT_FP16)
MULTIPLIER(mfma8_bf16, &mfma8, 2, ELEMENT_BF16)
MULTIPLIER(xmx_bf16, warp->count == 8 ? &xmx8 : &xmx16, 16, ELEMENT_BF16)
MULTIPLIER(xmx_fp16, warp->count == 8 ? &xmx8 : &xmx16, 16, ELEMENT_FP16)

/* The lane with another number gets its value from the lane that `from` names. */
static void exchange(struct warp *warp, const struct instruction *x,
                     unsigned (*from)(unsigned lane, uint32_t how)) {
    uint32_t values[PTX_LANES_MOST], how;
    for (unsigned lane = 0; lane < warp->count; lane++) {
        memcpy(&how, argument(warp, x, 2, lane), sizeof how);
        memcpy(&values[lane], argument(warp, x, 1, from(lane, how) % warp->count), sizeof *values);
    }
    for (unsigned lane = 0; lane < warp->count; lane++) {
        memcpy(argument(warp, x, 0, lane), &values[lane], sizeof *values);
    }
}

/* RDNA 3 ISA, DS_SWIZZLE_B32, bit mask mode, among 32 lanes: and, or, xor masks of 5 bits each. */
static unsigned swizzle_from(unsigned lane, uint32_t mode) {
    const unsigned within = ((lane & mode & 31) | (mode >> 5 & 31)) ^ (mode >> 10 & 31);
    return (lane & ~31U) | within;
}
static void swizzle(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    (void)lanes;
    exchange(warp, x, swizzle_from);
}

/* cl_intel_subgroups: the lane whose number differs in these bits. */
static unsigned shuffle_from(unsigned lane, uint32_t bits) {
    return lane ^ bits;
}
static void shuffle_xor(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    (void)lanes;
    exchange(warp, x, shuffle_from);
}

execute_function *function_find(const char *name) {
    static const struct {
        const char *name;
        execute_function *execute;
    } functions[] = {
        {"emulated_wmma_bf16", wmma_bf16},
        {"emulated_wmma_fp16", wmma_fp16},
        {"emulated_wmma12_bf16", wmma12_bf16},
        {"emulated_wmma12_fp16", wmma12_fp16},
        {"emulated_mfma_bf16", mfma_bf16},
        {"emulated_mfma_fp16", mfma_fp16},
        {"emulated_mfma8_bf16", mfma8_bf16},
        {"emulated_swizzle", swizzle},
        {"intel_sub_group_bf16_bf16_matrix_mad_k16", xmx_bf16},
        {"intel_sub_group_f16_f16_matrix_mad_k16", xmx_fp16},
        {"intel_sub_group_shuffle_xor", shuffle_xor},
    };
    for (size_t i = 0; i < COUNT(functions); i++) {
        if (strcmp(functions[i].name, name) == 0) {
            return functions[i].execute;
        }
    }
    return NULL;
}
