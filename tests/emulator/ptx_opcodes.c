/* What instructions compute: a function each, and the table by which the parser finds them. */
#include "runtime/system/array.h"
#include "runtime/system/element.h"
#include "tests/emulator/ptx_machine.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- registers, and loops over the lanes that take part */

#define WORDS(i) ((union word *)(void *)(warp->registers + x->operands[i]))
#define WIDES(i) ((union wide *)(void *)(warp->registers + x->operands[i]))

#define EACH_LANE(statement)                                                                                       \
    do {                                                                                                           \
        const unsigned count = warp->count;                                                                        \
        if (lanes == warp->full) {                                                                                 \
            for (unsigned l = 0; l < count; l++) {                                                                 \
                statement;                                                                                         \
            }                                                                                                      \
        } else {                                                                                                   \
            for (unsigned l = 0; l < count; l++) {                                                                 \
                if (lanes & LANE_BIT(l)) {                                                                         \
                    statement;                                                                                     \
                }                                                                                                  \
            }                                                                                                      \
        }                                                                                                          \
    } while (0)

/* bfe: bits of a value from one of them on; only eight bits of either number count. */
static uint64_t field(uint64_t value, uint32_t from, uint32_t bits) {
    from &= 255;
    bits &= 255;
    const uint64_t shifted = from < 64 ? value >> from : 0;
    return bits < 64 ? shifted & (((uint64_t)1 << bits) - 1) : shifted;
}

/* The same of 32 bits, where the highest of the field, or of the value, stands for all above it. */
static int32_t signed_field(uint32_t value, uint32_t from, uint32_t bits) {
    from &= 255;
    bits &= 255;
    const uint32_t top = from + bits > 32 ? 31 : from + bits - 1;
    uint32_t result = bits > 0 && value >> top & 1 ? UINT32_MAX : 0;
    for (uint32_t i = 0; i < bits && from + i <= 31 && i <= 31; i++) {
        result = (result & ~((uint32_t)1 << i)) | (value >> (from + i) & 1) << i;
    }
    return (int32_t)result;
}

static double saturated(double value, double least, double most) {
    return isnan(value) ? 0.0 : value < least ? least : value > most ? most : value;
}

#define REGISTER_w          word
#define REGISTER_h          word
#define REGISTER_p          word
#define REGISTER_d          wide
#define REGISTER__          word /* none */
#define REGISTER(letter, i) (union letter *)(void *)(warp->registers + x->operands[i])

/* a, b and c stand for the lane's sources up to the end of the comparisons. */
#define FUNCTION(name, td, ta, tb, tc, to, value)                                                                  \
    static void name(struct warp *warp, const struct instruction *x, uint64_t lanes) {                             \
        union td *D = REGISTER(td, 0);                                                                             \
        const union ta *A = REGISTER(ta, 1);                                                                       \
        const union tb *B = REGISTER(tb, 2);                                                                       \
        const union tc *C = REGISTER(tc, 3);                                                                       \
        (void)A, (void)B, (void)C;                                                                                 \
        EACH_LANE(D[l].to = (value));                                                                              \
    }
#define a A[l]
#define b B[l]
#define c C[l]

