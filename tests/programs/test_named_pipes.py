"""Named pipes in place of files: in the folders of runs, checkpoints, data and exported models, one file at a time. Nobody writes to the pipe, so
that a program that opened it as a file would wait for ever. Each program refuses it and names it, or has no need of it."""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import INTERRUPTED

TRAIN = ("hc_train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir")
AGAIN = (*TRAIN, "@run", "--init-from", "resume", "--max-iters", "2")
NEW = (*TRAIN, "@new", "--start-over", "--max-iters", "1")
EXPORT = ("hc_export", "--format", "torch", "--checkpoint", "@run/ckpt-2", "--out")
SAMPLE = ("hc_sample", "--device", "pocl", "--max-new-tokens", "1", "--checkpoint")
PROBE = ("hc_probe", "--device", "pocl", "--out", "@probed", "--checkpoint", "@run/ckpt-2", "--batch")
SCORE = ("hc_eval", "--device", "pocl", "--eval-iters", "1", "--data", "@data", "--checkpoint", "@run/ckpt-2")
ANALYZE = ("hc_analyze", "--device", "pocl", "--samples", "1", "--data-dir", "@data", "--out", "@report", "@run")
SLOW = [ANALYZE] if programs.WHOLE else []


class NamedPipes(programs.Case):
    @classmethod
    def begin(cls):
        super().begin()
        cls.made(*TRAIN, "@run", "--max-iters", "2", "--statistics-interval", "1", "--residual", "mhc")
        cls.made(*EXPORT, "@exported")
        cls.put_batch("batch", ((1, 16), [1, 2, 3]), ((1, 16), [1, 2, 3]))
        cls.put("run/eval-a.json", "{}")

    def walk(self, folder, *commands, is_refused=False):
        """How many files the folder has; all of the commands are run with a pipe in the place of each. Refused: they do need it."""
        names = [entry.name for entry in os.scandir(self.path(folder)) if entry.is_file()]
        for name in names:
            self.rename(f"{folder}/{name}", "aside")
            os.mkfifo(self.path(f"{folder}/{name}"), 0o600)
            for words in commands:
                with self.subTest(pipe=name, words=words):
                    run = self.start(*words).finish()
                    self.assertGreaterEqual(run.status, 1 if is_refused else 0, run.said)
                    if run.status != 0:
                        self.assertIn(name, run.said)
            self.rename("aside", f"{folder}/{name}")
        return len(names)

    def test_runs(self):
        self.assertGreaterEqual(self.walk("run", AGAIN, ("hc_analyze", "--out", "@report", "@run")), 4)  # settings, metrics, statistics, eval-a.json

    def test_checkpoints(self):
        files = self.walk("run/ckpt-2", AGAIN, (*NEW, "--init-from", "@run/ckpt-2"), (*SAMPLE, "@run/ckpt-2"), SCORE, (*PROBE, "@batch"),
                          (*EXPORT, "@exported-again"), *SLOW)
        self.assertEqual(files, 4)

    def test_data_folders(self):
        files = self.walk("data", NEW, ("hc_bench", "--config", "@tiny.conf", "--data-dir", "@data", "--steps", "1", "--warmup", "0"), SCORE,
                          ("hc_prepare", "--out", "@data", "@text.txt"), *SLOW)
        self.assertGreaterEqual(files, 3)

    def test_unfinished_preparations(self):
        self.put("long.txt", "the cat sat on a mat and ran\n\n" * (1 << 22))
        words = ("hc_prepare", "--threads", "1", "--out", "@half", "@long.txt")
        run = self.start(*words)
        run.wait_for(lambda: self.has("half/.hc_prepare/val.bin"))
        self.ended(run.interrupt(), INTERRUPTED)
        self.assertGreaterEqual(self.walk("half/.hc_prepare", words, is_refused=True), 3)  # state.json, train.bin, val.bin

    def test_exported_models(self):
        self.assertGreaterEqual(self.walk("exported", (*SAMPLE, "@exported"), (*NEW, "--init-from", "@exported")), 2)

    def test_files_that_are_named(self):
        os.mkfifo(self.path("pipe"), 0o600)
        for words in [("hc_prepare", "--vocab-file", "@pipe", "--tokenizer", "gpt2", "--out", "@ordered", "@text.txt"),
                      ("hc_prepare", "--documents", "files", "--order", "@pipe", "--out", "@ordered", "@text.txt"),
                      (*PROBE, "@pipe")]:
            self.refused("/pipe: it is not a regular file", *words)


if __name__ == "__main__":
    programs.main()
