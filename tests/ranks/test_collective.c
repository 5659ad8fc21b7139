/* collective: all-reduce, reduce-scatter, all-gather and broadcast of ranges, against what they must be. Run by
 * mpirun with any number of ranks, on the device that the first argument names. */
#include "runtime/gemm/gemm.h"
#include "runtime/ranks/collective.h"
#include "runtime/ranks/ranks.h"
#include "runtime/system/element.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whole parts, parts of which some ranks have none, one element too many, parts that are large enough to be sent
 * directly, more ranges than are under way at a time. */
static const struct element_range ranges[] = {{704, 6400}, {640, 64}, {0, 577},     {7168, 1088},  {8256, 1},
                                              {8320, 64},  {8384, 2}, {8448, 2048}, {10496, 3000}, {13504, 140032}};
enum { RANGES = COUNT(ranges), ELEMENTS = 153536, LARGEST = 140032, ROUNDS = 8, KINDS = 4 };

static struct ranks ranks;
static struct compute *compute;
static const char *device = "pocl";

static void require_here(int status) {
    if (status) {
        fail_msg("rank %d: %s", ranks.index, error_text());
    }
}

/* What a rank puts in: not whole numbers, so that the order of additions shows. */
static float value_of(int rank, uint64_t element, uint64_t round) {
    const double uniform = random_uniform(random_key(round + 1, "collective"), element * 1024 + (uint64_t)rank);
    return (float)(uniform - 0.5);
}

static float bf16(float value) {
    return element_from_bf16(element_to_bf16(value));
}

/* ---- expected sums: pairwise over the ranks of each node, then pairwise over nodes */

/* Which rank is where: members of all nodes, one node after the other. */
static int *table;

static int rank_at(int group, int place) {
    return table[group * ranks.node.count + place];
}

/* In pairs: neighbours first, then two and two. */
static float in_pairs(const float *values, int count) {
    float sums[64] = {0.0f};
    memcpy(sums, values, (size_t)count * sizeof *sums);
    for (int step = 1; step < count; step *= 2) {
        for (int i = 0; i + step < count; i += 2 * step) {
            sums[i] += sums[i + step];
        }
    }
    return sums[0];
}

/* What is rounded of sums in bfloat16. */
struct rounding {
    bool addends; /* on the device, which copies them */
    bool sums;    /* between ranks across: all but the owner's own */
};

static float node_sum(int group, uint64_t element, uint64_t round, struct rounding rounding) {
    float values[64];
    for (int i = 0; i < ranks.node.count; i++) {
        const float value = value_of(rank_at(group, i), element, round);
        values[i] = rounding.addends ? bf16(value) : value;
    }
    return in_pairs(values, ranks.node.count);
}

static float sum_at(uint64_t element, uint64_t round, int owner_group, struct rounding rounding) {
    float values[64];
    for (int group = 0; group < ranks.cross_node.count; group++) {
        const float value = node_sum(group, element, round, rounding);
        values[group] = rounding.sums && group != owner_group ? bf16(value) : value;
    }
    return in_pairs(values, ranks.cross_node.count);
}

/* Of each rank, what it owns of a range. */
static void gather_owners(struct element_range range, struct element_range owned[64]) {
    const struct element_range own = ranks_own_shard(&ranks, range);
    require_here(ranks_gather(&ranks, &own, sizeof own, owned));
}

/* The number in the table. */
static int owner_of(const struct element_range *owned, uint64_t element) {
    for (int i = 0; i < ranks.count; i++) {
        const struct element_range part = owned[table[i]];
        if (element >= part.offset && element < part.offset + part.count) {
            return i;
        }
    }
    fail_msg("element %llu has no owner", (unsigned long long)element);
    return -1;
}

static void fill(const struct buffer *buffer, uint64_t round) {
    static float values[ELEMENTS];
    for (uint64_t i = 0; i < ELEMENTS; i++) {
        values[i] = value_of(ranks.index, i, round);
    }
    require_here(buffer_write(compute, buffer, 0, values, sizeof values));
}

static float expected(enum collective_kind kind, int owner, uint64_t element, uint64_t round,
                      struct rounding rounding) {
    if (kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_BROADCAST) {
        return value_of(table[owner], element, round);
    }
    const float sum = sum_at(element, round, owner / ranks.node.count, rounding);
    return (rounding.addends || rounding.sums) && kind == COLLECTIVE_ALL_REDUCE ? bf16(sum) : sum;
}

/* Every other range is in a second buffer, and every fifth round has ranges of all kinds. */
static enum collective_kind kind_of(size_t range, uint64_t round) {
    return (enum collective_kind)(round % (KINDS + 1) < KINDS ? round % (KINDS + 1) : range % KINDS);
}

