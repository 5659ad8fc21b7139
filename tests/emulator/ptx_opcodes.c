/* What instructions compute: a function each, and the table by which the parser finds them. */
#include "runtime/system/array.h"
#include "runtime/system/element.h"
#include "tests/emulator/ptx_machine.h"
#include <math.h>
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

/* The lane's D = an expression of a, b and c, which stand for the lane's A, B and C up to the end of the
 * comparisons. */
#define FUNCTION(name, td, ta, tb, tc, to, expression)                                                             \
    static void name(struct warp *warp, const struct instruction *x, uint64_t lanes) {                             \
        union td *D = (union td *)(void *)(warp->registers + x->operands[0]);                                      \
        const union ta *A = (const union ta *)(void *)(warp->registers + x->operands[1]);                          \
        const union tb *B = (const union tb *)(void *)(warp->registers + x->operands[2]);                          \
        const union tc *C = (const union tc *)(void *)(warp->registers + x->operands[3]);                          \
        (void)A, (void)B, (void)C;                                                                                 \
        EACH_LANE(D[l].to = (expression));                                                                         \
    }
#define a A[l]
#define b B[l]
#define c C[l]

#define WORD(name, expression)  FUNCTION(name, word, word, word, word, u, expression)
#define FLOAT(name, expression) FUNCTION(name, word, word, word, word, f, expression)
#define WIDE(name, expression)  FUNCTION(name, wide, wide, wide, wide, u, expression)

/* ---- integers of 32 bits. Shifts by 32 or more give what shifting one by one would. */

WORD(move_word, a.u)
WORD(add_word, a.u + b.u)
WORD(subtract_word, a.u - b.u)
WORD(multiply_word, a.u *b.u)
WORD(multiply_add_word, a.u *b.u + c.u)
WORD(multiply_high_u32, (uint32_t)((uint64_t)a.u *b.u >> 32))
WORD(multiply_high_s32, (uint32_t)((int64_t)a.s *b.s >> 32))
WORD(divide_u32, b.u ? a.u / b.u : UINT32_MAX)
WORD(divide_s32, b.s ? (uint32_t)((int64_t)a.s / b.s) : UINT32_MAX)
WORD(remainder_u32, b.u ? a.u % b.u : a.u)
WORD(remainder_s32, b.s ? (uint32_t)((int64_t)a.s % b.s) : a.u)
WORD(minimum_u32, a.u < b.u ? a.u : b.u)
WORD(minimum_s32, a.s < b.s ? a.u : b.u)
WORD(maximum_u32, a.u > b.u ? a.u : b.u)
WORD(maximum_s32, a.s > b.s ? a.u : b.u)
WORD(negate_word, 0 - a.u)
WORD(absolute_word, a.s < 0 ? 0 - a.u : a.u)
WORD(and_word, a.u & b.u)
WORD(or_word, a.u | b.u)
WORD(xor_word, a.u ^ b.u)
WORD(not_word, ~a.u)
WORD(not_predicate, !a.u)
WORD(shift_left_word, b.u < 32 ? a.u << b.u : 0)
WORD(shift_right_u32, b.u < 32 ? a.u >> b.u : 0)
WORD(shift_right_s32, (uint32_t)(a.s >> (b.u < 32 ? b.u : 31)))
WORD(select_word, c.u ? a.u : b.u)
WORD(bits_set, (uint32_t)__builtin_popcount(a.u))
WORD(leading_zeros, a.u ? (uint32_t)__builtin_clz(a.u) : 32)

/* bfe: c bits of a from bit b on, of which only eight count. */
static uint64_t field(uint64_t value, uint32_t from, uint32_t bits) {
    from &= 255;
    bits &= 255;
    const uint64_t shifted = from < 64 ? value >> from : 0;
    return bits < 64 ? shifted & (((uint64_t)1 << bits) - 1) : shifted;
}
WORD(field_u32, (uint32_t)field(a.u, b.u, c.u))
FUNCTION(field_u64, wide, wide, word, word, u, field(a.u, b.u, c.u))

