"""hc_eval: the same metrics for any batch size and number of ranks, and for all forms of input; training's val_loss; and input that it must refuse.
test_scores.py computes the metrics."""
import gzip
import json
import math
import os
import random
import struct
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import FAILED, INTERRUPTED, WRONG_USAGE

EVAL = ("hc_eval", "--device", "pocl", "--checkpoint")
CHECKPOINT = "@run/ckpt-20"
CONTEXT, BYTES, VOCABULARY = 16, 256, 300
LENGTHS = (1, CONTEXT - 1, CONTEXT, CONTEXT + 1, 2 * CONTEXT, 2 * CONTEXT + 1, 100, 0, 777)


class Eval(programs.Case):
    @classmethod
    def begin(cls):
        super().begin()
        cls.made("hc_train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir", "@run", "--vocab-size", VOCABULARY, "--eval-iters", "3",
                 "--eval-batches", "by_seed", "--seed", "5")
        texts = ["".join(random.Random(i).choices("etaoin shrdlu ", k=length)) for i, length in enumerate(LENGTHS)]
        cls.put("documents.jsonl", "".join("\n" * (i == 3) + json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
        cls.put("first.txt", texts[6])
        cls.put("lines.ndjson.gz", gzip.compress(b'{"body": "%s"}\n{"body": "not this one"}\n' % texts[6].encode()))

    def score(self, *words, checkpoint=CHECKPOINT, **setup):
        """The results."""
        self.path("results.json").unlink(missing_ok=True)
        self.call(*EVAL, checkpoint, "--json", "@results.json", *words, **setup)
        return self.json("results.json")

    def likelihood(self, *words, **setup):
        return self.score(*words, **setup)["log_likelihood"]

    def near(self, found, expected, tolerance):
        self.assertLessEqual(abs(found - expected), tolerance * abs(expected), f"{found} and {expected}")

    def fails(self, says, *words, status=FAILED):
        with self.subTest(says):
            self.call(*EVAL, CHECKPOINT, *words, status=status, says=says)

    # ---- documents

    def test_padding_is_scored_in_folders_of_others(self):
        """Those of a model of Hugging Face's are all that it has, as in lm-evaluation-harness."""
        self.train("plain", "--residual", "rc", "--vocab-size", VOCABULARY, "--max-iters", "0")
        self.call("hc_export", "--format", "hf", "--checkpoint", "@plain/ckpt-0", "--out", "@hf")
        self.put("short.txt", "a b")
        for checkpoint, padding, vocabulary in [("@plain/ckpt-0", "auto", BYTES), ("@plain/ckpt-0", "yes", VOCABULARY),
                                                ("@hf", "auto", VOCABULARY), ("@hf", "no", BYTES)]:
            self.assertEqual(self.score("--score-padding", padding, "@short.txt", checkpoint=checkpoint)["vocabulary"], vocabulary)

    @unittest.skipIf(programs.SANITIZED, "it reads nothing that others do not")
    def test_batches_change_rounding_only(self):
        expected = self.likelihood("@documents.jsonl")
        for size in (1, 3, 64):
            self.near(self.likelihood("--batch-size", size, "@documents.jsonl"), expected, 1e-6)

    @unittest.skipIf(programs.SANITIZED, "it reads nothing that others do not")
    def test_weights_in_bf16_alone_change_rounding_only(self):
        """What bf16 rounds is small, and rounding embeddings as well changes it a little."""
        wide, narrow = (self.likelihood("--dtype", "bf16", "--master", master, "@documents.jsonl") for master in ("fp32", "bf16"))
        self.near(wide, self.likelihood("@documents.jsonl"), 1e-3)
        self.near(narrow, wide, 1e-3)
        self.assertNotEqual(narrow, wide)

    def test_forms_of_input_are_alike(self):
        """Text files, a compressed one, a field of another name, a limit: the same documents."""
        expected = self.likelihood("@first.txt")
        self.assertEqual(self.likelihood("--field", "body", "--limit", "1", "@lines.ndjson.gz"), expected)
        self.put("empty.txt", "")  # a document, too
        three = self.score("--documents", "files", "@first.txt", "@empty.txt", "@first.txt")
        self.assertEqual(three["documents"], 3)
        self.near(three["log_likelihood"], 2 * expected, 1e-6)

    def test_words_and_bytes_may_be_those_of_another_field(self):
        """As for texts that were cleaned up before they are scored."""
        self.put("fields.jsonl", '{"text": "a b", "page": " a @-@ b\\n"}\n')
        self.put("a-b.txt", "a b")
        found = self.score("--count-field", "page", "@fields.jsonl")
        self.assertEqual((found["tokens"], found["words"], found["bytes"]), (3, 5, 9))
        self.near(found["log_likelihood"], self.likelihood("@a-b.txt"), 1e-6)
        self.fails("no field 'url'; there is 'text', 'page' (choose with --count-field)", "--count-field", "url", "@fields.jsonl")

    def test_what_is_not_utf8_can_be_replaced(self):
        self.put("broken.txt", b"one\ntwo \xff three")
        self.put("mended.txt", "one\ntwo \ufffd three")
        self.put("broken.jsonl", b'{"text": "two \xff three"}\n')
        self.fails("broken.txt:2: not UTF-8 (byte 0xff)", "@broken.txt")
        self.near(self.likelihood("--invalid", "replace", "@broken.txt"), self.likelihood("@mended.txt"), 1e-6)
        self.fails("broken.jsonl:1: not UTF-8", "@broken.jsonl")
        self.score("--invalid", "replace", "@broken.jsonl")

    # ---- token files

    def test_numbers_that_are_not_finite_are_an_error(self):
        """A loss that is no number, in every form of data, and leaves no file of results; so is a weight."""
        self.copy("run/ckpt-20/config.json", "broken/config.json")
        loss, weight = "the loss is nan: ", "broken/model.safetensors: element 0 of tensor 'transformer.wte.weight' is -inf: the file is damaged"
        for number, says, *words in [(3e38, loss, "--data", "@data"), (3e38, loss, "--data", "@data", "--eval-iters", "1"),
                                     (3e38, loss, "@first.txt"), (-math.inf, weight, "@first.txt")]:
            tensors = self.tensors("run/ckpt-20/model.safetensors")
            self.put_tensors("broken/model.safetensors", {name: (kind, shape, struct.pack("<f", number) * (len(numbers) // 4))
                                                          for name, (kind, shape, numbers) in tensors.items()})
            self.call(*EVAL, "@broken", "--json", "@broken.json", *words, status=FAILED, says=says)
        self.assertFalse(self.has("broken.json"))

    def test_places_of_batches_are_named(self):
        for seed, words in ((-1, "at fixed places"), (5, "of seed 5")):
            printed = self.call(*EVAL, CHECKPOINT, "--data", "@data", "--eval-iters", "1", "--seed", seed).printed
            self.assertIn(f"split             val.bin, batches {words}\n", printed.decode())

    @unittest.skipIf(programs.SANITIZED, "it reads nothing that others do not")
    def test_batches_by_seed_are_those_of_training(self):
        """metrics.jsonl has nine digits."""
        last = self.metrics("run")[-1]
        for split in ("val", "train"):
            found = self.score("--data", "@data", "--split", split, "--eval-iters", "3", "--batch-size", "4", "--seed", "5")
            self.near(found["loss"], last[f"{split}_loss"], 1e-8)

    # ---- ranks

    @unittest.skipIf(programs.SANITIZED, "MPI leaks")
    def test_metrics_do_not_depend_on_the_number_of_ranks(self):
        """Batches of one, so that every rank has some. On all tokens GEMMs are larger, and a BLAS may divide them among the cores that a rank has
        in ways that round differently."""
        losses = []
        for ranks in (1, 2, 3):
            self.score("--batch-size", "1", "--per-document", f"@by-{ranks}.jsonl", "@documents.jsonl", ranks=ranks)
            losses.append(self.score("--data", "@data", ranks=ranks)["loss"])
            self.near(losses[-1], losses[0], 1e-7)
            self.same_file(f"by-{ranks}.jsonl", "by-1.jsonl")

    @unittest.skipIf(programs.SANITIZED, "MPI leaks")
    def test_an_error_of_rank_0_is_everybodys(self):
        self.call(*EVAL, CHECKPOINT, "@nowhere.txt", ranks=2, status=FAILED, says="nowhere.txt")

    # ---- what is refused

    def test_wrong_usage_is_explained(self):
        for says, *words in [("--checkpoint is needed", "@first.txt"),
                             ("--checkpoint: no text is given", "--checkpoint", "", "@first.txt")]:
            self.call("hc_eval", *words, status=WRONG_USAGE, says=says)
        for says, *words in [("nothing to score", "--limit", "1"),
                             ("--data: no text is given", "--data", ""),
                             ("token files and documents at once", "--data", "@data", "@first.txt"),
                             ("--per-document is for documents", "--data", "@data", "--per-document", "each"),
                             ("--eval-iters is for token files", "--eval-iters", "3", "@first.txt")]:
            self.fails(says, *words, status=WRONG_USAGE)

    def test_bad_documents_leave_nothing(self):
        """Neither file of results appears, and one that is there stays."""
        self.put("refused/each.jsonl", "old")
        self.put("half.jsonl", '{"text": "good"}\n\n{"text": "good"\n')
        for says, content, *names in [("half.jsonl:3: not JSON", None, "half.jsonl"),
                                      ("other.jsonl:1: field 'text' is not a string", '{"text": 5}\n', "other.jsonl"),
                                      ("other.jsonl:1: no field 'text'; there is 'body'", '{"body": "a"}\n', "other.jsonl"),
                                      ("list.jsonl:1: not a JSON object", "[1]\n", "list.jsonl"),
                                      ("empty.jsonl has no documents: it is empty, or has blank lines only", "\n\n", "empty.jsonl"),
                                      ("nowhere.txt", None, "nowhere.txt"),
                                      ("--documents", None, "first.txt", "half.jsonl")]:
            if content:
                self.put(names[0], content)
            self.fails(says, "--json", "@refused/metrics.json", "--per-document", "@refused/each.jsonl", *(f"@{name}" for name in names))
            self.assertEqual((os.listdir(self.path("refused")), self.text("refused/each.jsonl")), (["each.jsonl"], "old"))

    def start_evaluation(self, folder, source):
        """Its results are to be in this folder, which is empty."""
        self.path(folder).mkdir()
        return self.start(*EVAL, CHECKPOINT, "--json", f"@{folder}/metrics.json", source)

    def interrupted(self, run, folder):
        self.ended(run.interrupt(), INTERRUPTED, "interrupted, nothing written")
        self.assertEqual(self.entries(folder), 0)

    def test_an_interrupted_evaluation_leaves_nothing(self):
        """Interrupted as soon as it has begun its results."""
        self.put("long.txt", "a" * (1 << 21))
        run = self.start_evaluation("stopped", "@long.txt")
        run.wait_for(lambda: self.entries("stopped") > 0)
        self.interrupted(run, "stopped")

    def test_waiting_for_text_can_be_interrupted(self):
        """A pipe that nobody writes to: waiting for it ends, too."""
        os.mkfifo(self.path("pipe"))
        run = self.start_evaluation("waiting", "@pipe")
        with open(self.path("pipe"), "wb"):  # waits until it is opened for reading
            time.sleep(0.2)
            self.interrupted(run, "waiting")

    def test_a_truncated_file_is_refused(self):
        self.put("cut.ndjson.gz", self.path("lines.ndjson.gz").read_bytes()[:-9])
        self.fails("cut.ndjson.gz:", "--field", "body", "@cut.ndjson.gz")

    def test_a_token_alone_is_refused(self):
        self.put("one/val.bin", b"a\0")
        self.fails("one/val.bin has nothing to predict: it has one token only", "--data", "@one")

    def test_bad_places_are_refused(self):
        for says, *words in [("not a regular file", "--json", "/dev/null", "@first.txt"),
                             ("no/such/metrics.json", "--json", "@no/such/metrics.json", "@first.txt"),
                             ("first.txt is an input of this command", "--json", "@first.txt", "@first.txt"),
                             ("name the same file", "--json", "@x", "--per-document", "@x", "@first.txt"),
                             ("nowhere/val.bin does not exist: make it with hc_prepare", "--data", "@nowhere")]:
            self.fails(says, *words)
        self.call("hc_eval", "--checkpoint", "@data", "@first.txt", status=FAILED, says="data/config.json")

    def test_tokenizers_are_looked_for(self):
        """The model's tokens decide what is needed."""
        no_ranks = "no-ranks does not exist: data/gpt2/vocabulary.sh gets it"
        for says, tokens, tokenizer, *words in [(no_ranks, 50304, "gpt2", "--vocab-file", "no-ranks"),
                                                (no_ranks, 50257, "", "--vocab-file", "no-ranks"),
                                                ("tokenizer 'words' is none of byte, gpt2 and file", 300, "words"),
                                                ("the model has 200 tokens and the tokenizer 'byte' 256", 200, "byte")]:
            self.put_json("other/config.json", {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16, "vocab_size": tokens, "residual": "rc",
                                                "tokenizer": tokenizer})
            self.call("hc_eval", "--checkpoint", "@other", *words, "@first.txt", status=FAILED, says=says)


if __name__ == "__main__":
    programs.main()
