/* Attention (attention.cl has the formulas) when text is generated: there is one query a sequence, at `position`,
 * over the keys and values of all tokens before it, which are kept in a cache [rows, K, capacity, D] each:
 * attention_fill stores those of a prompt. Those of a new token are stored by attention_step if every query head
 * has a key head of its own, and by attention_fill if several share one.
 *
 * The cache has keys and values as rows: a step adds one row and reads all others once, one after the other, and
 * what it costs is that reading. (Keys side by side would save sums over vectors, which is not what it waits for,
 * and make the new key D writes far apart.) A sequence's part is in one piece, so that it can be copied to another
 * row.
 */
#include "attention.cl"
#include "group.cl"

/* k and v of qkv [B, T, (H + 2 K) D] to rows row .. row + B - 1 of the cache, from `position` on. One
 * work-item: a vector of one (token, head). */
__kernel void attention_fill(__global const act_t *qkv, int batch, int sequence, int row, int position,
                             int capacity, __global act_t *keys, __global act_t *values) {
    const size_t token = get_global_id(0) / (KV_ROW / VEC);
    const int column = get_global_id(0) % (KV_ROW / VEC) * VEC;
    if (token >= (size_t)batch * sequence) {
        return;
    }
    const size_t head = (row + token / sequence) * KV_HEADS + column / HEAD_SIZE;
    const size_t to = (head * capacity + position + token % sequence) * HEAD_SIZE + column % HEAD_SIZE;
    __global const act_t *from = qkv + token * QKV_ROW + Y_ROW + column;
    ACT_STORE(ACT_LOAD(from), keys + to);
    ACT_STORE(ACT_LOAD(from + KV_ROW), values + to);
}

/* Lanes that have the D numbers of a row among them, and how many such parts of a work-group share the keys. Where
 * there are several parts, each has a whole row in one slot, so no barrier must stand between slots. */
#define PART_LANES (LANES < HEAD_SIZE / VEC ? LANES : HEAD_SIZE / VEC)
#define PARTS      (LANES / PART_LANES)
#define PART_SLOTS ((HEAD_SIZE / VEC + PART_LANES - 1) / PART_LANES)
#if PARTS > 1 && PART_SLOTS > 1
#error "several parts and several slots need a barrier before the sums of a slot overwrite those of the slot before"
#endif

/* s of the keys 0 .. position, -infinity up to the end of the last vector; the lane's highest. */
static inline float step_scores(__global const act_t *query, __global const act_t *k_rows, int position, int lane,
                                __global float *scores) {
    keys_t highest = (keys_t)(-INFINITY);
    for (int start = lane * KEY_VEC; start <= position; start += LANES * KEY_VEC) {
        float block[KEY_VEC];
        for (int i = 0; i < KEY_VEC; i++) {
            __global const act_t *row = k_rows + (size_t)min(start + i, position) * HEAD_SIZE;
            vec_t sum = (vec_t)(0.0f);
            UNROLL(HEAD_SIZE / VEC) for (int d = 0; d < HEAD_SIZE; d += VEC) {
                sum += ACT_LOAD(query + d) * ACT_LOAD(row + d);
            }
            block[i] = start + i <= position ? SCALE * VEC_SUM(sum) : -INFINITY;
        }
        const keys_t s = KEYS_LOAD(block);
        highest = fmax(highest, s);
        KEYS_STORE(s, scores + start);
    }
    return KEYS_HIGHEST(highest);
}

/* exp(s - highest) in place; the lane's sum. */
static inline float step_exponentials(int position, int lane, float highest, __global float *scores) {
    keys_t sum = (keys_t)(0.0f);
    for (int start = lane * KEY_VEC; start <= position; start += LANES * KEY_VEC) {
        const keys_t p = exp(KEYS_LOAD(scores + start) - highest);
        sum += p;
        KEYS_STORE(p, scores + start);
    }
    return KEYS_SUM(sum);
}

/* One work-group a (sequence, query head): adds k and v of qkv [B, (H + 2 K) D] to the cache at `position`, unless
 * several query heads share them, when attention_fill has done it; and attends to all up to it. y [B, H, D]; scores
 * [B, H, padded] is scratch, padded >= capacity a multiple of KEYS. */
ROW_KERNEL void attention_step(__global const act_t *qkv, int position, int capacity, int padded,
                               __global act_t *keys, __global act_t *values, __global float *all_scores,
                               __global act_t *y) {
    GROUP_SCRATCH(scratch);
#if PARTS > 1
    __local float parts[LANES * VEC];
#endif
    const size_t head = get_group_id(0);
    const int lane = get_local_id(0), part = lane / PART_LANES, in_part = lane % PART_LANES * VEC;
    const size_t key_head = head / KV_GROUP;
    __global const act_t *query = qkv + head / HEADS * QKV_ROW + head % HEADS * HEAD_SIZE;
    __global act_t *k_rows = keys + key_head * capacity * HEAD_SIZE;
    __global act_t *v_rows = values + key_head * capacity * HEAD_SIZE;
    __global float *scores = all_scores + head * padded;
    const int stored = KV_GROUP > 1 ? HEAD_SIZE : 0; /* by attention_fill where query heads share keys */
    for (int d = stored + lane * VEC; d < HEAD_SIZE; d += LANES * VEC) {
        ACT_STORE(ACT_LOAD(query + Y_ROW + d), k_rows + (size_t)position * HEAD_SIZE + d);
        ACT_STORE(ACT_LOAD(query + Y_ROW + KV_ROW + d), v_rows + (size_t)position * HEAD_SIZE + d);
    }
    GROUP_BARRIER();
    const float highest = GROUP_MAX(step_scores(query, k_rows, position, lane, scores), scratch);
    const float total = GROUP_SUM(step_exponentials(position, lane, highest, scores), scratch);
    GROUP_BARRIER();
    vec_t sums[PART_SLOTS];
    CLEAR(vec_t, sums, PART_SLOTS);
    for (int k = part; k <= position && part < PARTS; k += PARTS) {
        __global const act_t *row = v_rows + (size_t)k * HEAD_SIZE;
        UNROLL(PART_SLOTS) for (int slot = 0; slot < PART_SLOTS; slot++) {
            const int d = slot * PART_LANES * VEC + in_part;
            sums[slot] += d < HEAD_SIZE ? scores[k] * ACT_LOAD(row + d) : (vec_t)(0.0f);
        }
    }
    for (int slot = 0; slot < PART_SLOTS; slot++) {
        const int d = slot * PART_LANES * VEC + in_part;
#if PARTS > 1
        VEC_STORE(sums[slot], parts + lane * VEC);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int other = 1; other < PARTS && part == 0; other++) {
            sums[slot] += VEC_LOAD(parts + (lane + other * PART_LANES) * VEC);
        }
#endif
        if (part == 0 && d < HEAD_SIZE) {
            ACT_STORE(sums[slot] / total, y + head * HEAD_SIZE + d);
        }
    }
}