/* ---- of 16 bits, whose upper half is not looked at */

WORD(add_half, (uint16_t)(a.u + b.u))
WORD(subtract_half, (uint16_t)(a.u - b.u))
WORD(multiply_half, (uint16_t)(a.u *b.u))
WORD(multiply_high_u16, (uint32_t)(uint16_t)a.u *(uint16_t)b.u >> 16)
WORD(maximum_s16, (uint16_t)((int16_t)a.u > (int16_t)b.u ? a.u : b.u))
WORD(minimum_s16, (uint16_t)((int16_t)a.u < (int16_t)b.u ? a.u : b.u))
WORD(maximum_u16, (uint16_t)a.u > (uint16_t)b.u ? (uint16_t)a.u : (uint16_t)b.u)
WORD(minimum_u16, (uint16_t)a.u < (uint16_t)b.u ? (uint16_t)a.u : (uint16_t)b.u)
WORD(shift_left_half, b.u < 16 ? (uint16_t)(a.u << b.u) : 0)
WORD(shift_right_u16, b.u < 16 ? (uint32_t)(uint16_t)a.u >> b.u : 0)
WORD(shift_right_s16, (uint16_t)((int16_t)a.u >> (b.u < 16 ? b.u : 15)))
FUNCTION(multiply_wide_u16, word, word, word, word, u, (uint32_t)(uint16_t)a.u *(uint16_t)b.u)

/* ---- of 64 bits */

WIDE(move_wide, a.u)
WIDE(add_wide, a.u + b.u)
WIDE(subtract_wide, a.u - b.u)
WIDE(multiply_wide, a.u *b.u)
WIDE(multiply_add_wide, a.u *b.u + c.u)
WIDE(multiply_high_u64, (uint64_t)((unsigned __int128)a.u *b.u >> 64))
WIDE(multiply_high_s64, (uint64_t)((__int128)a.s *b.s >> 64))
WIDE(divide_u64, b.u ? a.u / b.u : UINT64_MAX)
WIDE(divide_s64, b.s && !(a.s == INT64_MIN && b.s == -1) ? (uint64_t)(a.s / b.s) : a.u)
WIDE(remainder_u64, b.u ? a.u % b.u : a.u)
WIDE(minimum_u64, a.u < b.u ? a.u : b.u)
WIDE(minimum_s64, a.s < b.s ? a.u : b.u)
WIDE(maximum_u64, a.u > b.u ? a.u : b.u)
WIDE(maximum_s64, a.s > b.s ? a.u : b.u)
WIDE(negate_wide, 0 - a.u)
WIDE(and_wide, a.u & b.u)
WIDE(or_wide, a.u | b.u)
WIDE(xor_wide, a.u ^ b.u)
WIDE(not_wide, ~a.u)
FUNCTION(shift_left_wide, wide, wide, word, word, u, b.u < 64 ? a.u << b.u : 0)
FUNCTION(shift_right_u64, wide, wide, word, word, u, b.u < 64 ? a.u >> b.u : 0)
FUNCTION(shift_right_s64, wide, wide, word, word, s, a.s >> (b.u < 64 ? b.u : 63))
FUNCTION(select_wide, wide, wide, wide, word, u, c.u ? a.u : b.u)
FUNCTION(product_u32, wide, word, word, word, u, (uint64_t)a.u *b.u)
FUNCTION(product_s32, wide, word, word, word, s, (int64_t)a.s *b.s)
FUNCTION(product_add_u32, wide, word, word, wide, u, (uint64_t)a.u *b.u + c.u)
FUNCTION(product_add_s32, wide, word, word, wide, s, (int64_t)a.s *b.s + c.s)

/* ---- float. The compiler may not contract or reorder them: this folder is compiled without that. */