/* The place of the rank that broadcasts a range. */
static int root_of(size_t range, uint64_t round) {
    return (int)((range + round) % (uint64_t)ranks.count);
}

static void check_range(const float *values, size_t which, uint64_t round, struct rounding rounding) {
    const struct element_range range = ranges[which];
    const enum collective_kind kind = kind_of(which, round);
    struct element_range owned[64];
    gather_owners(range, owned);
    for (uint64_t at = range.offset; at < range.offset + range.count; at++) {
        const int owner = kind == COLLECTIVE_BROADCAST ? root_of(which, round) : owner_of(owned, at);
        if (kind == COLLECTIVE_REDUCE_SCATTER && table[owner] != ranks.index) {
            continue;
        }
        const float right = expected(kind, owner, at, round, rounding);
        if (memcmp(&values[at], &right, sizeof right) != 0) {
            fail_msg("rank %d of %d, kind %d, element %d: %.9g instead of %.9g", ranks.index, ranks.count,
                     (int)kind, (int)at, (double)values[at], (double)right);
        }
    }
}

static void check(const struct buffer *buffer, size_t which, uint64_t round, bool narrow) {
    static float values[ELEMENTS];
    static bool covered[ELEMENTS];
    const struct rounding rounding = {narrow && !buffer->host, narrow && ranks.cross_node.count > 1};
    require_here(buffer_read(compute, buffer, 0, values, sizeof values));
    memset(covered, 0, sizeof covered);
    for (size_t i = which; i < RANGES; i += 2) {
        check_range(values, i, round, rounding);
        memset(covered + ranges[i].offset, true, ranges[i].count);
    }
    for (uint64_t at = 0; at < ELEMENTS; at++) { /* what lies between the ranges stays */
        assert_true(covered[at] || values[at] == value_of(ranks.index, at, round));
    }
}

/* The ranks of each node, one node after the other, so that all know the order. */
static void make_table(void) {
    static int all[64], places[2 * 64];
    const int place[2] = {ranks.cross_node.index, ranks.node.index};
    table = all;
    require_here(ranks_gather(&ranks, place, sizeof place, places));
    for (int rank = 0; rank < ranks.count; rank++) {
        table[places[2 * rank] * ranks.node.count + places[2 * rank + 1]] = rank;
    }
}

static void run_round(struct collective *collective, const struct buffer *buffers, uint64_t round, bool narrow,
                      struct collective_times *times) {
    struct collective_item items[RANGES];
    fill(&buffers[0], round);
    fill(&buffers[1], round);
    for (size_t i = 0; i < RANGES; i++) {
        items[i] = (struct collective_item){kind_of(i, round), &buffers[i % 2], ranges[i], root_of(i, round)};
    }
    collective_begin(collective, items, RANGES);
    for (size_t ready = 0; ready < RANGES && round % 2 == 0; ready += 2) { /* or all at once, by finish */
        collective_ready(collective, ready);
    }
    require_here(collective_finish(collective, times));
    assert_true(times->exposed >= 0.0 &&
                times->exposed < 60.0 * (round + 1)); /* a clock was read at the right time */
    check(&buffers[0], 0, round, narrow);
    check(&buffers[1], 1, round, narrow);
}

static void run_rounds(bool narrow) {
    struct buffer buffers[2];
    struct collective *collective;
    struct collective_times times = {0};
    const struct buffer *const both[] = {&buffers[0], &buffers[1]};
    const struct collective_settings settings = {
        .items = RANGES, .largest = LARGEST, .bf16 = narrow, .buffers = both, .buffer_count = 2};
    require_here(buffer_create_shareable(compute, &buffers[0], ELEMENTS * sizeof(float), true));
    require_here(buffer_create_shareable(compute, &buffers[1], ELEMENTS * sizeof(float), true));
    require_here(collective_create(compute, &ranks, &settings, &collective));
    for (uint64_t round = 0; round < ROUNDS; round++) {
        run_round(collective, buffers, round, narrow, &times);
    }
    assert_true(times.active > 0.0 && times.sent + times.moved > 0.0);
    collective_release(collective);
    buffer_release(compute, &buffers[0]);
    buffer_release(compute, &buffers[1]);
}

UNIT_TEST(ranges_are_reduced_and_gathered) {
    run_rounds(false);
}

UNIT_TEST(ranges_are_reduced_and_gathered_in_bfloat16) {
    run_rounds(true);
}