#define OPCODE(name, d, s, t, u, to, value)                                                                        \
    FUNCTION(op_##name, REGISTER_##d, REGISTER_##s, REGISTER_##t, REGISTER_##u, to, value)
#include "tests/emulator/ptx_compute.h"
#undef OPCODE

/* Two words to a wide one and back: mov.b64 %rd, {%r1, %r2}; and two halves. */
FUNCTION(join_words, wide, word, word, word, u, (uint64_t)b.u << 32 | a.u)
FUNCTION(join_halves, word, word, word, word, u, (uint16_t)a.u | b.u << 16)
static void split_wide(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    union word *low = WORDS(0), *high = WORDS(1);
    const union wide *whole = WIDES(2);
    EACH_LANE(const uint64_t value = whole[l].u; low[l].u = (uint32_t)value; high[l].u = (uint32_t)(value >> 32));
}
static void split_word(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    union word *low = WORDS(0), *high = WORDS(1);
    const union word *whole = WORDS(2);
    EACH_LANE(const uint32_t value = whole[l].u; low[l].u = (uint16_t)value; high[l].u = value >> 16);
}

static void execute_nothing(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    (void)warp, (void)x, (void)lanes;
}

static const struct opcode opcodes[] = {
#define OPCODE(name, d, s, t, u, to, value) {#name, op_##name, #d #s #t #u, FLOW_NEXT},
#include "tests/emulator/ptx_compute.h"
    /* those for which lanes meet or end, and copies */
    {"bar_sync", execute_nothing, "w", FLOW_GROUP},
    {"bar_warp_sync", execute_nothing, "w", FLOW_WARP_FENCE},
    {"barrier_sync", execute_nothing, "w", FLOW_GROUP},
    {"cp_async_cg_shared_global", execute_copy, "wdww", FLOW_NEXT},
    {"cp_async_commit_group", execute_copy_commit, "", FLOW_NEXT},
    {"cp_async_wait_group", execute_copy_wait, "w", FLOW_NEXT},
    {"exit", execute_nothing, "", FLOW_EXIT},
    {"ldmatrix_sync_aligned_m8n8_x4_shared_b16", execute_ldmatrix, "wwwww", FLOW_WARP},
    {"ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16", execute_ldmatrix_transposed, "wwwww", FLOW_WARP},
    {"mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32", execute_mma_bf16, "wwwwwwwwwwwwww", FLOW_WARP},
    {"mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32", execute_mma_fp16, "wwwwwwwwwwwwww", FLOW_WARP},
    {"ret", execute_nothing, "", FLOW_EXIT},
    {"shfl_sync_bfly_b32", execute_shuffle, "wwwww", FLOW_WARP},
};

struct opcode opcode_find(const char *name) {
    char joined[64]; /* by _ */
    snprintf(joined, sizeof joined, "%s", name);
    for (char *dot = joined; (dot = strchr(dot, '.'));) {
        *dot = '_';
    }
    for (size_t i = 0; i < COUNT(opcodes); i++) {
        if (strcmp(opcodes[i].name, joined) == 0) {
            return opcodes[i];
        }
    }
    return (struct opcode){.execute = NULL};
}

struct opcode opcode_joining(const char *name, bool splits) {
    if (strcmp(name, "mov.b64") == 0) {
        return (struct opcode){name, splits ? split_wide : join_words, splits ? "wwd" : "dww", FLOW_NEXT};
    }
    if (strcmp(name, "mov.b32") == 0) {
        return (struct opcode){name, splits ? split_word : join_halves, splits ? "hhw" : "whh", FLOW_NEXT};
    }
    return (struct opcode){.execute = NULL};
}

/* ---- comparisons */

#define RELATION(p, q) ((p) < (q) ? IS_LESS : (p) == (q) ? IS_EQUAL : (p) > (q) ? IS_GREATER : IS_UNORDERED)
#define COMPARE(name, tb, value)                                                                                   \
    static void name(struct warp *warp, const struct instruction *x, uint64_t lanes) {                             \
        union word *D = WORDS(0);                                                                                  \
        const union tb *A = REGISTER(tb, 1);                                                                       \
        const union tb *B = REGISTER(tb, 2);                                                                       \
        EACH_LANE(D[l].u = (x->relations & RELATION(value(a), value(b))) != 0);                                    \
    }
#define AS_U32(v) ((v).u)
#define AS_S32(v) ((v).s)
#define AS_F32(v) ((v).f)
#define AS_U16(v) ((uint16_t)(v).u)
#define AS_S16(v) ((int16_t)(v).u)
COMPARE(compare_u32, word, AS_U32)
COMPARE(compare_s32, word, AS_S32)
COMPARE(compare_f32, word, AS_F32)
COMPARE(compare_u16, word, AS_U16)
COMPARE(compare_s16, word, AS_S16)
#define AS_F16(v) element_decode((uint16_t)(v).u, ELEMENT_FP16)
COMPARE(compare_f16, word, AS_F16)
COMPARE(compare_u64, wide, AS_U32)
COMPARE(compare_s64, wide, AS_S32)

#undef a
#undef b
#undef c

execute_function *comparison_find(const char *type, char *letter) {
    static const struct {
        const char *type;
        execute_function *execute;
        char letter;
    } known[] = {{"u32", compare_u32, 'w'}, {"b32", compare_u32, 'w'}, {"s32", compare_s32, 'w'},
                 {"f32", compare_f32, 'w'}, {"f16", compare_f16, 'h'}, {"u16", compare_u16, 'h'},
                 {"b16", compare_u16, 'h'}, {"s16", compare_s16, 'h'}, {"u64", compare_u64, 'd'},
                 {"b64", compare_u64, 'd'}, {"s64", compare_s64, 'd'}};
    for (size_t i = 0; i < COUNT(known); i++) {
        if (strcmp(known[i].type, type) == 0) {
            *letter = known[i].letter;
            return known[i].execute;
        }
    }
    return NULL;
}

/* ---- loads and stores */

/* A register takes what memory has, extended to its own size. */
static void put(char *registers, uint32_t place, bool is_wide, unsigned lane, const char *from, size_t bytes,
                bool is_signed) {
    uint64_t value = 0;
    memcpy(&value, from, bytes);
    if (is_signed && bytes < 8 && value >> (8 * bytes - 1)) {
        value |= UINT64_MAX << 8 * bytes;
    }
    if (is_wide) {
        ((union wide *)(void *)(registers + place))[lane].u = value;
    } else {
        ((union word *)(void *)(registers + place))[lane].u = (uint32_t)value;
    }
}

static uint64_t address_of(const struct warp *warp, const struct instruction *x, unsigned operand, unsigned lane) {
    const uint64_t offset = (uint64_t)x->offset;
    if (!x->has_base) {
        return offset;
    }
    const char *place = warp->registers + x->operands[operand];
    return offset + (x->address_is_wide ? ((const union wide *)(const void *)place)[lane].u
                                        : ((const union word *)(const void *)place)[lane].u);
}

void execute_load(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    const size_t bytes = (size_t)x->bytes * x->count;
    EACH_LANE(const char *from =
                  memory_place(warp, x, l, (enum space)x->space, address_of(warp, x, x->count, l), bytes, false);
              for (unsigned i = 0; i < x->count; i++) {
                  put(warp->registers, x->operands[i], x->holds_wide[i], l, from + i * x->bytes, x->bytes,
                      x->is_signed);
              });
}

void execute_store(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    const size_t bytes = (size_t)x->bytes * x->count;
    EACH_LANE(char *to =
                  memory_place(warp, x, l, (enum space)x->space, address_of(warp, x, x->count, l), bytes, true);
              for (unsigned i = 0; i < x->count; i++) {
                  const char *from = warp->registers + x->operands[i] +
                                     l * (x->holds_wide[i] ? sizeof(union wide) : sizeof(union word));
                  memcpy(to + i * x->bytes, from, x->bytes);
              });
}
