"""Training on completions alone and on mixtures: prompts are no targets, sequences have whole examples, and the loss is the mean over all targets;
folders have their shares, and the validation loss is the mean of theirs."""
import json
import random
import sys
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import REFUSED

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src/python"))
import hctrain
from hctrain.checkpoints import Tensors, write_tensors

CONTEXT = 32
MODEL = ("--device", "pocl", "--residual", "rc", "--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--block-size", CONTEXT, "--dtype", "fp32",
         "--eval-iters", "3", "--warmup-iters", "2", "--train-batches", "documents")
TWELVE = ("--batch-size", "2", "--gradient-accumulation-steps", "4", "--lr-decay-iters", "12", "--eval-interval", "6", "--checkpoint-interval", "6")
RANDOM = (*TWELVE, "--train-batches", "random")
RESUME = ("--init-from", "resume")
PREPARE = ("hc_prepare", "--prompt-field", "prompt", "--field", "completion", "--out")


def make_examples():
    """Prompts and completions of 0 to 90 characters, all different."""
    chosen, examples = random.Random(1), []
    for i in range(90):
        words = ["".join(chosen.choice("abcdé ") for _ in range(chosen.randrange(most))) for most in (20, 25 if i % 9 else 90)]
        examples.append({"prompt": f"{i}?" + words[0] if i % 10 else "", "completion": f"{i}!" + words[1]})
    return examples


