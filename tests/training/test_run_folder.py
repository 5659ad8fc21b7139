"""What a run's folder may hold, what runs leave alone there, and who may write to it."""
import fcntl
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import FAILED, INTERRUPTED, WRONG_USAGE

SCORE = ("hc_eval", "--checkpoint", "@base/ckpt-2", "--device", "pocl")
EXPORT = ("hc_export", "--format", "torch", "--checkpoint")


class RunFolder(programs.Case):
    @classmethod
    def begin(cls):
        super().begin()
        cls.put("short.txt", "the cat sat on a mat and ran\n")
        cls.made(*cls.training("base", "--max-iters", "2", "--checkpoint-interval", "1"))

    def test_files_of_others_are_spared(self):
        """Names like those of leftovers: a folder of somebody's, and what a process of another host may be writing."""
        theirs = ["others/.tmp-mystuff/thesis", "others/.tmp-mystuff", "others/.tmp-old-00000000-1-1"]
        self.put(theirs[0], "mine")
        self.put(theirs[2], "theirs")
        for name in theirs:
            os.utime(self.path(name), (time.time() - 7200,) * 2)
        self.train("others", "--max-iters", "2")
        self.call(*SCORE, "--json", "@others/r.json", "@short.txt")
        self.assertTrue(self.has(*theirs))

    def test_what_a_run_left_keeps_others_out(self):
        self.train("left", "--max-iters", "4", "--eval-interval", "2", "--eval-iters", "1", "--statistics-interval", "1")
        for name in ("ckpt-best", "metrics.jsonl", "h_statistics.jsonl"):
            self.rename(f"left/{name}", f"only-{name}/{name}")
            self.train(f"only-{name}", "--max-iters", "2", status=FAILED, says="already holds a run")
            self.assertEqual(self.entries(f"only-{name}"), 1)

    def test_empty_records_are_no_run(self):
        """As a run leaves them that was killed before its first iteration."""
        self.put("stillborn/metrics.jsonl", "")
        self.put("stillborn/h_statistics.jsonl", "")
        self.train("stillborn", "--max-iters", "2")
        self.assertEqual(self.lines("stillborn/metrics.jsonl"), 2)

    def test_starting_over_removes_the_earlier_run_and_nothing_else(self):
        self.train("again", "--max-iters", "4", "--eval-interval", "2", "--eval-iters", "1", "--statistics-interval", "1", "--checkpoint-interval", "2")
        self.put("again/notes.txt", "mine")
        self.assertEqual(self.entries("again"), 7)
        self.resume("again", "--start-over", status=WRONG_USAGE, says="start-over")
        self.assertTrue(self.has("again/ckpt-4", "again/ckpt-best"))
        self.train("again", "--start-over", "--max-iters", "3")
        self.train("afresh", "--max-iters", "3")
        self.same_run("again", "afresh", "ckpt-3")
        self.assertTrue(self.has("again/notes.txt"))
        self.assertEqual(self.entries("again"), 4)  # checkpoint, metrics, settings, notes
        self.train("again", "--max-iters", "3", status=FAILED, says="already holds a run")

    def test_starting_over_from_its_own_checkpoint_loses_nothing(self):
        """The checkpoint to begin with is one of those that would be removed: refused, or read before."""
        self.train("circle", "--max-iters", "3")
        self.copy("circle/ckpt-3/model.safetensors", "circle.safetensors")
        run = self.train("circle", "--start-over", "--init-from", "@circle/ckpt-3", "--max-iters", "0", status=(0, 1, 2))
        self.same_file(f"circle/ckpt-{3 if run.status else 0}/model.safetensors", "circle.safetensors")

    def test_starting_over_waits_until_all_is_well(self):
        """What goes wrong with a new run costs the old one nothing."""
        self.train("precious", "--max-iters", "2", "--checkpoint-interval", "1")
        self.train("precious", "--start-over", "--init-from", "@precious/ckpt-2", status=FAILED, says="which the new run begins with")
        self.train("precious", "--start-over", status=FAILED, file_bytes=1)  # where nothing can be written, messages are lost too
        self.put("precious/ckpt-100/model.pt", "mine")
        self.train("precious", "--start-over", status=FAILED, says="ckpt-100 is no checkpoint of this program's")
        self.assertTrue(self.has("precious/ckpt-1/state.json", "precious/ckpt-2/state.json", "precious/ckpt-100/model.pt"))

    def test_of_two_runs_in_a_new_folder_one_trains(self):
        """One of them is held: its stderr is a full pipe, so it waits with its first message until the other one has ended."""
        for number in range(5 if programs.WHOLE else 2):
            reading, writing = os.pipe()
            room = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
            os.write(writing, bytes(room))
            words = self.training(f"race-{number}", "--max-iters", "1")
            runs = [self.start(*words, errors=writing if is_held else None) for is_held in ((True, False) if number % 2 else (False, True))]
            held, free = runs if number % 2 else runs[::-1]
            os.close(writing)
            free.finish()
            with os.fdopen(reading, "rb") as pipe:
                held.said = pipe.read().strip(b"\0").decode()
            held.finish()
            winner, loser = sorted(runs, key=lambda run: run.status)
            self.ended(winner)
            self.assertEqual(loser.status, FAILED, loser.said)
            self.assertRegex(loser.said, "another process is writing to|already holds a run")
            self.assertTrue(self.has(f"race-{number}/ckpt-1"))
            self.assertEqual(self.lines(f"race-{number}/metrics.jsonl"), 1)

    def test_run_follows_its_folder(self):
        run = self.start(*self.training("departing", "--max-iters", "100000", "--checkpoint-interval", "3"))
        run.wait_for(lambda: self.newest("departing", 1))
        self.rename("departing", "elsewhere")
        later = self.newest("elsewhere") + 4
        run.wait_for(lambda: self.newest("elsewhere", later))  # begun after the move
        self.ended(run.interrupt(), INTERRUPTED, "interrupted")
        self.assertFalse(self.has("departing"))
        at = self.newest("elsewhere")
        self.assertEqual(self.lines("elsewhere/metrics.jsonl"), at)
        self.resume("elsewhere", "--max-iters", at + 3)
        self.train("sedentary", "--max-iters", at + 3)
        self.same_run("elsewhere", "sedentary", f"ckpt-{at + 3}")

    def test_texts_named_like_records_are_kept(self):
        """A text of that name that is no record of a run; but a line that a full disk has torn is one."""
        self.train("texts", "--max-iters", "2")
        for text in ("my notes\nof the run\n", "mine"):
            self.put("texts/metrics.jsonl", text)
            self.resume("texts", "--max-iters", "4", status=FAILED, says="no line of it is of a run")
            self.assertEqual(self.text("texts/metrics.jsonl"), text)
        self.put("texts/metrics.jsonl", '{"iter":0,"lo')
        self.resume("texts", "--max-iters", "4")
        self.assertEqual(self.lines("texts/metrics.jsonl"), 2)

    def test_other_files_outlive_checkpoints(self):
        """They are pruned, left by a run that starts over, and written over."""
        self.train("annotated", "--max-iters", "3", "--checkpoint-interval", "2")
        self.put("annotated/ckpt-2/notes.txt", "mine")
        self.put("annotated/ckpt-3/notes.txt", "mine")
        self.resume("annotated", "--max-iters", "4", "--keep-checkpoints", "1")
        self.assertEqual((self.entries("annotated/ckpt-2"), self.entries("annotated/ckpt-3")), (1, 1))
        self.train("annotated", "--start-over", "--max-iters", "4", status=FAILED, says="is no checkpoint of this program's")
        self.remove("annotated/ckpt-2")
        self.remove("annotated/ckpt-3")
        self.put("annotated/ckpt-4/notes.txt", "mine")
        self.train("annotated", "--start-over", "--max-iters", "4")
        self.train("not-annotated", "--max-iters", "4")
        self.assertEqual(self.text("annotated/ckpt-4/notes.txt"), "mine")
        self.same_checkpoint("annotated", "not-annotated", "ckpt-4")

    def test_checkpoint_of_another_name_is_refused(self):
        self.train("misnamed", "--max-iters", "2")
        self.rename("misnamed/ckpt-2", "misnamed/ckpt-500")
        self.train("misnamed", "--init-from", "resume", status=FAILED, says="is of iteration 2")

    # ---- links: outputs go through them, and runs write to nothing that a link in their folder leads to

    def test_results_may_go_through_a_link(self):
        """Of a folder or of the file, over older results."""
        self.call(*EXPORT, "@base/ckpt-2", "--out", "@direct")
        self.train("plain", "--max-iters", "4")
        self.train("real-0", "--max-iters", "3")
        self.call("hc_prepare", "@short.txt", "--out", "@real-1")
        self.put("real-2/r.json", "")
        self.call(*EXPORT, "@base/ckpt-1", "--out", "@real-3")
        self.put("real-4/report.html", "")
        rows = [("ckpt-2/model.safetensors", "hc_train", "--config", "@tiny.conf", "--data-dir", "@data", "--max-iters", "2", "--lr-decay-iters", "20",
                 "--start-over", "--out-dir"),
                ("train.bin", "hc_prepare", "@text.txt", "--out"),
                ("r.json", *SCORE, "@short.txt", "--json"),
                ("model.safetensors", *EXPORT, "@base/ckpt-2", "--out"),
                ("report.html", "hc_analyze", "@base", "--out")]
        for i, (file, *words) in enumerate(rows):
            self.link(f"real-{i}", f"link-{i}")
            self.call(*words, f"@link-{i}/r.json" if file == "r.json" else f"@link-{i}")
            self.assertTrue(self.path(f"real-{i}/{file}").stat().st_size, file)
            self.assertTrue(self.path(f"link-{i}").is_symlink(), file)
        self.same_file("real-1/train.bin", "data/train.bin")
        self.same_file("real-3/model.safetensors", "direct/model.safetensors")
        self.resume("link-0", "--max-iters", "4")
        self.same_run("real-0", "plain", "ckpt-4")
        self.put("old.json", "{}")
        self.link("old.json", "link.json")
        self.call(*SCORE, "@short.txt", "--json", "@link.json")
        self.assertTrue(self.path("link.json").is_symlink())
        self.assertTrue(self.json("old.json"))

    def test_hard_linked_copy_of_a_run_is_its_own(self):
        """Going on with one of them, as backups make them, leaves the other one as it is."""
        files = ["metrics.jsonl", "h_statistics.jsonl", "settings.conf", "ckpt-6/state.json"]
        self.train("linked", "--max-iters", "6", "--checkpoint-interval", "3", "--statistics-interval", "1")
        for name in files:
            self.copy(f"linked/{name}", f"linked-before/{name}")
        self.call("/bin/cp", "-al", "@linked", "@linked-copy")
        self.resume("linked-copy", "--eval-iters", "1", "--eval-interval", "6")  # into ckpt-6/state.json
        self.remove("linked-copy/ckpt-6")
        self.resume("linked-copy", "--max-iters", "5", "--learning-rate", "1e-3", "--eval-iters", "0")
        for name in files:
            self.same_file(f"linked/{name}", f"linked-before/{name}")
        self.assertEqual(self.lines("linked-copy/metrics.jsonl"), 5)
        self.train("linked-once", "--max-iters", "3", "--statistics-interval", "1")
        self.resume("linked-once", "--max-iters", "5", "--learning-rate", "1e-3")
        self.same_metrics("linked-copy", "linked-once")

    def test_links_in_a_run_are_refused(self):
        """Nothing is written through links, whatever they lead to."""
        self.train("links", "--max-iters", "2", "--eval-interval", "2", "--eval-iters", "1")
        for name in ("metrics.jsonl", "h_statistics.jsonl", "settings.conf", "trace.json"):
            self.path(f"links/{name}").unlink(missing_ok=True)
            self.put("thesis", "# 1\n# 2\n")
            self.link("../thesis", f"links/{name}")
            self.resume("links", "--max-iters", "4", status=FAILED, says="is a symbolic link")
            self.train("links", "--start-over", "--max-iters", "4", status=FAILED, says="is a symbolic link")
            self.assertEqual(self.text("thesis"), "# 1\n# 2\n")
            self.path(f"links/{name}").unlink()
        self.rename("links/ckpt-best", "best-of-others")
        self.link("../best-of-others", "links/ckpt-best")
        self.resume("links", "--max-iters", "4", status=FAILED, says="is a symbolic link")
        self.path("links/ckpt-best").unlink()
        self.resume("links", "--max-iters", "4")
        self.assertEqual(self.entries("best-of-others"), 3)

    def test_linked_checkpoint_is_only_read(self):
        """A checkpoint that is a link is resumed, and not written to."""
        self.train("lender", "--max-iters", "2")
        self.copy("lender/ckpt-2/state.json", "lent.json")
        self.path("borrower").mkdir()
        self.link("../lender/ckpt-2", "borrower/ckpt-2")
        self.resume("borrower", "--max-iters", "2", "--eval-iters", "1")
        self.assertEqual(sum("val_loss" in line and line["iter"] == 2 for line in self.metrics("borrower")), 1)
        self.same_file("lender/ckpt-2/state.json", "lent.json")
        self.resume("borrower", "--max-iters", "3")
        self.remove("borrower/ckpt-3")
        self.link("../lender/ckpt-2", "borrower/ckpt-3")
        self.train("borrower", "--init-from", "resume", status=FAILED, says="is of iteration 2")

    def test_results_do_not_replace_inputs(self):
        """No program writes its results over what it reads."""
        kept = {"tokens/train.bin": "data/train.bin", "scored.txt": "short.txt", "base/ckpt-2/config.json": "config.json",
                "evaluated/val.bin": "data/val.bin", "exported/model.safetensors": "base/ckpt-2/model.safetensors"}
        self.copy("data/train.bin", "tokens/train.bin")
        self.copy("short.txt", "scored.txt")
        self.copy("base/ckpt-2/config.json", "config.json")
        self.copy("data", "evaluated")
        self.call(*EXPORT, "@base/ckpt-2", "--out", "@exported")
        self.link("tokens/train.bin", "soft-link")
        self.link("tokens", "tokens-link")
        os.link(self.path("tokens/train.bin"), self.path("hard-link"))
        self.link("scored.txt", "scored-link")
        self.link("exported", "exported-link")
        for says, *words in [("input", "hc_prepare", "--out", "@tokens", "@tokens/train.bin"),
                             ("input", "hc_prepare", "--out", "@tokens", "@soft-link"),
                             ("input", "hc_prepare", "--out", "@tokens", "@hard-link"),
                             ("input", "hc_prepare", "--out", "@tokens-link", "@tokens/train.bin"),
                             ("input", "hc_prepare", "--out", "@tokens", "@tokens-link/train.bin"),
                             ("scored.txt", *SCORE, "--json", "@scored.txt", "@scored.txt"),
                             ("scored", *SCORE, "--json", "@scored-link", "@scored.txt"),
                             ("scored.txt", *SCORE, "--per-document", "@scored.txt", "@scored.txt"),
                             ("scored", *SCORE, "--per-document", "@scored-link", "@scored.txt"),
                             ("config.json", *SCORE, "--json", "@base/ckpt-2/config.json", "@short.txt"),
                             ("val.bin", *SCORE, "--json", "@evaluated/val.bin", "--data", "@evaluated"),
                             ("exported", *EXPORT, "@exported", "--out", "@exported"),
                             ("exported", *EXPORT, "@exported", "--out", "@exported-link"),
                             ("exported", *EXPORT, "@exported-link", "--out", "@exported")]:
            self.refused(says, *words)
            for name, original in kept.items():
                self.same_file(name, original)
        self.assertEqual(self.entries("tokens"), 1)


if __name__ == "__main__":
    programs.main()