/* Every element has one owner, and parts begin at multiples of 64. */
UNIT_TEST(parts_cover_their_range) {
    for (int count = 1; count < 70; count += 3) {
        for (uint64_t size = 1; size < 5000; size += 97) {
            uint64_t next = 128;
            for (int rank = 0; rank < count; rank++) {
                const struct element_range part = range_shard((struct element_range){128, size}, count, rank);
                assert_int_equal(part.offset, next);
                assert_true(part.count == 0 || part.offset % 64 == 0);
                next += part.count;
            }
            assert_int_equal(next, 128 + size);
        }
    }
}

UNIT_TEST(ranks_are_sorted_by_host) {
    static const int dealt[] = {0, 1, 0, 1}, uneven[] = {0, 0, 2, 3}, last[] = {0, 0, 2}, apart[] = {0, 1, 2};
    static const int by_host[] = {0, 2, 1, 3}, identity[] = {0, 1, 2, 3};
    int order[4];
    assert_int_equal(neighbours_sort(dealt, 4, order), 2);
    assert_memory_equal(order, by_host, sizeof by_host);
    assert_int_equal(neighbours_sort(uneven, 4, order), 1);
    assert_memory_equal(order, identity, sizeof identity);
    assert_int_equal(neighbours_sort(last, 3, order), 1);
    assert_memory_equal(order, identity, 3 * sizeof *identity);
    assert_int_equal(neighbours_sort(apart, 3, order), 1);
    assert_memory_equal(order, identity, 3 * sizeof *identity);
}

UNIT_TEST(bfloat16_is_rounded_to_nearest_even) {
    const float up = 1.0f + 3.0f / 256.0f, down = 1.0f + 1.0f / 256.0f;
    assert_true(bf16(1.0f) == 1.0f && bf16(-0.5f) == -0.5f && bf16(up) == 1.015625f && bf16(down) == 1.0f);
    assert_true(isinf(bf16(3.4e38f)) && isinf(bf16(INFINITY)) && isnan(bf16(NAN)));
    float almost_infinite;
    const uint32_t nan_bits = 0x7f800001U; /* truncation would make an infinity of it */
    memcpy(&almost_infinite, &nan_bits, sizeof nan_bits);
    assert_true(isnan(bf16(almost_infinite)));
}

UNIT_TEST(collectives_bring_ranks_together) {
    double sums[2] = {ranks.index, 0.1 * ranks.index};
    require_here(ranks_sum(&ranks, sums, 2));
    double tenths = 0.0;
    for (int rank = 0; rank < ranks.count; rank++) {
        tenths += 0.1 * rank;
    }
    assert_true(sums[0] == ranks.count * (ranks.count - 1) / 2.0 && sums[1] == tenths);
    float parts[2] = {ranks.index == ranks.count - 1 ? -0.0f : 0.0f, ranks.index == 0 ? 3.5f : 0.0f};
    require_here(ranks_merge(&ranks, parts, 2, false));
    assert_true(ranks.index != 0 || (signbit(parts[0]) && parts[1] == 3.5f));
    char word[4] = "";
    memcpy(word, ranks.index == 0 ? "yes" : "no ", 4);
    require_here(ranks_broadcast(&ranks, word, sizeof word));
    assert_string_equal(word, "yes");
}

UNIT_TEST(failures_are_shared) {
    assert_int_equal(ranks_agree(&ranks, 0), 0);
    assert_false(ranks.agreed);
    error_set("burnt");
    assert_int_equal(ranks_agree(&ranks, ranks.index == ranks.count - 1 ? -1 : 0), -1);
    assert_true(ranks.agreed);
    char expected_text[512];
    snprintf(expected_text, sizeof expected_text, "rank %d on %s: burnt", ranks.count - 1, ranks.host);
    assert_string_equal(error_text(), expected_text);
    error_set("all burnt");
    assert_int_equal(ranks_agree(&ranks, -1), -1);
    assert_string_equal(error_text(), "all burnt");
}

int main(int argc, char **argv) {
    device = argc > 1 ? argv[1] : device;
    device_prepare_environment();
    if (job_start(&ranks)) {
        fprintf(stderr, "%s\n", error_text());
        return 1;
    }
    const struct compute_options options = {.device = device, .gemm = "portable"};
    if (gemm_compute_open(&compute, &options)) {
        fprintf(stderr, "skipped: %s\n", error_text());
        job_stop(&ranks);
        return 77;
    }
    ranks.timeout_seconds = 60.0;
    make_table();
    const int failed = unit_tests_run(NULL, NULL);
    compute_close(compute);
    if (failed) {
        ranks_abort(); /* the others may wait for this one */
    }
    job_stop(&ranks);
    return failed ? 1 : 0;
}
