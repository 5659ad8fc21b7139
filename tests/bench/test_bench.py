"""hc_bench: its figures hang together."""
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import COMPARE, FAILED, INTERRUPTED, WRONG_USAGE

# As wide as the tests' usual model: where its kernels are in the cache these are not compiled.
SMALL = ("--device", "pocl", "--n-layer", "2", "--n-embd", "16", "--n-head", "2", "--block-size", "16", "--batch-size", "2", "--vocab-size", "300",
         "--allreduce-bucket", "0.01")


class Bench(programs.Case):
    @classmethod
    def begin(cls):
        """The corpus is not needed."""

    def bench(self, *words, command=("hc_bench", "--ranks"), **setup):
        """The figures, and what was printed."""
        printed = self.call(*command, *SMALL, "--json", "@figures.json", *words, seconds=600, **setup).printed.decode()
        return self.json("figures.json"), printed

    def median(self, figures, name):
        figure = figures["seconds"][name]
        self.assertTrue(figure["min"] <= figure["median"] <= figure["max"], f"{name}: {figure}")
        return figure["median"]

    def near(self, found, expected, tolerance):
        self.assertLessEqual(abs(found - expected), tolerance, f"{found} and {expected}")

    def test_alone(self):
        figures, _ = self.bench("--steps", "1", "--warmup", "1", "--gradient-accumulation-steps", "3", "--residual", "mhc")
        step, compute, rest = (self.median(figures, name) for name in ("step", "compute", "rest"))
        self.assertEqual((figures["residual"], figures["tokens"]), ("mhc", 3 * 2 * 16))
        self.near(figures["tokens_per_second"] * step / (3 * 2 * 16), 1, 1e-6)
        self.near((compute + rest) / step, 1, 1e-3)
        self.assertTrue(compute > 0 and rest > 0 and figures["gemm_rate"] > 0, figures)
        self.assertEqual((self.median(figures, "exposed"), figures["bytes_sent"]), (0, 0))

    def three_ranks(self, per_host):
        """With one step measured, the parts of the mean rank add up to no more than the step of the slowest one, and to much of it, since all wait
        for the sums. What is frozen has no gradients to exchange."""
        figures, _ = self.bench("--steps", "1", "--warmup", "1", "--gradient-accumulation-steps", "6", "--freeze", "mlp", ranks=3,
                                environment={"HCTRAIN_RANKS_PER_HOST": per_host})
        parts, step = sum(self.median(figures, name) for name in ("compute", "exposed", "rest")), self.median(figures, "step")
        self.assertEqual((figures["ranks"], figures["micro_steps"], figures["tokens"]), (3, 2, 6 * 2 * 16))
        self.assertGreater(figures["buckets"], 2)
        self.assertTrue(0.5 * step <= parts <= 1.001 * step, figures)
        self.assertTrue(self.median(figures, "active") > 0 and figures["seconds"]["exchange_alone"] > 0 and figures["memory_rate"] > 0, figures)
        return figures

    def test_three_ranks_that_share_memory(self):
        """Each adds a third of three ranks' gradients and puts the sums where all three have them: reads and writes the size of them."""
        figures = self.three_ranks(3)
        self.assertEqual((figures["near"], figures["bytes_sent"]), (3, 0))
        self.near(figures["bytes_moved_alone"] / (2 * figures["gradient_bytes"]), 1, 0.2)

    def test_three_ranks_across(self):
        """Reduce-scatter and all-gather: 2 (R - 1) / R of the gradients, up to the rounding of parts; in steps the rows of tokens go, too."""
        figures = self.three_ranks(1)
        least = figures["gradient_bytes"] * 4 / 3
        self.assertEqual((figures["across"], figures["bytes_moved_alone"]), (3, 0))
        self.near(figures["bytes_alone"] / least, 1, 0.2)
        self.assertTrue(figures["bytes_alone"] <= figures["bytes_sent"] < 1.5 * least, figures)

    def test_recomputing_needs_less_memory(self):
        off, layer = (self.bench("--n-layer", "6", "--block-size", "64", "--steps", "1", "--recompute", word)[0]["planned_bytes"]
                      for word in ("off", "layer"))
        self.assertLess(layer, 0.8 * off)

    def test_compare(self):
        """Ratios are to the first case with plain residuals, which is 1 to itself."""
        figures, printed = self.bench("--steps", "3", "--warmup", "1", "--n-streams", "3", "--profile", command=(*COMPARE, "shc:2,rc,mhc_lite"))
        cases = figures["cases"]
        self.assertEqual([(case["residual"], case["n_streams"]) for case in cases], [("shc", 2), ("rc", 1), ("mhc_lite", 3)])
        for case in cases:
            self.assertEqual(case["auxiliary"] == 0, case["residual"] == "rc")
            self.assertTrue(self.median(case, "step") > 0 and case["mfu"] > 0 and case["peak_bytes"] > 1e6, case)
            self.near(case["tokens_per_second"] * self.median(case, "step"), case["tokens"], 1e-3)
            self.assertGreater(len(case["kernels"]), 10)
        self.assertEqual(cases[1]["ratio_to_rc"], 1)
        self.assertGreater(cases[0]["ratio_to_rc"], 0.1)
        for text in ("vocabulary 300 (as given)", "of GEMM  the model's FLOPs a second",
                     "to rc    time of a step divided by that of rc in the same round"):
            self.assertIn(text, printed)

    def test_vocabulary(self):
        """It is the one that hc_train would take: what is given, or the data's, with GPT-2's rounded up. The folder that tests run in has no data
        where the default looks for them. Nothing runs, the step is only counted."""
        self.put_json("characters/meta.json", {"vocab_size": 65, "tokenizer": "char"})
        self.put_json("gpt2/meta.json", {"vocab_size": 50257, "tokenizer": "gpt2"})
        self.put_json("same/meta.json", {"vocab_size": 300})
        for size, origin, *words in [(777, "as given", "--vocab-size", "777"), (65, "of the data", "--data-dir", "@characters"),
                                     (50304, "of the data", "--data-dir", "@gpt2"),
                                     (50304, "of GPT-2, as no data are prepared", "--n-streams", "4")]:
            with self.subTest(words):
                printed = self.call("hc_bench", "--roofline", "--as", "a6000", "--n-layer", "1", "--n-embd", "64", "--n-head", "2",
                                    "--block-size", "16", "--json", "@vocabulary.json", *words).printed.decode()
                self.assertEqual(self.json("vocabulary.json")["vocab_size"], size)
                self.assertIn(f"vocabulary {size} ({origin})", printed)
        self.call("hc_bench", "--data-dir", "@nowhere", status=WRONG_USAGE, says="nowhere/meta.json does not exist")
        self.assertIn("vocabulary 300 (of the data)", self.bench("--steps", "1", "--warmup", "0", "--vocab-size", "0", "--data-dir", "@same")[1])

    def test_step_on_demand(self):
        """A line in, a line out; what is known first and last."""
        with open(self.put("two-lines", "a\n\n"), "rb") as lines:
            printed = self.call("hc_bench", *SMALL, "--json", "", "--step-on-demand", stdin=lines).printed.decode()
        self.assertEqual((printed.count("\n"), printed[-1]), (4, "\n"))
        first, *steps, last = map(json.loads, printed.splitlines())
        self.assertEqual(first["parameters"], last["parameters"])
        self.assertTrue(all(step["seconds"] > 0 for step in steps), steps)
        self.assertGreaterEqual(last["peak_bytes"], first["peak_bytes"])

    def test_errors(self):
        for status, says, *words in [(FAILED, "none/timings.json", *SMALL, "--json", "@none/timings.json", "--steps", "1"),
                                     (WRONG_USAGE, "steps", "--steps", "0"),
                                     (WRONG_USAGE, "n_head", "--n-head", "3")]:
            with self.subTest(words):
                self.call("hc_bench", *words, status=status, says=says)
        for status, says, *words in [(WRONG_USAGE, "'nonsense'", "rc,nonsense"),
                                     (WRONG_USAGE, "--n-streams", "shc:9"),
                                     (WRONG_USAGE, "--n-streams", "shc:"),
                                     # one of the processes cannot start
                                     (FAILED, "ended early", "rc,shc", "--device", "nonsense"),
                                     (FAILED, "cannot start no/hc_bench", "rc", "--hc-bench", "no/hc_bench"),
                                     (FAILED, "none/bench.json", "rc", *SMALL, "--steps", "1", "--json", "@none/bench.json"),
                                     (WRONG_USAGE, "n_streams", "rc,shc:1"),
                                     (WRONG_USAGE, "--steps", "rc", "--steps", "0"),
                                     (WRONG_USAGE, "32 variants at most", "rc" + 32 * ",shc")]:
            with self.subTest(words):
                self.call(*COMPARE, *words, status=status, says=says)

    def test_interrupted(self):
        """All processes end with it."""
        run = self.start(*COMPARE, "rc,shc", *SMALL, "--steps", "100000")
        children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children")
        first, second = run.wait_for(lambda: len(children.read_text().split()) == 2 and children.read_text().split())
        self.assertEqual(run.interrupt().status, INTERRUPTED)
        end = time.monotonic() + programs.SECONDS  # one that had just begun ends by itself: its stdin does
        while Path("/proc", first).exists() or Path("/proc", second).exists():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)


if __name__ == "__main__":
    programs.main()
