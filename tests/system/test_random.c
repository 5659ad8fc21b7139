/* random: published vectors, and the distributions. */
#include "runtime/system/random.h"
#include "tests/support/test.h"
#include <math.h>

/* Random123 1.14, kat_vectors, philox4x32 10. */
UNIT_TEST(test_known_answers) {
    static const struct {
        uint32_t counter[4], key[2], words[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        uint32_t words[4];
        random_philox(cases[i].counter, cases[i].key, words);
        assert_memory_equal(words, cases[i].words, sizeof words);
    }
}

UNIT_TEST(test_keys_differ) {
    assert_true(random_key(1, "a") != random_key(1, "b"));
    assert_true(random_key(1, "a") != random_key(2, "a"));
    assert_true(random_key(0, "") != random_key(1, ""));
    assert_true(random_key(7, "dropout") == random_key(7, "dropout"));
}

UNIT_TEST(test_below) {
    enum { DRAWS = 70000, BOUND = 7 };
    const uint64_t key = random_key(3, "below");
    unsigned counts[BOUND] = {0};
    for (uint64_t i = 0; i < DRAWS; i++) {
        const uint64_t value = random_below(key, i, BOUND);
        assert_true(value < BOUND);
        counts[value]++;
    }
    for (int i = 0; i < BOUND; i++) { /* 10000 each, five standard deviations of 93 */
        assert_in_range(counts[i], 10000 - 465, 10000 + 465);
    }
    assert_true(random_below(key, 5, 1) == 0);
    /* A quarter of the draws is rejected; else the lowest third of the results would come half of the time. */
    unsigned lowest = 0;
    for (uint64_t i = 0; i < 30000; i++) {
        const uint64_t value = random_below(key, i, UINT64_C(3) << 62);
        assert_true(value < UINT64_C(3) << 62);
        lowest += value < UINT64_C(1) << 62;
    }
    assert_in_range(lowest, 10000 - 410, 10000 + 410); /* five standard deviations of 82 */
    assert_true(random_below(key, UINT64_MAX, UINT64_MAX) < UINT64_MAX);
}

UNIT_TEST(test_uniform) {
    enum { DRAWS = 100000 };
    const uint64_t key = random_key(3, "uniform");
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        const double value = random_uniform(key, i);
        assert_true(value >= 0 && value < 1);
        sum += value;
        squares += value * value;
    }
    /* Means 1/2 and 1/3 with deviations 0.2887 and 0.2981, five standard errors. */
    assert_true(fabs(sum / DRAWS - 0.5) < 5 * 0.2887 / sqrt(DRAWS));
    assert_true(fabs(squares / DRAWS - 1.0 / 3) < 5 * 0.2981 / sqrt(DRAWS));
}

UNIT_TEST(test_normal_moments) {
    enum { DRAWS = 100000 };
    static float values[DRAWS];
    random_normal(random_key(3, "normal"), 0, DRAWS, 2.0, 0.5, values);
    double powers[5] = {0};
    for (int i = 0; i < DRAWS; i++) {
        const double z = (values[i] - 2.0) / 0.5;
        for (int power = 1; power <= 4; power++) {
            powers[power] += pow(z, power) / DRAWS;
        }
    }
    /* Moments 0, 1, 0, 3 with variances 1, 2, 15, 96. */
    assert_true(fabs(powers[1]) < 5 * sqrt(1.0 / DRAWS));
    assert_true(fabs(powers[2] - 1) < 5 * sqrt(2.0 / DRAWS));
    assert_true(fabs(powers[3]) < 5 * sqrt(15.0 / DRAWS));
    assert_true(fabs(powers[4] - 3) < 5 * sqrt(96.0 / DRAWS));
}

UNIT_TEST(test_normal_does_not_depend_on_the_split) {
    enum { COUNT = 101 };
    float whole[COUNT], parts[COUNT];
    const uint64_t key = random_key(3, "split"), first = 12345;
    random_normal(key, first, COUNT, 0, 0.02, whole);
    for (uint64_t step = 1; step <= 8; step++) {
        for (uint64_t at = 0; at < COUNT; at += step) {
            random_normal(key, first + at, COUNT - at < step ? COUNT - at : step, 0, 0.02, parts + at);
        }
        assert_memory_equal(whole, parts, sizeof whole);
    }
}

/* Box-Muller by the C library's functions of one number, whatever the processor has: to the bit. */
UNIT_TEST(test_normal_is_that_of_the_library) {
    enum { COUNT = 1 << 21 };
    static float values[COUNT];
    const double means[] = {0.0, 0.0, 3.0}, deviations[] = {1.0, 0.02, 0.25};
    for (int kind = 0; kind < 3; kind++) {
        const uint64_t key = random_key(5, "library");
        random_normal(key, 0, COUNT, means[kind], deviations[kind], values);
        for (uint32_t i = 0; i < COUNT / 2; i++) {
            const uint32_t counter[4] = {i, 0, 0, 3}, keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
            uint32_t words[4];
            random_philox(counter, keys, words);
            const double u = (double)((words[0] | (uint64_t)words[1] << 32) >> 11) * 0x1p-53;
            const double angle =
                6.283185307179586476925 * ((double)((words[2] | (uint64_t)words[3] << 32) >> 11) * 0x1p-53);
            const double radius = deviations[kind] * sqrt(-2.0 * log(1.0 - u));
            const float pair[2] = {(float)(means[kind] + radius * cos(angle)),
                                   (float)(means[kind] + radius * sin(angle))};
            assert_memory_equal(pair, &values[2 * i], sizeof pair);
        }
    }
}

UNIT_TEST_MAIN(NULL, NULL)
