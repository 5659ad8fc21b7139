"""hc_train, run as a program: runs that are repeated, interrupted, killed and resumed, and what they leave."""
import fcntl
import math
import os
import random
import signal
import struct
import sys
import termios
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import FAILED, INTERRUPTED, WRONG_USAGE

FP16 = ("--dtype", "fp16")
RESUME = ("--init-from", "resume")


class TrainLoop(programs.Case):
    # ---- repeating and resuming

    def test_run_is_the_same_twice_and_in_two_parts(self):
        """With evaluations, since those must not disturb training."""
        for residual in ("mhc", "shc") if programs.WHOLE else ("mhc",):
            more = ("--residual", residual, "--stream-expand", "scaled", "--seed", "1", "--dropout", "0.1", "--gradient-accumulation-steps", "3",
                    "--eval-interval", "5", "--eval-iters", "2")
            first, second, parted = (f"{residual}-{kind}" for kind in ("once", "twice", "parted"))
            self.train(first, *more)
            self.train(second, *more)
            self.train(parted, *more, "--max-iters", "10")
            self.train(parted, *more, *RESUME)
            self.same_run(first, second, "ckpt-20")
            self.same_run(first, parted, "ckpt-20")
            lines = self.metrics(first)
            self.assertEqual(len(lines), 20 + 5)
            self.assertLess(lines[23]["loss"], lines[1]["loss"] - 0.5)  # it learns

    def train_with_overflow(self, run, *parts):
        """Trains in fp16, from iteration 2 on with a scale at which gradients overflow; then to each of these iterations."""
        self.train(run, *FP16, "--max-iters", "2")
        self.change_json(f"{run}/ckpt-2/state.json", "loss_scale.scale", 2.0 ** 32)
        for end, *more in parts:
            self.train(run, *FP16, *RESUME, "--max-iters", end, *more)

    def test_fp16_run_leaves_out_steps_that_overflow(self):
        """The scale falls until a step does not overflow; resuming changes nothing."""
        self.train_with_overflow("overflow", (30,))
        self.train_with_overflow("overflow-in-parts", (25,), (30, "--log-interval", "1"))
        self.same_run("overflow", "overflow-in-parts", "ckpt-30")
        lines = self.metrics("overflow")
        self.assertEqual(len(lines), 30)
        skipped = 0
        for line in lines[2:]:
            self.assertEqual(line["loss_scale"], 2.0 ** (32 - skipped))
            skipped += line["grad_norm"] is None
            self.assertEqual(line["skipped"], skipped)
        self.assertTrue(2 < skipped < 25, skipped)
        self.assertIsNotNone(lines[29]["grad_norm"])
        self.assertLess(lines[29]["loss"], lines[2]["loss"])
        self.train_with_overflow("overflow-logged", (30, "--log-interval", "100"))
        self.assertEqual(len(self.metrics("overflow-logged")), 2 + skipped)  # the two first ones were logged before
        for run, key, value in [("overflow", "loss_scale.scale", 3.0), ("overflow-in-parts", "loss_scale.skipped", 31)]:
            self.change_json(f"{run}/ckpt-30/state.json", key, value)
            self.train(run, *FP16, *RESUME, "--max-iters", "31", status=FAILED, says="state.json: loss_scale is not one")

    def test_another_seed_is_another_run(self):
        for seed in (1, 2):
            self.train(f"seed-{seed}", "--seed", seed, "--max-iters", "2")
        self.assertNotEqual(self.metrics("seed-1"), self.metrics("seed-2"))

    def test_split_into_micro_batches_does_not_matter(self):
        """The same global batch in one, two or four micro-batches; with dropout, which depends on a row's place in it."""
        for size, steps in ((4, 1), (2, 2), (1, 4)):
            self.train(f"split-{steps}", "--batch-size", size, "--gradient-accumulation-steps", steps, "--max-iters", "6", "--dropout", "0.1")
            self.near_metrics("split-1", f"split-{steps}", 6, 1e-5)

    # ---- the learning rate's schedule

    def train_open(self, run, *more, **setup):
        """Without the --lr-decay-iters of the others."""
        return self.call("hc_train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir", f"@{run}", *more, **setup)

    def rates(self, run, rates):
        lines = self.metrics(run)
        for index, rate in rates.items():
            self.assertLessEqual(abs(lines[index]["lr"] - rate), 1e-8 * rate, index)

    def test_schedule_follows_and_then_stays(self):
        """What is left open follows, and is said; a resumed run keeps it, with the same command, and where more iterations are given."""
        rate = ("--learning-rate", "4e-3", "--checkpoint-interval", "6")
        self.train_open("follows", *rate, "--max-iters", "12", says=[
            "schedule min_lr = 0.0004, a tenth of learning_rate\n",
            "schedule lr_decay_iters = 12, the number of iterations (replaces lr_decay_iters = 20, which was given before max_iters)\n"])
        self.train_open("in-parts", *rate, "--max-iters", "12")
        self.remove("in-parts/ckpt-12")
        self.assertNotIn("schedule", self.train_open("in-parts", *rate, "--max-iters", "12", *RESUME).said)
        self.same_run("follows", "in-parts", "ckpt-12")
        self.train_open("in-parts", *rate, "--max-iters", "15", *RESUME, says="schedule max_iters is 15 now, and lr_decay_iters is 12: ")
        self.rates("in-parts", {0: 4e-3 / 2, 1: 4e-3, 12: 4e-4, 14: 4e-4})  # a tenth of 12 is 1 iteration of warm-up

    def test_schedule_of_an_earlier_version_stays(self):
        """One that it saved is gone on with whatever it is."""
        saved = ("--lr-decay-iters", "10000", "--warmup-iters", "200", "--min-lr", "6e-5", "--learning-rate", "3e-5", "--max-iters", "4")
        self.train_open("risen", *saved, status=WRONG_USAGE, says="would rise")
        self.assertFalse(self.has("risen"))
        self.train_open("risen", *saved, "--min-lr", "1e-5")
        for name in ("risen/settings.conf", "risen/ckpt-4/state.json"):
            self.put(name, self.text(name).replace("min_lr = 1e-05", "min_lr = 6e-05"))
        self.train_open("risen", "--learning-rate", "3e-5", "--max-iters", "6", *RESUME)
        self.rates("risen", {5: 3e-5 * 6 / 201})
        self.assertIn("min_lr = 6e-05\nwarmup_iters = 200\nlr_decay_iters = 10000\n", self.text("risen/settings.conf"))
        self.train_open("falling", "--max-iters", "2")
        self.train_open("falling", "--max-iters", "4", "--min-lr", "1", *RESUME, status=WRONG_USAGE, says="would rise")

    # ---- a time budget

    def keeps_time(self, run, seconds, began=0.0, first=0):
        """Each step from `first` on has the rate of the share of the time when it began, of 20 iterations, and the last one ends the time."""
        steps = [line for line in self.records(f"{run}/metrics.jsonl") if "lr" in line][first:]
        for line in steps:
            now = 20 * began / seconds
            rate = 1e-2 * (now + 1) / 3 if now < 2 else 1e-2 - 9e-3 * min(1, (now - 2) / 18)
            self.assertLessEqual(abs(line["lr"] - rate), 1e-6 * rate, line)
            self.assertLess(began, seconds)
            began = line["time"]
        self.assertGreaterEqual(began, seconds)
        return len(steps) + first

    def test_time_ends_a_run(self):
        """Not max_iters, and as that does: with an evaluation and a checkpoint. More time goes on at the end of the schedule, less has passed."""
        clock = ("--lr-schedule", "linear", "--eval-iters", "2", "--checkpoint-interval", "100000", "--max-seconds")
        self.train("timed", *clock, "2", says=", second ")
        count = self.keeps_time("timed", 2)
        self.assertEqual((self.newest("timed"), self.metrics("timed")[-1]["iter"]), (count, count))
        self.assertGreaterEqual(self.json(f"timed/ckpt-{count}/state.json")["seconds"], 2)
        self.train("timed", *RESUME, "--max-seconds", "1", says=f"ckpt-{count} has trained for ")
        self.assertEqual(self.newest("timed"), count)
        self.train("timed", *RESUME, "--max-iters", "3", status=WRONG_USAGE, says="leave max_iters out")
        self.train("timed", *RESUME, "--max-seconds", "4", says="schedule max_iters is 40 now, and lr_decay_iters is 20: ")
        later = [line for line in self.records("timed/metrics.jsonl") if "lr" in line][count:]
        self.assertEqual({line["lr"] for line in later}, {1e-3})
        self.assertTrue(2 < later[0]["time"] < 4 <= later[-1]["time"])
        self.train("timed", *RESUME, "--max-seconds", "0", status=WRONG_USAGE, says="the run ends by max_seconds = 4: give another number")
        self.train("counted", "--max-iters", "1")
        self.train("counted", *RESUME, "--max-seconds", "5", status=WRONG_USAGE, says="leave max_seconds out")

    def test_an_interrupted_run_counts_on(self):
        """Where an interruption has left off, and where this process shall go no further."""
        run = self.start(*self.training("paused", "--lr-schedule", "linear", "--max-seconds", "8"))
        run.wait_for(lambda: self.newest("paused"))
        self.ended(run.interrupt(signal.SIGTERM), INTERRUPTED)
        for end in (6, 8):
            at = self.newest("paused")
            began = self.json(f"paused/ckpt-{at}/state.json")["seconds"]
            self.train("paused", *RESUME, "--max-seconds", end, says="after 6 s this time; max_seconds of the run stays 8" if end == 6 else ())
            self.assertTrue(self.json(f"paused/ckpt-{self.newest('paused')}/state.json")["seconds"] >= end > began)
        self.keeps_time("paused", 8, began, at)

    def test_schedule_of_a_probe(self):
        """Its iterations are those of the golden batches, four."""
        golden = Path(__file__).resolve().parent.parent / "golden/rc"
        for source, target in (("config.json", "config.json"), ("train_init.safetensors", "model.safetensors")):
            self.copy(golden / source, f"init/{target}")
        probe = ("hc_probe", "--device", "pocl", "--train", "--checkpoint", "@init", "--batch", golden / "train_batches.safetensors", "--out")
        self.call(*probe, "@rising", "--learning-rate", "1e-3", "--min-lr", "2e-3", status=WRONG_USAGE, says="would rise")
        self.call(*probe, "@open", "--learning-rate", "6e-3", says="schedule lr_decay_iters = 4, ")
        given = ("--learning-rate", "6e-3", "--min-lr", "6e-4", "--lr-decay-iters", "4", "--warmup-iters", "0")
        self.assertNotIn("schedule", self.call(*probe, "@given", *given).said)
        self.same_file("open/losses.json", "given/losses.json")

    # ---- on a terminal

    def test_progress_fits_a_terminal(self):
        """Evaluations count their batches, and no line is too long to be written over; lines that stay may be longer."""
        master, terminal = os.openpty()
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        run = self.start(*self.training("terminal", "--max-iters", "2", "--eval-interval", "2", "--eval-iters", "3"), errors=terminal)
        os.close(terminal)
        text = ""
        try:
            while read := os.read(master, 65536):
                text += read.decode()
        except OSError:  # at the end
            os.close(master)
        self.ended(run.finish())
        self.assertIn("evaluating train.bin: batches 0/3 [", text)
        for part in text.split("\r\x1b[K")[1:]:
            line = part.partition("\r")[0].partition("\n")[0]
            self.assertTrue(len(line) < 80 or part[len(line) + 1] == "\n", line)

    # ---- interruption and death

    def test_killed_run_always_resumes(self):
        at, chosen = 0, random.Random(3)
        for i in range(100 if programs.WHOLE else 6):
            more = ("--checkpoint-interval", "1", "--init-from", "resume" if i else "scratch")
            run = self.start(*self.training("killed", "--max-iters", "100000", *more))
            if i % 3 < 2:
                run.wait_for(lambda: self.newest("killed", at + 1))
            time.sleep(chosen.randrange(40 if i % 3 < 2 else 1000) / 1000)  # each third one is killed while it starts, or at any time
            self.ended(run.interrupt(signal.SIGKILL), -signal.SIGKILL)
            at = self.newest("killed", at + (i % 3 < 2))
        self.train("killed", "--max-iters", at + 2, *RESUME)
        self.train("unharmed", "--max-iters", at + 2)
        self.same_run("killed", "unharmed", f"ckpt-{at + 2}")
        self.assertEqual(self.entries("killed"), 4)  # two checkpoints, metrics, settings: no leftovers

    def test_run_that_is_to_end_saves_and_resumes(self):
        """As by Ctrl-C."""
        run = self.start(*self.training("terminated", "--max-iters", "100000", "--checkpoint-interval", "3"))
        run.wait_for(lambda: self.newest("terminated", 1))
        self.ended(run.interrupt(signal.SIGTERM), INTERRUPTED, "interrupted; go on with --init-from resume")
        at = self.newest("terminated", 1)
        self.train("terminated", "--max-iters", at + 3, *RESUME)
        self.assertTrue(self.has(f"terminated/ckpt-{at + 3}"))

    # ---- trouble

    def test_numbers_that_are_not_finite_stop_the_run(self):
        """A loss of 1e30 is a number, and the square of its gradients is none."""
        self.train("before-nan", "--max-iters", "3")
        self.copy("before-nan/ckpt-3/config.json", "wrong/config.json")
        weights = self.path("before-nan/ckpt-3/model.safetensors").read_bytes()
        for run, weight, says in [("with-nan", 3e38, "the loss is not finite at iteration 0"),
                                  ("steep", 1e30, "the gradient norm is not finite at iteration 0"),
                                  ("of-nan", math.nan, ["wrong/model.safetensors: element ", "is nan: the file is damaged"])]:
            self.put("wrong/model.safetensors", weights[:-4] + struct.pack("<f", weight))  # of ln_f or the last layer
            self.train(run, "--init-from", "@wrong", status=FAILED, says=says)
        self.assertEqual((self.has("with-nan/ckpt-0"), self.has("of-nan/ckpt-0")), (True, False))

    def test_divergence_keeps_the_last_good_weights(self):
        """A run that grows out of range on its own keeps the weights from before, all finite."""
        run = self.train("diverging", "--residual", "hc", "--learning-rate", "10", "--grad-clip", "0", "--warmup-iters", "0", "--min-lr", "10",
                         "--weight-decay", "10", "--max-iters", "2000", "--checkpoint-interval", "2", "--keep-checkpoints", "1", status=FAILED,
                         says="not finite at iteration")
        at = self.newest("diverging")
        self.assertGreater(at, 0)
        self.assertIn(f"at iteration {at} ", run.said)
        self.assertEqual(self.entries("diverging"), (2 if at % 2 else 1) + 2)  # the periodic one before it stays, though one is to be kept
        last = self.metrics("diverging")[-1]
        self.assertEqual((last["iter"], last["grad_norm"]), (at, None))

    def test_full_disk_leaves_the_older_checkpoint(self):
        self.train("full", "--vocab-size", "4096", "--max-iters", "10")
        # weights and what PoCL writes fit, the optimizer's states do not
        self.train("full", *RESUME, status=FAILED, says=["cannot save checkpoint", "File too large"], file_bytes=400000)
        self.assertFalse(self.has("full/ckpt-20"))
        self.train("full", *RESUME)
        self.train("not-full", "--vocab-size", "4096")
        self.same_run("full", "not-full", "ckpt-20")

    # ---- checkpoints

    def test_newest_checkpoints_are_kept(self):
        self.train("kept", "--max-iters", "10", "--checkpoint-interval", "2", "--keep-checkpoints", "3")
        self.assertEqual([i for i in range(11) if self.has(f"kept/ckpt-{i}")], [6, 8, 10])

    def test_best_checkpoint_is_that_of_the_lowest_validation_loss(self):
        self.train("best", "--eval-interval", "4", "--eval-iters", "3")
        lowest, at = min((line["val_loss"], line["iter"]) for line in self.metrics("best") if "val_loss" in line)
        saved = self.json("best/ckpt-best/state.json")
        self.assertEqual(saved["iteration"], at)
        self.assertLess(abs(saved["best_val_loss"] - lowest), 1e-6)
        self.assertTrue(self.has("best/ckpt-best/config.json", "best/ckpt-best/model.safetensors"))

    def test_saved_settings_repeat_where_a_run_began(self):
        def repeat(run, *more, **setup):
            return self.call("hc_train", "--config", "@child/settings.conf", "--out-dir", f"@{run}", *more, **setup)

        self.train("origin", "--residual", "rc", "--max-iters", "5")
        self.train("child", "--init-from", "@origin/ckpt-5", "--residual", "mhc", "--freeze", "wte", "--max-iters", "2")
        self.train("child", *RESUME, "--max-iters", "4")
        repeat("child-again")
        self.same_run("child", "child-again", "ckpt-4")
        self.same_file("child/settings.conf", "child-again/settings.conf")  # but for out_dir, which is not there
        repeat("child-scratch", "--init-from", "scratch", "--max-iters", "1")
        self.train("newer", "--residual", "rc", "--max-iters", "5", "--seed", "3")
        repeat("child-newer", "--init-from", "@newer/ckpt-5")
        self.remove("origin/ckpt-5")
        repeat("child-lost", status=FAILED, says="origin/ckpt-5/config.json")
        self.train("child", *RESUME, "--max-iters", "5")
        self.rename("newer/ckpt-5", "origin/ckpt-5")
        repeat("child-other", status=FAILED, says="these are other weights than the ones whose checksum is")
        self.assertFalse(self.has("child-other"))

    def test_defaults_agree_with_any_model(self):
        """Defaults that stand for what the model has."""
        self.train("grouped", "--residual", "rc", "--n-head", "4", "--n-kv-head", "2", "--head-dim", "4", "--mlp-width", "24", "--norm-eps", "1e-3",
                   "--qkv-bias=true", "--max-iters", "1")
        begin = ("--init-from", "@grouped/ckpt-1", "--n-head", "4")
        self.train("grouped-on", *begin, "--n-kv-head", "0", "--head-dim", "0", "--mlp-width", "0", "--norm-eps", "0", "--qkv-bias=as_bias",
                   "--vocab-size", "0", "--max-iters", "0")
        self.same_file("grouped/ckpt-1/config.json", "grouped-on/ckpt-0/config.json")
        self.train("grouped-other", *begin, "--n-kv-head", "4", status=FAILED, says="was saved with another n_kv_head")

    def test_run_that_starts_from_another_variant_resumes(self):
        """The saved settings name the variant that came with the weights, not the default."""
        self.train("source-mhc", "--residual", "mhc", "--stream-reduce", "sum_norm", "--max-iters", "2")
        self.train("from-mhc", "--init-from", "@source-mhc/ckpt-2", "--max-iters", "2")
        self.train("from-mhc", *RESUME, "--max-iters", "3")
        self.assertTrue(self.has("from-mhc/ckpt-3"))

    def test_frozen_alpha_res_keeps_its_bits(self):
        """Moments from before do not move it either."""
        ohc = ("--residual", "ohc", "--checkpoint-interval", "4", "--max-iters")
        self.train("frozen", *ohc, "4")
        for before, after, option in ((4, 8, "--freeze-alpha-res"), (8, 12, "--no-freeze-alpha-res")):
            self.train("frozen", *ohc, after, *RESUME, option)
            self.kept_alpha_res("frozen", before, after, after == 8)

    def test_run_directory_has_one_writer(self):
        run = self.start(*self.training("locked", "--max-iters", "100000", "--checkpoint-interval", "1"))
        run.wait_for(lambda: self.newest("locked", 1))
        self.train("locked", *RESUME, "--max-iters", "100000", status=FAILED, says="another process is writing to")
        self.ended(run.interrupt(signal.SIGKILL), -signal.SIGKILL)
        self.train("locked", *RESUME, "--max-iters", "1", says="give a larger --max-iters to go on")

    def test_interrupted_evaluation_is_made_up_for(self):
        """What a checkpoint says that was saved while an evaluation was interrupted."""
        evaluating = ("--eval-interval", "2", "--eval-iters", "1")
        self.train("unevaluated", "--max-iters", "4", *evaluating)
        saved = self.json("unevaluated/ckpt-4/state.json")
        self.assertEqual(saved["evaluated_at"], 4)
        self.assertGreater(saved["seconds"], 0)
        self.change_json("unevaluated/ckpt-4/state.json", "evaluated_at", 2)
        before = self.lines("unevaluated/metrics.jsonl")
        self.train("unevaluated", *RESUME, *evaluating)
        self.assertEqual(self.lines("unevaluated/metrics.jsonl"), before + 16 + 8)  # steps, evaluations at 6, 8 .. 20; that at 4 replaces its line

    def test_settings_that_contradict_the_checkpoint_are_refused(self):
        self.train("settled", "--max-iters", "2", "--residual", "mhc")
        for more in [("--n-streams", "2"), ("--residual", "shc"), ("--block-size", "8"), ("--bias", "--no-profile"), ("--sinkhorn-iters", "10"),
                     ("--stream-reduce", "sum_norm"), ("--stream-expand", "scaled")]:
            self.train("settled", *RESUME, *more, status=FAILED, says="was saved with another")
        self.train("settled", *RESUME, "--seed", "7", status=FAILED, says="was trained with seed 1337")
        self.train("settled", status=FAILED, says="already holds a run")
        self.train("nowhere", *RESUME, status=FAILED, says="nowhere")
        self.assertFalse(self.has("nowhere"))
        self.train("settled", *RESUME, "--max-iters", "4", "--residual", "mhc")

    def test_statistics_are_a_line_each(self):
        """Every interval, and at the last iteration, where a run is looked at first. The settings name the device, for reports."""
        self.train("observed", "--max-iters", "8", "--statistics-interval", "3")
        lines = self.records("observed/h_statistics.jsonl")
        self.assertEqual([line["iter"] for line in lines], [0, 3, 6, 7])
        for line in lines:
            self.assertLess(abs(line["composite_norm_max"] - 1), 1e-5)
        self.assertEqual(self.entries("observed"), 4)
        self.assertRegex(self.text("observed/settings.conf"), "\n# device: .")

    def test_recomputing_changes_nothing(self):
        """Layers that run forward again do so to the same bits, dropout and observations included."""
        for residual in ("shc", "mudd", "rc", "hc", "gated", "dar", "frac", "laurel") if programs.WHOLE else ("shc",):
            kept, again = f"kept-{residual}", f"again-{residual}"
            deep = ("--residual", residual, "--n-layer", "3", "--dropout", "0.1", "--gradient-accumulation-steps", "2", "--statistics-interval", "2",
                    "--eval-interval", "5", "--eval-iters", "2")
            self.train(kept, *deep)
            self.train(again, *deep, "--recompute", "layer")
            self.same_run(kept, again, "ckpt-20")
            if residual in ("shc", "hc"):  # which have matrices
                self.same_file(f"{kept}/h_statistics.jsonl", f"{again}/h_statistics.jsonl")


if __name__ == "__main__":
    programs.main()
