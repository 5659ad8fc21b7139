#!/usr/bin/env python3
"""hctrain.paired beside examples: by hand, and by scipy 1.17 where a comment says so."""
import math
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src" / "python"))
from hctrain import paired  # noqa: E402


class Student(unittest.TestCase):
    def test_p_by_hand(self):
        """One degree of freedom is Cauchy's distribution; for two, P(|T| > t) is 1 - t / sqrt(2 + t^2)."""
        for t in (0.1, 1.0, 7.0):
            self.assertAlmostEqual(paired.t_p(t, 1), 1 - 2 * math.atan(t) / math.pi, places=14)
            self.assertAlmostEqual(paired.t_p(-t, 2), 1 - t / math.sqrt(2 + t * t), places=14)
        self.assertEqual(paired.t_p(0.0, 4), 1.0)

    def test_p_by_scipy(self):
        """2 * scipy.stats.t.sf(t, freedom)"""
        for t, freedom, p in ((2.0, 3, 0.13932596855884305), (3.5, 4, 0.024896163460222748), (4.0, 7, 0.005189913349296813), (1.3, 30, 0.20350095853811687)):
            self.assertAlmostEqual(paired.t_p(t, freedom), p, places=12)

    def test_quantile_by_scipy(self):
        """scipy.stats.t.isf(p / 2, freedom)"""
        for p, freedom, t in ((0.05, 1, 12.706204736174705), (0.05, 4, 2.7764451051977943), (0.05 / 27, 4, 7.321385146107461),
                              (0.05 / 27, 9, 4.3494087120669285), (0.05, 30, 2.042272456301238)):
            self.assertAlmostEqual(paired.t_quantile(p, freedom), t, places=9)
        self.assertEqual(round(paired.t_quantile(1.0, 4), 6), 0.0)
        with self.assertRaises(ValueError):
            paired.t_quantile(0.0, 4)


class Differences(unittest.TestCase):
    ours = {1: 1.7934, 2: 1.7997, 3: 1.7953, 4: 1.7959, 5: 1.8022}
    base = {1: 1.8156, 2: 1.8145, 3: 1.8168, 4: 1.8189, 5: 1.8054}

    def test_by_scipy(self):
        """scipy.stats.ttest_rel"""
        found = paired.difference(self.ours, self.base)
        self.assertEqual(found.pairs, 5)
        self.assertAlmostEqual(found.mean, -0.01694, places=12)
        self.assertAlmostEqual(found.p, 0.010503838891030215, places=12)
        self.assertAlmostEqual(found.half_width(), 0.010361609809151797, places=9)
        self.assertAlmostEqual(found.half_width(27), found.error * 7.321385146107461, places=9)

    def test_pairs_are_of_one_seed(self):
        """By hand: differences 1 and 3, so a mean of 2 and a standard error of 1, for one degree of freedom."""
        found = paired.difference({1: 2.0, 2: 5.0, 9: 100.0}, {2: 2.0, 1: 1.0, 8: -100.0})
        self.assertEqual((found.pairs, found.mean), (2, 2.0))
        self.assertAlmostEqual(found.error, 1.0)
        self.assertAlmostEqual(found.half_width(), 12.706204736174705)
        self.assertIsNone(paired.difference({1: 2.0, 2: 1.0}, {1: 2.0, 3: 1.0}))

    def test_equal_differences(self):
        self.assertEqual(paired.difference({1: 1.0, 2: 1.0}, {1: 1.0, 2: 1.0}).p, 1.0)
        found = paired.difference({1: 1.5, 2: 2.5}, {1: 1.0, 2: 2.0})
        self.assertEqual((found.p, found.half_width(3)), (0.0, 0.0))


class Pairs(unittest.TestCase):
    def test_holm(self):
        """By hand: 4 x 0.005, 3 x 0.01, 2 x 0.03, and 1 x 0.04, which is less than the one before."""
        found = paired.holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
        for name, p in {"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06}.items():
            self.assertAlmostEqual(found[name], p)
        self.assertEqual(paired.holm({"a": 0.9, "b": 0.8}), {"a": 1.0, "b": 1.0})
        self.assertEqual(paired.holm({}), {})

    def test_all_pairs(self):
        losses = {"worst": {1: 3.0, 2: 3.1, 3: 3.05}, "best": {1: 1.0, 2: 1.101, 3: 1.049}, "middle": {1: 1.9, 2: 2.3, 3: 2.0}}
        found = paired.all_pairs(losses)
        self.assertEqual({(pair.better, pair.worse) for pair in found}, {("best", "worst"), ("best", "middle"), ("middle", "worst")})
        self.assertEqual((found[0].better, found[0].worse), ("best", "worst"))
        self.assertAlmostEqual(found[0].p, 3 * found[0].difference.p)
        self.assertTrue(all(pair.difference.mean < 0 for pair in found))
        self.assertEqual([pair.p for pair in found], sorted(pair.p for pair in found))


if __name__ == "__main__":
    unittest.main()