FLOAT(add_float, a.f + b.f)
FLOAT(subtract_float, a.f - b.f)
FLOAT(multiply_float, a.f *b.f)
FLOAT(fused_float, fmaf(a.f, b.f, c.f))
FLOAT(divide_float, a.f / b.f)
FLOAT(reciprocal_float, 1.0f / a.f)
FLOAT(root_float, sqrtf(a.f))
FLOAT(inverse_root_float, (float)(1.0 / sqrt((double)a.f)))
FLOAT(power_of_two_float, (float)exp2((double)a.f))
FLOAT(logarithm_float, (float)log2((double)a.f))
FLOAT(sine_float, (float)sin((double)a.f))
FLOAT(cosine_float, (float)cos((double)a.f))
FLOAT(maximum_float, fmaxf(a.f, b.f))
FLOAT(minimum_float, fminf(a.f, b.f))
FLOAT(maximum_nan_float, isnan(a.f) || isnan(b.f) ? NAN : fmaxf(a.f, b.f))
FLOAT(minimum_nan_float, isnan(a.f) || isnan(b.f) ? NAN : fminf(a.f, b.f))
WORD(negate_float, a.u ^ 0x80000000U)
WORD(absolute_float, a.u & 0x7fffffffU)

/* ---- conversions. Those to integers saturate, and NaN becomes 0. */

static double saturated(double value, double least, double most) {
    return isnan(value) ? 0.0 : value < least ? least : value > most ? most : value;
}

static uint32_t rounded_half(float value) {
    return element_encode(value, ELEMENT_FP16);
}

WORD(half_to_word, (uint16_t)a.u)
WORD(half_to_signed_word, (uint32_t)(int16_t)a.u)
WORD(byte_to_word, (uint8_t)a.u)
WORD(byte_to_signed_half, (uint16_t)(int8_t)a.u)
WORD(byte_to_signed_word, (uint32_t)(int8_t)a.u)
FUNCTION(wide_to_word, word, wide, word, word, u, (uint32_t)a.u)
FUNCTION(wide_to_half, word, wide, word, word, u, (uint16_t)a.u)
FUNCTION(word_to_wide, wide, word, word, word, u, a.u)
FUNCTION(signed_word_to_wide, wide, word, word, word, s, a.s)
FUNCTION(half_to_wide, wide, word, word, word, u, (uint16_t)a.u)
FUNCTION(signed_half_to_wide, wide, word, word, word, s, (int16_t)a.u)
FLOAT(fp16_to_float, element_decode((uint16_t)a.u, ELEMENT_FP16))
WORD(float_to_fp16, rounded_half(a.f))
WORD(floats_to_fp16, rounded_half(a.f) << 16 | rounded_half(b.f))
WORD(floats_to_bf16, (uint32_t)element_to_bf16(a.f) << 16 | element_to_bf16(b.f))
FLOAT(u32_to_float, (float)a.u)
FLOAT(s32_to_float, (float)a.s)
FLOAT(u16_to_float, (float)(uint16_t)a.u)
FUNCTION(u64_to_float, word, wide, word, word, f, (float)a.u)
FUNCTION(s64_to_float, word, wide, word, word, f, (float)a.s)
WORD(float_to_u32, (uint32_t)saturated(trunc((double)a.f), 0.0, 4294967295.0))
WORD(float_to_s32, (uint32_t)(int32_t)saturated(trunc((double)a.f), -2147483648.0, 2147483647.0))
WORD(float_to_s16, (uint16_t)(int16_t)saturated(trunc((double)a.f), -32768.0, 32767.0))
WORD(float_to_u16, (uint32_t)saturated(trunc((double)a.f), 0.0, 65535.0))
FLOAT(s16_to_float, (float)(int16_t)a.u)
FUNCTION(float_to_u64, wide, word, word, word, u, (uint64_t)saturated(trunc((double)a.f), 0.0, 0x1p63))
FLOAT(float_truncated, truncf(a.f))
FLOAT(float_nearest, rintf(a.f))
FLOAT(float_floor, floorf(a.f))
FLOAT(float_ceiling, ceilf(a.f))