class Completions(programs.Case):
    @classmethod
    def begin(cls):
        """Examples, and three texts for mixtures."""
        cls.put_lines("examples.jsonl", make_examples())
        cls.made(*PREPARE, "@data", "--val-fraction", "0.2", "@examples.jsonl")
        for name, words in (("first", ["red", "green", "blue"]), ("second", ["7", "12", "345", "9"]), ("a:1,b", ["north", "south"])):
            chosen = random.Random(len(words))
            cls.put("words.txt", "".join(" ".join(chosen.choices(words, k=8)) + "\n" for _ in range(300)))
            cls.made("hc_prepare", "--out", f"@{name}", "@words.txt")

    @classmethod
    def put_lines(cls, name, objects):
        cls.put(name, "".join(json.dumps(one) + "\n" for one in objects))

    def train_on(self, data, out, *options, **setup):
        return self.call("hc_train", *MODEL, "--data-dir", data, "--out-dir", f"@{out}", *options, **setup)

    def mixture(self, *parts):
        return ",".join(f"{self.path(name)}:{weight}" for name, weight in parts)

    def steps(self, run):
        """(loss, gradient norm) by iteration, and losses of evaluations."""
        lines = self.metrics(run)
        return ({line["iter"]: (line["loss"], line["grad_norm"]) for line in lines if "loss" in line},
                {line["iter"]: (line["val_loss"], line["train_loss"]) for line in lines if "val_loss" in line})

    def split(self, name):
        """Tokens, and of each document its length and how many tokens are a prompt."""
        tokens = numpy.fromfile(self.path(f"data/{name}.bin"), "<u2").astype(numpy.int32)
        return tokens, numpy.fromfile(self.path(f"data/{name}.documents"), "<u4").reshape(-1, 2).astype(int)

    def pack(self):
        """x and y [rows, CONTEXT] of whole examples, plainly: a row is closed before the example that does not fit."""
        tokens, documents = self.split("train")
        owner = numpy.repeat(numpy.arange(len(documents)), documents[:, 0])
        is_prompt = numpy.concatenate([numpy.arange(length) < prompt for length, prompt in documents])
        rows, row, at = [], [], 0
        for length, _ in documents:
            if row and len(row) + length > CONTEXT:
                rows.append(row)
                row = []
            row = row + list(range(at, at + length))
            while len(row) > CONTEXT:
                rows.append(row[:CONTEXT])
                row = row[CONTEXT:]
            at += length
        rows.append(row)
        x, y = numpy.zeros((len(rows), CONTEXT), numpy.int32), numpy.full((len(rows), CONTEXT), -1, numpy.int32)
        for i, row in enumerate(rows):
            x[i, :len(row)] = tokens[row]
            for k, place in enumerate(row):
                inside = k + 1 < len(row) or (place + 1 < len(tokens) and owner[place + 1] == owner[place])
                if inside and not is_prompt[place + 1]:
                    y[i, k] = tokens[place + 1]
        return x, y

    def test_examples_are_prepared(self):
        """Every one is there, and its prompt ends where the file says."""
        left = {(one["prompt"].encode(), one["completion"].encode() + b"\n\n") for one in make_examples()}
        for name in ("train", "val"):
            tokens, documents = self.split(name)
            text = tokens.astype(numpy.uint8).tobytes()
            for length, prompt in documents:
                left.remove((text[:prompt], text[prompt:length]))
                text = text[length:]
            self.assertEqual(text, b"", name)
        self.assertFalse(left)

    def test_loss_is_the_mean_over_all_targets(self):
        """All sequences in one step, whatever the micro-batches."""
        x, y = self.pack()
        self.train_on("@data", "start", "--batch-size", "1", "--gradient-accumulation-steps", len(x), "--max-iters", "1", "--learning-rate", "1e-12",
                      "--min-lr", "0", says=f" of {len(x)} sequences\n         1.0 iterations read each document once")
        write_tensors(self.path("batch"), {"x": x, "y": y})
        self.call("hc_probe", "--checkpoint", "@start/ckpt-1", "--batch", "@batch", "--out", "@probe", "--no-grad", "--device", "pocl")
        expected, found = float(Tensors(self.path("probe"))["loss"]), self.steps("start")[0][0][0]
        self.assertLess(abs(expected - found), 1e-5 * expected)

    def test_runs_are_the_same_in_parts_and_on_ranks(self):
        """And hc_eval computes the losses of the run, and counts targets only."""
        self.train_on("@data", "once", *TWELVE, "--max-iters", "12")
        self.train_on("@data", "twice", *TWELVE, "--max-iters", "6")
        self.train_on("@data", "twice", "--max-iters", "12", *RESUME)
        self.assertEqual(self.steps("once"), self.steps("twice"))
        self.assertEqual(len(set(self.steps("once")[0].values())), 12)
        self.train_on("@data", "ranks", *TWELVE, "--max-iters", "12", ranks=2)
        self.alike("once", "ranks")
        self.train_on("@data", "random", *RANDOM, "--max-iters", "2", "--eval-batches", "sampled")
        _, documents = self.split("val")
        targets = int(sum(length - prompt for length, prompt in documents)) - (documents[0][1] == 0)
        last = self.steps("once")[1][12]
        for loss, counts, *options in [(last[0], (targets,), "--split", "val"),
                                       (last[1], range(1, 3 * 2 * CONTEXT), "--split", "train", "--eval-iters", "3", "--batch-size", "2")]:
            self.call("hc_eval", "--checkpoint", "@once/ckpt-12", "--data", "@data", "--device", "pocl", "--json", "@eval.json", *options)
            found = self.json("eval.json")
            self.assertLess(abs(found["loss"] - loss), 1e-5 * loss, options)
            self.assertIn(found["tokens"], counts, options)

    def alike(self, alone, together):
        """Two ranks train as one does."""
        for first, second in zip(self.steps(alone), self.steps(together)):
            self.assertEqual(first.keys(), second.keys())
            for i in first:
                for a, b in zip(first[i], second[i]):
                    self.assertLessEqual(abs(a - b), 1e-5 * abs(a), i)

    # ---- mixtures

    def test_folders_have_their_shares(self):
        both = self.mixture(("first", 7), ("second", 3))
        self.train_on(both, "mixed", *RANDOM, "--max-iters", "12",
                      says=[f"70 % of the sequences from {self.path('first')}", f"30 % of the sequences from {self.path('second')}"])
        for line in (line for line in self.metrics("mixed") if "val_loss" in line):
            self.assertLess(abs(line["val_loss"] - 0.7 * line["val_loss_1"] - 0.3 * line["val_loss_2"]), 1e-6)
        self.train_on(both, "parts", *RANDOM, "--max-iters", "6")
        self.train_on(self.mixture(("first", 3.5), ("second", 1.5)), "parts", *RANDOM, "--max-iters", "12", *RESUME)
        self.assertEqual(self.steps("mixed"), self.steps("parts"))
        self.resume("parts", "--device", "pocl", "--data-dir", self.mixture(("first", 1), ("second", 1)), status=REFUSED,
                    says="is not the mixture that")
        self.train_on(both, "mixed-ranks", *RANDOM, "--max-iters", "12", ranks=2)
        self.alike("mixed", "mixed-ranks")

    def test_names_of_folders_are_no_mixtures(self):
        """A single folder with a weight is the folder; and a name may have what stands between folders."""
        self.train_on("@first", "alone", *RANDOM, "--max-iters", "2")
        self.train_on(self.mixture(("first", 5)), "whole", *RANDOM, "--max-iters", "2")
        self.assertEqual(self.steps("alone"), self.steps("whole"))
        self.train_on("@a:1,b", "odd", *RANDOM, "--max-iters", "1")
        self.train_on(self.mixture(("data", 1), ("data", 1)), "answers", "--max-iters", "2")

    def test_wrong_mixtures_are_refused(self):
        self.copy("second", "other")
        self.change_json("other/meta.json", "vocab_size", 300)
        first, both = self.mixture(("first", 1)), self.mixture(("first", 7), ("second", 3))
        weights = ("0", "-1", "x", "", "1e999", "nan", "0x1")
        for says, data, *more in [*(("no weight above 0", self.mixture(("first", 1), ("second", weight))) for weight in weights),
                                  ("no weight above 0", f"{first},{self.path('second')}"),
                                  ("nowhere/train.bin does not exist", self.mixture(("first", 1), ("nowhere", 1))),
                                  ("data_dir is a mixture", both, "--train-batches", "sequential"),
                                  ("a mixture has one vocabulary", self.mixture(("first", 7), ("other", 3)))]:
            with self.subTest(data):
                self.train_on(data, "bad-mixture", *RANDOM, "--max-iters", "1", *more, status=REFUSED, says=says)

    # ---- prompts that fill sequences

    def prepare_long(self):
        """Prompts that are longer than sequences."""
        if not self.has("long"):
            self.put_lines("long.jsonl", [{"prompt": "p" * (2 * CONTEXT + 8), "completion": f"answer {i}"} for i in range(6)])
            self.call(*PREPARE, "@long", "--val-fraction", "0", "@long.jsonl")

    def test_steps_without_targets_have_no_loss(self):
        """Neither in the log nor in means. Sequences that all are prompts are refused."""
        options = ("--batch-size", "1", "--max-iters", "9", "--eval-iters", "0")
        self.prepare_long()
        self.train_on("@long", "empty", *options, says="sequences consist of prompts, from which")
        losses = [loss for loss, _ in self.steps("empty")[0].values()]
        present = [loss for loss in losses if loss is not None]
        self.assertTrue(0 < len(present) < 9 and min(present) > 0.5, losses)
        self.assertLess(abs(hctrain.read_run(self.path("empty")).summary.train_loss - sum(present) / len(present)), 1e-6)
        self.put_lines("prompts.jsonl", [{"prompt": "p" * 200, "completion": "a"}] * 3)
        self.call(*PREPARE, "@prompts", "--val-fraction", "0", "@prompts.jsonl")
        documents = numpy.fromfile(self.path("prompts/train.documents"), "<u4").reshape(-1, 2)
        documents[:, 1] = documents[:, 0]
        documents.tofile(self.path("prompts/train.documents"))
        self.train_on("@prompts", "no-targets", *options, status=REFUSED, says="sequences consist of prompts")

    def test_steps_of_another_size_are_said(self):
        options = ("--learning-rate", "0", "--min-lr", "0", "--lr-schedule", "constant", "--train-batches", "sequential", "--eval-iters", "0")
        self.prepare_long()
        self.train_on("@long", "ordered", *options, "--batch-size", "1", "--max-iters", "2")
        same = self.train_on("@long", "ordered", *options, *RESUME, "--batch-size", "1", "--max-iters", "3")
        self.assertNotIn("warning", same.said)
        self.train_on("@long", "ordered", *options, *RESUME, "--batch-size", "2", "--max-iters", "4", says="another number of tokens before")

    def test_wrong_lengths_of_documents_are_refused(self):
        for says, *words in [("examples.jsonl:1: no field 'question'; there is 'prompt', 'completion' (choose with --prompt-field)",
                              "--prompt-field", "question", "--field", "completion"),
                             ("--prompt-field is for JSON lines", "--prompt-field", "prompt", "--documents", "chunks")]:
            self.refused(says, "hc_prepare", "--out", "@none", *words, "@examples.jsonl")
        self.call("hc_prepare", "--out", "@plain", "--field", "completion", "@examples.jsonl")
        self.train_on("@plain", "bad", "--max-iters", "1", status=REFUSED, says="no lengths of documents")
        self.copy("data", "wrong")
        good = self.path("wrong/train.documents").read_bytes()
        wrong = "does not describe the token file beside it"
        for says, bad in [(wrong, good[:-1]), (wrong, good[:-8]), (wrong, good + good[:8]), (wrong, bytes(8) + good[8:]),
                          (wrong, good[:4] + b"\xff\xff\xff\xff" + good[8:]), ("train.documents", b""), ("train.documents", None)]:
            self.remove("wrong/train.documents")
            if bad is not None:
                self.put("wrong/train.documents", bad)
            self.train_on("@wrong", "bad", "--max-iters", "1", status=REFUSED, says=says)


if __name__ == "__main__":
    programs.main()
