/* Instructions of whole warps: exchange between lanes, NVIDIA's matrix cores and copies to local memory; and, as
 * functions that kernels call, the matrix cores of AMD and Intel. Who holds which element is told by the vendors'
 * documents, named at each. Sums are made in double and rounded once: hardware rounds in ways of its own. */
#include "runtime/system/element.h"
#include "runtime/system/memory.h"
#include "tests/emulator/ptx_machine.h"
#include <string.h>

#define WORDS(i) ((union word *)(void *)(warp->registers + x->operands[i]))

/* Half `which` of a word, as a number. */
static float half_of(uint32_t word, unsigned which, enum element_type type) {
    return element_decode((uint16_t)(word >> 16 * which), type);
}

/* shfl.sync.bfly: the lane whose number differs in these bits. */
void execute_shuffle(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    uint32_t values[PTX_LANES_MOST];
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
static void mma(struct warp *warp, const struct instruction *x, enum element_type type) {
    enum { D = 0, A = 4, B = 8, C = 10 };
    float matrix_a[16][16], matrix_b[16][8];
    for (unsigned lane = 0; lane < 32; lane++) {
        const unsigned group = lane / 4, member = lane % 4;
        for (unsigned half = 0; half < 2; half++) {
            for (unsigned r = 0; r < 4; r++) {
                matrix_a[group + 8 * (r % 2)][2 * member + half + 8 * (r / 2)] =
                    half_of(WORDS(A + r)[lane].u, half, type);
            }
            for (unsigned r = 0; r < 2; r++) {
                matrix_b[2 * member + half + 8 * r][group] = half_of(WORDS(B + r)[lane].u, half, type);
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

void execute_mma_bf16(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    mma(warp, x, ELEMENT_BF16);
}

void execute_mma_fp16(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    mma(warp, x, ELEMENT_FP16);
}

/* ldmatrix.m8n8.x4, PTX ISA 9.7.13.4.15: lane l says where row l % 8 of matrix l / 8 is; register m of a lane gets
 * elements 2 (lane % 4) and the next one of row lane / 4 of matrix m, with .trans of its column. */
static void load_matrices(struct warp *warp, const struct instruction *x, bool transposes) {
    uint16_t matrices[4][8][8];
    for (unsigned lane = 0; lane < 32; lane++) {
        const char *row = memory_place(warp, x, lane, SPACE_SHARED, WORDS(4)[lane].u, 16, false);
        memcpy(matrices[lane / 8][lane % 8], row, 16);
    }
    for (unsigned lane = 0; lane < 32; lane++) {
        const unsigned major = lane / 4, minor = lane % 4 * 2;
        for (unsigned m = 0; m < 4; m++) {
            const uint16_t low = transposes ? matrices[m][minor][major] : matrices[m][major][minor];
            const uint16_t high = transposes ? matrices[m][minor + 1][major] : matrices[m][major][minor + 1];
            WORDS(m)[lane].u = (uint32_t)high << 16 | low;
        }
    }
}

void execute_ldmatrix(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    load_matrices(warp, x, false);
}

void execute_ldmatrix_transposed(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    load_matrices(warp, x, true);
}

/* ---- cp.async, PTX ISA 9.7.8.22: 16 bytes, of which the first ones come from global memory */

void execute_copy(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    for (unsigned lane = 0; lane < warp->count; lane++) {
        if (!(lanes & LANE_BIT(lane))) {
            continue;
        }
        const uint32_t to = WORDS(0)[lane].u, all = WORDS(2)[lane].u, bytes = WORDS(3)[lane].u;
        const uint64_t from = ((const union wide *)(const void *)(warp->registers + x->operands[1]))[lane].u;
        if (all != 16 || bytes > 16 || from % 16) {
            fault(warp, x, lane, "copies %u of %u bytes, or from an address that is not aligned to 16", bytes, all);
            return;
        }
        const char *source = bytes ? memory_place(warp, x, lane, SPACE_GLOBAL, from, bytes, false) : NULL;
        memory_reserve((void **)&warp->copies, &warp->copy_capacity, warp->copy_count + 1, sizeof *warp->copies);
        warp->copies[warp->copy_count++] =
            (struct copy){to, source, (uint8_t)lane, (uint8_t)bytes, false, warp->committed[lane]};
        copy_begins(warp, x, lane, to);
    }
}

/* A group holds all copies of the lane since the one before. */
void execute_copy_commit(struct warp *warp, const struct instruction *x, uint64_t lanes) {
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
        const bool is_due = copy.is_committed &&
                            copy.group + (uint64_t)WORDS(0)[copy.lane].u < warp->committed[copy.lane] &&
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

/* Who holds which elements of A [rows, k], B [k, n] and C [rows, n]. With block = lane / n, element i of a lane is
 *   of B:  (k_step block + i, lane % n)
 *   of A:  the same with rows and columns exchanged, if row_share is 0; else (i / row_share, lane row_share +
 *          i % row_share): so many neighbours of each row
 *   of C:  (block_rows block + element_rows i, lane % n) */
struct layout {
    unsigned n, k, shares_a, shares_b, sums; /* elements of a lane: of A, of B, of C */
    unsigned k_step, row_share, block_rows, element_rows;
};
struct place {
    unsigned row, column;
};
typedef struct place place_function(const struct layout *layout, unsigned lane, unsigned i);

static struct place place_in_b(const struct layout *layout, unsigned lane, unsigned i) {
    return (struct place){lane / layout->n * layout->k_step + i, lane % layout->n};
}

static struct place place_in_a(const struct layout *layout, unsigned lane, unsigned i) {
    const struct place mirrored = place_in_b(layout, lane, i);
    const unsigned share = layout->row_share;
    return share ? (struct place){i / share, lane * share + i % share}
                 : (struct place){mirrored.column, mirrored.row};
}

static struct place place_in_c(const struct layout *layout, unsigned lane, unsigned i) {
    return (struct place){lane / layout->n * layout->block_rows + i * layout->element_rows, lane % layout->n};
}

/* A matrix from the lanes' shares, argument `which` of the call. Elements that several lanes hold must be the same
 * in all of them. */
static void gather(struct warp *warp, const struct instruction *x, const struct layout *layout, unsigned which,
                   enum element_type type, float matrix[16][16]) {
    bool known[16][16] = {{false}};
    place_function *place = which == 1 ? place_in_a : place_in_b;
    const unsigned shares = which == 1 ? layout->shares_a : layout->shares_b;
    for (unsigned lane = 0; lane < warp->count; lane++) {
        for (unsigned i = 0; i < shares; i++) {
            const struct place at = place(layout, lane, i);
            const float value = element_of(warp, x, which, lane, i, type);
            if (known[at.row][at.column] && memcmp(&matrix[at.row][at.column], &value, sizeof value) != 0) {
                fault(warp, x, lane, "holds another element (%u, %u) of %c than other lanes", at.row, at.column,
                      which == 1 ? 'A' : 'B');
            }
            matrix[at.row][at.column] = value;
            known[at.row][at.column] = true;
        }
    }
}

/* result = A B + C. */
static void multiply(struct warp *warp, const struct instruction *x, const struct layout *layout,
                     enum element_type type) {
    float matrix_a[16][16], matrix_b[16][16];
    gather(warp, x, layout, 1, type, matrix_a);
    gather(warp, x, layout, 2, type, matrix_b);
    for (unsigned lane = 0; lane < warp->count; lane++) {
        for (unsigned i = 0; i < layout->sums; i++) {
            const struct place at = place_in_c(layout, lane, i);
            double sum = 0.0;
            for (unsigned k = 0; k < layout->k; k++) {
                sum += (double)matrix_a[at.row][k] * matrix_b[k][at.column];
            }
            element_set(warp, x, lane, i, (float)(sum + (double)element_of(warp, x, 3, lane, i, ELEMENT_FP32)));
        }
    }
}

/* AMD, "RDNA 3 Instruction Set Architecture", 7.9: all 16 elements along k, both halves of the wave the same; rows
 * of C in turn from the two halves. */
static const struct layout wmma = {
    .n = 16, .k = 16, .shares_a = 16, .shares_b = 16, .sums = 8, .block_rows = 1, .element_rows = 2};

/* AMD, "RDNA 4 Instruction Set Architecture", 7.12: each half of the wave has 8 of the 16 along k, and 8 rows of C.
 * */
static const struct layout wmma12 = {
    .n = 16, .k = 16, .shares_a = 8, .shares_b = 8, .sums = 8, .k_step = 8, .block_rows = 8, .element_rows = 1};

/* AMD, matrix instruction calculator, v_mfma_f32_16x16x16_f16 and _bf16_1k: each quarter of the wave has 4 of the
 * 16 along k, and 4 rows of C; v_mfma_f32_16x16x8_bf16: 2 of the 8 along k. */
static const struct layout mfma = {
    .n = 16, .k = 16, .shares_a = 4, .shares_b = 4, .sums = 4, .k_step = 4, .block_rows = 4, .element_rows = 1};
static const struct layout mfma8 = {
    .n = 16, .k = 8, .shares_a = 2, .shares_b = 2, .sums = 4, .k_step = 2, .block_rows = 4, .element_rows = 1};

/* Khronos, cl_intel_subgroup_matrix_multiply_accumulate, 8 rows: a lane has column `lane` of B and C, and of each
 * row of A one element in sub-groups of 16, two in those of 8. */
static const struct layout xmx16 = {
    .n = 16, .k = 16, .shares_a = 8, .shares_b = 16, .sums = 8, .row_share = 1, .element_rows = 1};
static const struct layout xmx8 = {
    .n = 8, .k = 16, .shares_a = 16, .shares_b = 16, .sums = 8, .row_share = 2, .element_rows = 1};

#define MULTIPLIER(name, layout, type)                                                                             \
    static void name(struct warp *warp, const struct instruction *x, uint64_t lanes) {                             \
        multiply(warp, x, layout, type);                                                                           \
    }
MULTIPLIER(wmma_bf16, &wmma, ELEMENT_BF16)
MULTIPLIER(wmma_fp16, &wmma, ELEMENT_FP16)
MULTIPLIER(wmma12_bf16, &wmma12, ELEMENT_BF16)
MULTIPLIER(wmma12_fp16, &wmma12, ELEMENT_FP16)
MULTIPLIER(mfma_bf16, &mfma, ELEMENT_BF16)
MULTIPLIER(mfma_fp16, &mfma, ELEMENT_FP16)
MULTIPLIER(mfma8_bf16, &mfma8, ELEMENT_BF16)
MULTIPLIER(xmx_bf16, warp->count == 8 ? &xmx8 : &xmx16, ELEMENT_BF16)
MULTIPLIER(xmx_fp16, warp->count == 8 ? &xmx8 : &xmx16, ELEMENT_FP16)

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

/* RDNA 3 ISA, DS_BPERMUTE_B32 and V_PERMLANEX16_B32: the lane of this number. */
static unsigned take_from(unsigned lane, uint32_t other) {
    return other;
}
static void take(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    exchange(warp, x, take_from);
}

/* cl_intel_subgroups: the lane whose number differs in these bits. */
static unsigned shuffle_from(unsigned lane, uint32_t bits) {
    return lane ^ bits;
}
static void shuffle_xor(struct warp *warp, const struct instruction *x, uint64_t lanes) {
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
        {"emulated_take", take},
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