/* Addresses between the spaces and the generic one. */
FUNCTION(generic_of_local, wide, wide, word, word, u, a.u | LOCAL_WINDOW)
FUNCTION(generic_of_shared, wide, wide, word, word, u, a.u | SHARED_WINDOW)
FUNCTION(space_of_generic, wide, wide, word, word, u, a.u & ~(LOCAL_WINDOW | SHARED_WINDOW))

/* Two words to a wide one and back: mov.b64 %rd, {%r1, %r2}. */
FUNCTION(join_words, wide, word, word, word, u, (uint64_t)b.u << 32 | a.u)
static void split_wide(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    union word *low = WORDS(0), *high = WORDS(1);
    const union wide *whole = WIDES(2);
    EACH_LANE(const uint64_t value = whole[l].u; low[l].u = (uint32_t)value; high[l].u = (uint32_t)(value >> 32));
}
WORD(join_halves, (uint16_t)a.u | b.u << 16)
static void split_word(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    union word *low = WORDS(0), *high = WORDS(1);
    const union word *whole = WORDS(2);
    EACH_LANE(const uint32_t value = whole[l].u; low[l].u = (uint16_t)value; high[l].u = value >> 16);
}

/* Those that compute: lanes need not meet. */
static const struct {
    const char *name;
    execute_function *execute;
    const char *operands;
} opcodes[] = {
    {"abs.f32", absolute_float, "ww"},
    {"abs.s32", absolute_word, "ww"},
    {"add.f32", add_float, "www"},
    {"add.rn.f32", add_float, "www"},
    {"add.s16", add_half, "hhh"},
    {"add.s32", add_word, "www"},
    {"add.s64", add_wide, "ddd"},
    {"add.u32", add_word, "www"},
    {"add.u64", add_wide, "ddd"},
    {"and.b16", and_word, "hhh"},
    {"and.b32", and_word, "www"},
    {"and.b64", and_wide, "ddd"},
    {"and.pred", and_word, "ppp"},
    {"bfe.u32", field_u32, "wwww"},
    {"bfe.u64", field_u64, "ddww"},
    {"clz.b32", leading_zeros, "ww"},
    {"cos.approx.f32", cosine_float, "ww"},
    {"cvt.f32.f16", fp16_to_float, "wh"},
    {"cvt.rmi.f32.f32", float_floor, "ww"},
    {"cvt.rn.bf16x2.f32", floats_to_bf16, "www"},
    {"cvt.rn.f16.f32", float_to_fp16, "hw"},
    {"cvt.rn.f16x2.f32", floats_to_fp16, "www"},
    {"cvt.rn.f32.s16", s16_to_float, "wh"},
    {"cvt.rn.f32.s32", s32_to_float, "ww"},
    {"cvt.rn.f32.s64", s64_to_float, "wd"},
    {"cvt.rn.f32.u16", u16_to_float, "wh"},
    {"cvt.rn.f32.u32", u32_to_float, "ww"},
    {"cvt.rn.f32.u64", u64_to_float, "wd"},
    {"cvt.rni.f32.f32", float_nearest, "ww"},
    {"cvt.rpi.f32.f32", float_ceiling, "ww"},
    {"cvt.rzi.f32.f32", float_truncated, "ww"},
    {"cvt.rzi.s16.f32", float_to_s16, "hw"},
    {"cvt.rzi.s32.f32", float_to_s32, "ww"},
    {"cvt.rzi.u16.f32", float_to_u16, "hw"},
    {"cvt.rzi.u32.f32", float_to_u32, "ww"},
    {"cvt.rzi.u64.f32", float_to_u64, "dw"},
    {"cvt.s16.s8", byte_to_signed_half, "hh"},
    {"cvt.s32.s16", half_to_signed_word, "wh"},
    {"cvt.s32.s8", byte_to_signed_word, "ww"},
    {"cvt.s64.s16", signed_half_to_wide, "dh"},
    {"cvt.s64.s32", signed_word_to_wide, "dw"},
    {"cvt.u16.u32", half_to_word, "hw"},
    {"cvt.u16.u64", wide_to_half, "hd"},
    {"cvt.u32.u16", half_to_word, "wh"},
    {"cvt.u32.u64", wide_to_word, "wd"},
    {"cvt.u32.u8", byte_to_word, "ww"},
    {"cvt.u64.u16", half_to_wide, "dh"},
    {"cvt.u64.u32", word_to_wide, "dw"},
    {"cvta.local.u64", generic_of_local, "dd"},
    {"cvta.shared.u64", generic_of_shared, "dd"},
    {"cvta.to.global.u64", space_of_generic, "dd"},
    {"cvta.to.local.u64", space_of_generic, "dd"},
    {"cvta.to.shared.u64", space_of_generic, "dd"},
    {"div.rn.f32", divide_float, "www"},
    {"div.s32", divide_s32, "www"},
    {"div.s64", divide_s64, "ddd"},
    {"div.u32", divide_u32, "www"},
    {"div.u64", divide_u64, "ddd"},
    {"ex2.approx.f32", power_of_two_float, "ww"},
    {"ex2.approx.ftz.f32", power_of_two_float, "ww"},
    {"fma.rn.f32", fused_float, "wwww"},
    {"lg2.approx.f32", logarithm_float, "ww"},
    {"mad.lo.s32", multiply_add_word, "wwww"},
    {"mad.lo.s64", multiply_add_wide, "dddd"},
    {"mad.wide.s32", product_add_s32, "dwwd"},
    {"mad.wide.u32", product_add_u32, "dwwd"},
    {"max.NaN.f32", maximum_nan_float, "www"},
    {"max.f32", maximum_float, "www"},
    {"max.s16", maximum_s16, "hhh"},
    {"max.s32", maximum_s32, "www"},
    {"max.s64", maximum_s64, "ddd"},
    {"max.u16", maximum_u16, "hhh"},
    {"max.u32", maximum_u32, "www"},
    {"max.u64", maximum_u64, "ddd"},
    {"min.NaN.f32", minimum_nan_float, "www"},
    {"min.f32", minimum_float, "www"},
    {"min.s16", minimum_s16, "hhh"},
    {"min.s32", minimum_s32, "www"},
    {"min.s64", minimum_s64, "ddd"},
    {"min.u16", minimum_u16, "hhh"},
    {"min.u32", minimum_u32, "www"},
    {"min.u64", minimum_u64, "ddd"},
    {"mov.b16", move_word, "hh"},
    {"mov.b32", move_word, "ww"},
    {"mov.b64", move_wide, "dd"},
    {"mov.f32", move_word, "ww"},
    {"mov.pred", move_word, "pp"},
    {"mov.u16", move_word, "hh"},
    {"mov.u32", move_word, "ww"},
    {"mov.u64", move_wide, "dd"},
    {"mul.f32", multiply_float, "www"},
    {"mul.hi.s32", multiply_high_s32, "www"},
    {"mul.hi.s64", multiply_high_s64, "ddd"},
    {"mul.hi.u16", multiply_high_u16, "hhh"},
    {"mul.hi.u32", multiply_high_u32, "www"},
    {"mul.hi.u64", multiply_high_u64, "ddd"},
    {"mul.lo.s16", multiply_half, "hhh"},
    {"mul.lo.s32", multiply_word, "www"},
    {"mul.lo.s64", multiply_wide, "ddd"},
    {"mul.rn.f32", multiply_float, "www"},
    {"mul.wide.s32", product_s32, "dww"},
    {"mul.wide.u16", multiply_wide_u16, "whh"},
    {"mul.wide.u32", product_u32, "dww"},
    {"neg.f32", negate_float, "ww"},
    {"neg.s32", negate_word, "ww"},
    {"neg.s64", negate_wide, "dd"},
    {"not.b16", not_word, "hh"},
    {"not.b32", not_word, "ww"},
    {"not.b64", not_wide, "dd"},
    {"not.pred", not_predicate, "pp"},
    {"or.b16", or_word, "hhh"},
    {"or.b32", or_word, "www"},
    {"or.b64", or_wide, "ddd"},
    {"or.pred", or_word, "ppp"},
    {"popc.b32", bits_set, "ww"},
    {"rcp.rn.f32", reciprocal_float, "ww"},
    {"rem.s32", remainder_s32, "www"},
    {"rem.u32", remainder_u32, "www"},
    {"rem.u64", remainder_u64, "ddd"},
    {"rsqrt.approx.f32", inverse_root_float, "ww"},
    {"selp.b16", select_word, "hhhp"},
    {"selp.b32", select_word, "wwwp"},
    {"selp.b64", select_wide, "dddp"},
    {"selp.f32", select_word, "wwwp"},
    {"selp.s16", select_word, "hhhp"},
    {"selp.s32", select_word, "wwwp"},
    {"selp.u16", select_word, "hhhp"},
    {"selp.u32", select_word, "wwwp"},
    {"selp.u64", select_wide, "dddp"},
    {"shl.b16", shift_left_half, "hhw"},
    {"shl.b32", shift_left_word, "www"},
    {"shl.b64", shift_left_wide, "ddw"},
    {"shr.s16", shift_right_s16, "hhw"},
    {"shr.s32", shift_right_s32, "www"},
    {"shr.s64", shift_right_s64, "ddw"},
    {"shr.u16", shift_right_u16, "hhw"},
    {"shr.u32", shift_right_u32, "www"},
    {"shr.u64", shift_right_u64, "ddw"},
    {"sin.approx.f32", sine_float, "ww"},
    {"sqrt.rn.f32", root_float, "ww"},
    {"sub.f32", subtract_float, "www"},
    {"sub.rn.f32", subtract_float, "www"},
    {"sub.s16", subtract_half, "hhh"},
    {"sub.s32", subtract_word, "www"},
    {"sub.s64", subtract_wide, "ddd"},
    {"xor.b16", xor_word, "hhh"},
    {"xor.b32", xor_word, "www"},
    {"xor.b64", xor_wide, "ddd"},
    {"xor.pred", xor_word, "ppp"},
};

