"""How runs go on: with which settings, how far, and with which lines of their records."""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import FAILED, INTERRUPTED, WRONG_USAGE

MUON = ("--optimizer", "muon")


class TrainSetup(programs.Case):
    def holds(self, name, *texts):
        for text in texts:
            self.assertIn(text, self.text(name), name)

    def size(self, name):
        return self.path(name).stat().st_size

    def evaluations(self, run, iteration):
        return sum("val_loss" in line and line["iter"] == iteration for line in self.metrics(run))

    def resumed(self, run, *more):
        """Six iterations, and three that go on to six in "<run>-parted": the same bits. The last program."""
        self.train(run, *more, "--max-iters", "6")
        self.train(f"{run}-parted", *more, "--max-iters", "3")
        last = self.resume(f"{run}-parted", "--max-iters", "6")
        self.same_run(f"{run}-parted", run, "ckpt-6")
        return last

    def test_run_resumes_without_its_settings_file(self):
        unusual = ("--learning-rate", "3e-3", "--dropout", "0.1", "--weight-decay", "0.3", "--max-iters")
        version = self.call("hc_train", "--version").printed.decode().split()[1]
        self.train("settings-kept", *unusual, "20")
        self.holds("settings-kept/settings.conf", f"# Settings of a run of hctrain {version}\n")
        self.holds("settings-kept/ckpt-20/state.json", f'"version": "{version}"')
        for run in ("settings-removed", "settings-emptied"):
            self.train(run, *unusual, "10")
            if run == "settings-removed":
                self.remove(f"{run}/settings.conf")
            else:
                self.put(f"{run}/settings.conf", "")
            self.resume(run, "--max-iters", "20")
            self.same_run(run, "settings-kept", "ckpt-20")

    def test_run_without_any_settings_is_refused(self):
        self.train("unset", "--max-iters", "2")
        self.change_json("unset/ckpt-2/state.json", "settings")
        self.train("unset", "--init-from", "resume", "--max-iters", "2")
        self.remove("unset/settings.conf")
        self.train("unset", "--init-from", "resume", status=FAILED, says="neither state.json nor settings.conf")

    def test_another_optimizer_is_refused(self):
        """With the same bits, by Muon with settings of its own. Options of another optimizer do nothing."""
        muon = (*MUON, "--muon-learning-rate", "0.02", "--muon-scale", "original", "--muon-coefficients", "2, -1.5, 0.5",
                "--scalar-learning-rate", "1e-3")
        self.train("by-muon", *muon, "--max-iters", "6")
        self.holds("by-muon/settings.conf", 'muon_dtype = "fp32"\n')
        self.train("by-muon-parted", *muon, "--max-iters", "3")
        self.resume("by-muon-parted", "--optimizer", "adamw", "--max-iters", "6", status=WRONG_USAGE, says="the run has optimizer = muon")
        self.resume("by-muon-parted", "--max-iters", "6")
        self.same_run("by-muon-parted", "by-muon", "ckpt-6")
        self.train("by-adamw", "--muon-steps", "2", "--muon-learning-rate", "-0.5", "--muon-coefficients", "9, 0, 0", "--max-iters", "1")
        grow = "singular values of a matrix would grow"
        for says, *more in [("muon_learning_rate = -0.02 is negative", *MUON, "--muon-learning-rate", "-0.02"),
                            ("-1 for the rate of other parameters", "--new-learning-rate", "-0.5"),
                            ("three numbers with commas", *MUON, "--muon-coefficients", "2, -1.5"),
                            (grow, *MUON, "--muon-coefficients", "3.4445, 4.7750, 2.0315")]:
            self.train("by-less", *more, status=WRONG_USAGE, says=says)
        self.resume("by-muon-parted", "--muon-steps", "2", "--muon-coefficients", "9, 0, 0", status=WRONG_USAGE, says=grow)

    # ---- with the same bits; and a run goes on that had another type, or other frozen parts

    def test_states_of_bf16_are_resumed(self):
        self.resumed("bf16", "--moments", "bf16", "--optimizer", "adamw")
        if programs.WHOLE:
            self.resumed("bf16-muon", "--moments", "bf16", *MUON)
        self.assertLess(self.size("bf16/ckpt-6/optimizer.safetensors"), self.size("bf16/ckpt-6/model.safetensors") * 5 // 4)
        self.resume("bf16", "--moments", "fp32", "--max-iters", "7")
        self.assertGreater(self.size("bf16/ckpt-7/optimizer.safetensors"), self.size("bf16/ckpt-7/model.safetensors") * 7 // 4)
        self.resume("bf16", "--moments", "bf16", "--max-iters", "8")
        self.holds("bf16/settings.conf", 'moments = "bf16"\n')

    def test_weights_of_bf16_are_resumed(self):
        bf16 = ("--dtype", "bf16", "--master", "bf16", "--moments", "bf16")
        self.assertIn("master weights in bf16, small ones in fp32", self.resumed("narrow", *bf16, "--optimizer", "adamw").said)
        if programs.WHOLE:
            self.resumed("narrow-muon", *bf16, *MUON)
        self.resume("narrow", "--master", "fp32", "--learning-rate", "0", "--min-lr", "0", "--max-iters", "7")
        self.same_file("narrow/ckpt-6/model.safetensors", "narrow/ckpt-7/model.safetensors")
        self.resume("narrow", "--master", "bf16", "--max-iters", "8")
        self.same_file("narrow/ckpt-7/model.safetensors", "narrow/ckpt-8/model.safetensors")
        self.holds("narrow/settings.conf", 'master = "bf16"\n')
        self.resume("narrow", "--dtype", "fp32", status=FAILED, says="master = bf16 needs dtype = bf16, not fp32")

    def test_frozen_parts_are_resumed(self):
        """What is not trained has no states in the file."""
        self.assertIn("): they keep their values\n", self.resumed("still", "--optimizer", "adamw", "--freeze", "wte|mlp").said)
        if programs.WHOLE:
            self.resumed("still-muon", *MUON, "--freeze", "wte|mlp")
        few = self.size("still/ckpt-6/optimizer.safetensors")
        self.assertLess(few, self.size("still/ckpt-6/model.safetensors"))
        self.resume("still", "--freeze", "", "--max-iters", "7")
        self.assertGreater(self.size("still/ckpt-7/optimizer.safetensors"), 2 * few)
        self.resume("still", "--freeze", "attn", "--max-iters", "8")
        self.assertLess(self.size("still/ckpt-8/optimizer.safetensors"), self.size("still/ckpt-7/optimizer.safetensors"))

    def test_fractions_go_on_with_what_they_do_not_use(self):
        words = ("--residual", "frac", "--n-streams", "2", "--stream-reduce", "sum_norm", "--max-iters")
        self.train("fractions", *words, "1")
        self.train("fractions", "--init-from", "resume", *words, "2")

    def test_rope_fraction_of_nearly_one_is_refused(self):
        for fraction in ("0.9999999", "0.3"):
            self.train("turning", "--position", "rope", "--rope-fraction", fraction, status=WRONG_USAGE, says="no whole number")

    # ---- records

    def test_first_evaluation_outlives_an_interruption(self):
        evaluating = ("--eval-interval", "5", "--eval-iters", "2")
        self.train("begun", "--max-iters", "0", *evaluating)
        self.assertTrue(self.has("begun/ckpt-0"))
        self.assertEqual(self.evaluations("begun", 0), 1)
        self.resume("begun", "--max-iters", "10")
        self.assertEqual(self.evaluations("begun", 0), 1)
        self.train("not-begun", "--max-iters", "10", *evaluating)
        self.same_metrics("begun", "not-begun")

    def test_last_evaluation_stands_once(self):
        evaluating = ("--eval-interval", "1000000", "--eval-iters", "2")
        run = self.start(*self.training("ended", "--max-iters", "100000", "--checkpoint-interval", "3", *evaluating))
        run.wait_for(lambda: self.newest("ended", 1))
        self.ended(run.interrupt(), INTERRUPTED, "interrupted")
        at = self.newest("ended", 1)
        self.assertEqual(self.evaluations("ended", at), 0)
        for _ in range(2):
            self.resume("ended", "--max-iters", at)
            self.assertEqual(self.evaluations("ended", at), 1)
        self.assertEqual(self.evaluations("ended", 0), 1)

    def test_statistics_of_a_branch_given_up_go(self):
        every = ("--statistics-interval", "1")
        self.train("branch", "--max-iters", "10", "--checkpoint-interval", "5", *every)
        self.assertEqual(self.lines("branch/h_statistics.jsonl"), 10)
        self.remove("branch/ckpt-10")
        self.resume("branch", "--max-iters", "7", "--statistics-interval", "0")
        self.assertEqual(self.lines("branch/h_statistics.jsonl"), 5)  # of iterations 0 to 4
        self.assertEqual(self.lines("branch/metrics.jsonl"), 7)
        self.remove("branch/ckpt-7")
        self.resume("branch", "--max-iters", "10", *every)
        self.train("trunk", "--max-iters", "10", *every)
        self.same_file("branch/h_statistics.jsonl", "trunk/h_statistics.jsonl")

    def test_smaller_end_holds_once_a_larger_one_for_good(self):
        """Without its newest checkpoints a run is as if it had been killed after the one before them."""
        self.train("goal", "--max-iters", "20", "--checkpoint-interval", "5", "--keep-checkpoints", "9")
        for at in (20, 15, 10):
            self.remove(f"goal/ckpt-{at}")
        self.resume("goal", "--max-iters", "7")
        self.assertEqual(self.newest("goal"), 7)
        self.resume("goal")
        self.assertEqual(self.newest("goal"), 20)
        longer = self.resume("goal", "--max-iters", "25", "--muon-steps", "4", says="optimizer muon_steps does nothing with optimizer = adamw")
        self.assertNotIn("muon_momentum", longer.said)
        self.remove("goal/ckpt-25")
        self.resume("goal")
        self.assertEqual(self.newest("goal"), 25)

    def test_records_of_more_than_a_gibibyte_are_resumed(self):
        """Holes at its end, as a power cut may leave them, make the file large in no time; lines in between them keep what is read at once small."""
        self.train("large", "--max-iters", "4")
        with open(self.path("large/metrics.jsonl"), "r+b") as file:
            for mebibytes in range(1, 1026):
                os.pwrite(file.fileno(), b"\n", mebibytes << 20)
        self.resume("large", "--max-iters", "6")
        self.train("usual", "--max-iters", "6")
        self.same_metrics("large", "usual")

    # ---- settings

    def test_settings_may_come_through_a_pipe(self):
        """Of a shell's <(...)."""
        for call, text, at in [(self.train, "# a comment\nmax_iters = 3\n", 3), (self.resume, "max_iters = 5\n", 5)]:
            reading, writing = os.pipe()
            os.write(writing, text.encode())
            os.close(writing)
            call("piped", "--config", f"/dev/fd/{reading}", pass_fds=[reading])
            os.close(reading)
            self.assertEqual(self.newest("piped"), at)

    def test_fit_prints_options(self):
        """Options that can be given. What stands behind the colon needs no such device."""
        fit = ("--fit", "64MiB:rx7900xtx", "--batch-size")
        self.train("fitted", *fit, "4", "--gradient-accumulation-steps", "2", says=["fit      64.00 MiB: --batch-size ", "RX 7900 XTX (data sheet)"])
        self.assertFalse(self.has("fitted/settings.conf"))
        self.train("fitted", *fit, "1048576", "--block-size", "4096")  # the model refuses the whole step as one micro-batch
        for status, says, *more in [(FAILED, "can be planned: master = bf16 needs dtype = bf16", "64MiB", "--dtype", "fp32", "--master", "bf16"),
                                    (FAILED, "nothing fits into", "2MB", "--n-embd", "256"),
                                    (WRONG_USAGE, "a size like 16GiB", "much")]:
            self.train("unfitted", "--fit", *more, status=status, says=says)


if __name__ == "__main__":
    programs.main()
