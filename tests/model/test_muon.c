/* Muon, beside what test_golden and test_operations have of it: what it costs. */
#include "src/operations/muon.h"
#include "tests/support/test.h"

/* By hand: GEMMs of [24, 24] make 2 * 24^3 FLOPs, those of X [96, 24] four times as many. */
UNIT_TEST(flops_are_those_of_the_gemms) {
    const double square = 2.0 * 24.0 * 24.0 * 24.0;
    assert_true(newton_schulz_flops(ELEMENT_FP32, 24, 24, 5) == 5.0 * 3.0 * square);
    assert_true(newton_schulz_flops(ELEMENT_BF16, 24, 96, 5) == 5.0 * 9.0 * square);
    /* 3 steps of A and then 2, where the last step of both makes no A, and the first no P */
    assert_true(newton_schulz_flops(ELEMENT_FP32, 24, 96, 5) == (2.0 * 8.0 + 9.0 + 5.0) * square);
    assert_true(newton_schulz_flops(ELEMENT_FP32, 96, 24, 5) == newton_schulz_flops(ELEMENT_FP32, 24, 96, 5));
    assert_true(newton_schulz_flops(ELEMENT_FP32, 24, 96, 1) == 9.0 * square);
}

UNIT_TEST_MAIN(NULL, NULL)