static void execute_nothing(struct warp *warp, const struct instruction *x, uint64_t lanes) {
    (void)warp, (void)x, (void)lanes;
}

/* Those for which lanes meet or end, and copies. */
static const struct opcode others[] = {
    {"bar.sync", execute_nothing, "w", FLOW_GROUP},
    {"bar.warp.sync", execute_nothing, "w", FLOW_WARP_FENCE},
    {"barrier.sync", execute_nothing, "w", FLOW_GROUP},
    {"cp.async.cg.shared.global", execute_copy, "wdww", FLOW_NEXT},
    {"cp.async.commit_group", execute_copy_commit, "", FLOW_NEXT},
    {"cp.async.wait_group", execute_copy_wait, "w", FLOW_NEXT},
    {"exit", execute_nothing, "", FLOW_EXIT},
    {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", execute_ldmatrix, "wwwww", FLOW_WARP},
    {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", execute_ldmatrix_transposed, "wwwww", FLOW_WARP},
    {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", execute_mma_bf16, "wwwwwwwwwwwwww", FLOW_WARP},
    {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", execute_mma_fp16, "wwwwwwwwwwwwww", FLOW_WARP},
    {"ret", execute_nothing, "", FLOW_EXIT},
    {"shfl.sync.bfly.b32", execute_shuffle, "wwwww", FLOW_WARP},
};

struct opcode opcode_find(const char *name) {
    for (size_t i = 0; i < COUNT(opcodes); i++) {
        if (strcmp(opcodes[i].name, name) == 0) {
            return (struct opcode){name, opcodes[i].execute, opcodes[i].operands, FLOW_NEXT};
        }
    }
    for (size_t i = 0; i < COUNT(others); i++) {
        if (strcmp(others[i].name, name) == 0) {
            return others[i];
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
        const union tb *A = (const union tb *)(void *)(warp->registers + x->operands[1]);                          \
        const union tb *B = (const union tb *)(void *)(warp->registers + x->operands[2]);                          \
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
