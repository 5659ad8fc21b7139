"""Programs given what they cannot use: each refuses with one message that says what and where, with exit status 1 (2 for wrong usage), and leaves
nothing behind."""
import resource
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "support"))
import programs
from programs import FAILED, WRONG_USAGE

MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
SAMPLE = ("hc_sample", "--device", "pocl", "--checkpoint")
PROBE = ("hc_probe", "--device", "pocl", "--checkpoint", "@whole/ckpt-2", "--out", "@refused", "--batch")
DAMAGES = {"flipped": lambda content: content[:-100] + bytes([content[-100] ^ 4]) + content[-99:],
           "halved": lambda content: content[:len(content) // 2],
           "emptied": lambda content: b""}
PAPER_M = ("--device", "pocl", "--n-layer", "12", "--n-head", "12", "--n-embd", "768", "--block-size", "1024", "--vocab-size", "50304", "--residual",
           "mhc_lite", "--n-streams", "8", "--batch-size", "4096")


class BadInput(programs.Case):
    @classmethod
    def begin(cls):
        super().begin()
        cls.made(*cls.training("whole", "--max-iters", "2"))

    def leaves_nothing(self, status, says, *words):
        with self.subTest(says, words=words):
            run = self.call(*words, status=status, says=says)
            self.assertFalse(self.has("refused"))
            return run

    def no_run(self, status, says, *more):
        return self.leaves_nothing(status, says, *self.training("refused", *more))

    # ---- token files

    def put_data(self, folder, train_bytes, val_bytes, token=1):
        """None: no such file."""
        for name, size in (("train.bin", train_bytes), ("val.bin", val_bytes)):
            self.path(f"{folder}/{name}").unlink(missing_ok=True)
            if size is not None:
                self.put(f"{folder}/{name}", (bytes([token, 0]) * size)[:size])

    def test_unfit_token_files_are_refused(self):
        of_40 = ("--vocab-size", "40")
        for says, train_bytes, val_bytes, token, meta, *more in [
                ("tokens/train.bin does not exist: make it with hc_prepare", None, None, 1, None),
                ("tokens/val.bin", 2000, None, 1, None, *of_40, "--eval-iters", "1"),
                ("tokens/train.bin", 0, 2000, 1, None, *of_40),
                ("tokens/val.bin", 2000, 2001, 1, None, *of_40, "--eval-iters", "1"),
                ("tokens/train.bin", 20, 2000, 1, None, *of_40),  # less than one sequence
                ("tokens/train.bin: token 200 at position 0", 2000, 2000, 200, None, *of_40),
                ("tokens/meta.json does not exist, so vocab_size is needed", 2000, 2000, 1, None),
                ("tokens/meta.json:1", 2000, 2000, 1, '{"vocab_size": '),
                ("vocab_size", 2000, 2000, 1, '{"vocab_size": 0}'),
                ("vocabulary of 256 tokens", 2000, 2000, 1, '{"vocab_size": 256}', "--vocab-size", "255"),
                ("tokens/meta.json: 'tokenizer' is 5: it must be a string", 2000, 2000, 1, '{"vocab_size": 256, "tokenizer": 5}')]:
            self.put_data("tokens", train_bytes, val_bytes, token)
            if meta:
                self.put("tokens/meta.json", meta)
            self.no_run(FAILED, says, "--data-dir", "@tokens", *more)

    def test_estimate_of_prompts_alone_is_refused(self):
        self.put_data("asked", 2000, 2000)
        self.put("asked/meta.json", '{"vocab_size": 40, "document_lengths": true}')
        for split in ("train", "val"):  # 1000 tokens, 999 of them a prompt
            self.put(f"asked/{split}.documents", b"\xe8\x03\0\0\xe7\x03\0\0")
        self.train("asked-out", "--data-dir", "@asked", "--eval-iters", "1", status=FAILED,
                   says="asked/train.bin: all tokens of the batches that estimate the loss (eval_iters = 1) are prompts")

    def test_held_out_tokens_are_not_needed_without_evaluation(self):
        """hc_prepare --val-fraction 0 makes such folders."""
        self.put_data("train-only", 2000, None)
        self.train("no-val", "--data-dir", "@train-only", "--vocab-size", "40", "--max-iters", "1")

    def test_vocabulary_that_is_too_large_is_said(self):
        """Rows of the embedding that no token uses, once there are more of them than of the others; a resumed run has its own."""
        self.train("roomy", "--vocab-size", "513", "--max-iters", "1", says="warning  vocabulary 513, of which the data use 256: leave vocab_size "
                   "out, or prepare the text with another hc_prepare --tokenizer\n")
        for run, *more in [("roomy", "--init-from", "resume", "--max-iters", "2"), ("double", "--vocab-size", "512", "--max-iters", "1")]:
            self.assertNotIn("of which the data use", self.train(run, *more).said)

    # ---- options

    def test_wrong_options_are_named(self):
        for status, says, *more in [(WRONG_USAGE, "--nonsense", "--nonsense", "3"),
                                    (WRONG_USAGE, "--n-layer: 'two' is not a whole number", "--n-layer", "two"),
                                    (WRONG_USAGE, "--learning-rate", "--learning-rate", "11"),
                                    (WRONG_USAGE, "--dropout", "--dropout", "1"),
                                    (WRONG_USAGE, "--residual", "--residual", "shcc"),
                                    (WRONG_USAGE, "--n-streams", "--n-streams", "9"),
                                    (WRONG_USAGE, "stray", "stray"),
                                    (WRONG_USAGE, "n_embd = 16 is not divisible by n_head = 3", "--n-head", "3"),
                                    (WRONG_USAGE, "head_dim = 5 is odd", "--position=rope", "--head-dim", "5"),
                                    (WRONG_USAGE, "n_head = 4 is not divisible by n_kv_head = 3", "--n-head=4", "--n-kv-head", "3"),
                                    (WRONG_USAGE, "n_streams = 1: 'shc' needs 2 to 8 streams", "--n-streams", "1"),
                                    (FAILED, 'no OpenCL device "nosuch"; there are: 0: ', "--device", "nosuch"),
                                    (FAILED, "there are: 0: ", "--device", "99")]:
            self.no_run(status, says, *more)
        self.call("hc_probe", status=WRONG_USAGE, says="--checkpoint, --batch and --out are all needed")
        self.call(*PROBE, "b", "--samples", "3", status=WRONG_USAGE, says="--samples is for --measure")

    def test_wrong_config_lines_are_named_with_their_file(self):
        self.put("bad.conf", "# fine\nn_layer = 2\nn_embd = many\n")
        self.no_run(WRONG_USAGE, "bad.conf:3: n_embd", "--config", "@bad.conf")
        self.put("bad.conf", "n_layre = 2\n")
        self.no_run(WRONG_USAGE, ["bad.conf:1: ", "n_layre"], "--config", "@bad.conf")
        self.no_run(WRONG_USAGE, "no-such.conf", "--config", "@no-such.conf")

    def test_configs_of_the_repository_are_accepted(self):
        """What is planned with one sequence a pass may still have buffers that are too large for this machine."""
        configs = list((TESTS.parent / "configs").glob("*.conf"))
        self.assertTrue(configs)
        for config in configs:
            with self.subTest(config):
                self.call("hc_train", "--config", config, "--data-dir", "@data", "--device", "pocl", "--batch-size", "1", "--plan-only", status=(0, FAILED))

    # ---- memory

    def test_model_too_large_for_memory_is_refused_before_it_is_allocated(self):
        """The paper's example of what cannot be trained: 6e9 parameters, nearly all of them auxiliary. With 4096 sequences a pass it is beyond any
        machine; planning takes no memory to speak of."""
        def peak():
            return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # KiB, the largest of all programs so far

        before = peak()
        self.no_run(FAILED, ["not enough memory: this run needs ", "6073274568", "5948900808", "weights", "22.62 GiB"], *PAPER_M)
        self.assertLess(peak(), max(before + 1, 1 << 20))
        self.no_run(FAILED, "not enough memory", *PAPER_M, "--plan-only")

    def test_batch_too_large_for_memory_is_refused(self):
        self.no_run(FAILED, ["not enough memory: this run needs ", "choose a smaller batch_size"], "--block-size", "1024", "--n-embd", "8192",
                    "--batch-size", "100000")
        self.no_run(FAILED, "out of range", "--block-size", "1048576", "--batch-size", "1048576")

    # ---- checkpoints

    def make_damaged(self, file, change):
        """"damaged" is a copy of the run "whole" with one file so damaged, or with the second of two texts in place of the first; None: without it."""
        if self.has("damaged"):
            self.remove("damaged")
        self.copy("whole", "damaged")
        self.remove("damaged/metrics.jsonl")
        self.remove("damaged/settings.conf")
        name = f"damaged/ckpt-2/{file}"
        content = self.path(name).read_bytes()
        if change is None:
            self.remove(name)
        elif change in DAMAGES:
            self.put(name, DAMAGES[change](content))
        else:
            old, new = (text.encode() for text in change)
            self.assertIn(old, content)
            self.assertEqual(len(old), len(new))
            self.put(name, content.replace(old, new, 1))

    def not_resumed(self, says):
        with self.subTest(says):
            self.train("damaged", "--init-from", "resume", status=FAILED, says=says)
            self.assertEqual(self.entries("damaged"), 1)

    def test_damaged_checkpoints_are_refused(self):
        differs = " is damaged: its checksum differs"
        for resumes, says, file, change in [
                (True, MODEL + differs, MODEL, "flipped"),
                (True, OPTIMIZER + differs, OPTIMIZER, "flipped"),
                (True, "config.json" + differs, "config.json", ("{\n", "{ ")),  # still the same JSON
                (True, MODEL, MODEL, "halved"),
                (False, MODEL, MODEL, "halved"),
                (False, MODEL, MODEL, "emptied"),
                (True, "state.json:", "state.json", "halved"),
                (True, "config.json", "config.json", None),
                (True, MODEL, MODEL, None),
                (True, OPTIMIZER, OPTIMIZER, None),
                (True, "state.json", "state.json", None),
                # of other models
                (False, "tensor 'transformer.ln_f.weight' is missing", MODEL, ("ln_f.weight", "ln_g.weight")),
                (False, "tensor 'transformer.h.0.attn.c_attn.weight' has shape [", MODEL, ("[48,16]", "[16,48]")),
                (False, "tensors, the model", "config.json", ('"bias": false', '"bias": true ')),
                (False, "was saved with another n_layer than", "config.json", ('"n_layer": 1', '"n_layer": 2')),
                (False, MODEL + " has ", "config.json", ('"shc"', '"mhc"')),
                (False, 'data has tokens of "byte", the model has tokens of "gpt2": prepare the text with the model\'s tokenizer', "config.json",
                 ('"byte"', '"gpt2"')),
                (False, 'the model has tokens of "char": prepare the text', "config.json", ('"byte"', '"char"'))]:
            self.make_damaged(file, change)
            if resumes:
                self.not_resumed(says)
            else:
                self.no_run(FAILED, says, "--init-from", "@damaged/ckpt-2")

    def test_config_that_is_no_config_is_refused(self):
        model = '"n_head": 2, "n_embd": 16, "vocab_size": 256, "block_size": 16'
        for says, text in [("config.json:1: ", "garbage"),
                           ("config.json", ""),
                           ("config.json: ", "[1, 2]"),
                           ("'n_layer' is missing", '{"residual": "shc"}'),
                           ("n_layer = '1.5' is not a whole number", '{"residual": "shc", "n_layer": 1.5}'),
                           ("'n_layer' is \"2\": it is of another type", '{"residual": "shc", "n_layer": "2"}'),
                           ("config.json: 'residual' is true: it must be a string", '{"residual": true}'),
                           ("'n_layer' is Infinity: it", '{"residual": "shc", "n_layer": Infinity}'),
                           ("n_layer = -1 is out of range", '{"residual": "shc", "n_layer": -1, "n_streams": 4, %s}' % model),
                           ("'residual' is not one of ", '{"residual": "xyz"}'),
                           ("'window' is not a setting that this version of hctrain knows",
                            '{"residual": "rc", "n_layer": 1, "window": 4, %s}' % model)]:
            self.put("no-config/config.json", text)
            self.leaves_nothing(FAILED, says, *SAMPLE, "@no-config")
        self.no_run(FAILED, "config.json", "--init-from", "@no-config")

    def test_states_of_other_types_are_refused(self):
        for member in ("best_val_loss", "seconds"):
            self.make_damaged("state.json", ("{", "{"))  # as it is
            self.change_json("damaged/ckpt-2/state.json", member, "2.5")
            self.not_resumed(f"state.json: '{member}' is \"2.5\": it must be a number")

    def test_tokens_of_another_tokenizer_are_refused(self):
        """One that is not known passes."""
        self.put_data("words", 2000, 2000)
        self.put("words/meta.json", '{"vocab_size": 256, "tokenizer": "gpt2"}')
        words = ("--data-dir", "@words", "--init-from", "@whole/ckpt-2")
        self.no_run(FAILED, 'words has tokens of "gpt2", the model has tokens of "byte": prepare the text with the model\'s ', *words)
        self.put("words/meta.json", '{"vocab_size": 256}')
        self.train("tuned", *words, "--max-iters", "1")

    def test_run_directories_are_no_checkpoints(self):
        """A run directory in place of one of its checkpoints: what is there is named."""
        says = "/bare is a run directory, not a checkpoint: give "
        self.call("hc_sample", "--checkpoint", "@bare", status=FAILED, says="bare/config.json")  # there is no such folder
        for made, folder, name in [("ckpt-2", "bare", "/bare/ckpt-2\n"),
                                   ("ckpt-10", "bare", "/bare/ckpt-10 (or ckpt-2)\n"),
                                   ("ckpt-best", "bare/", "/bare/ckpt-best (or ckpt-10)\n")]:
            self.put(f"bare/{made}/config.json", "{}")
            self.call("hc_sample", "--checkpoint", f"@{folder}", status=FAILED, says=name if folder == "bare/" else [says, name])
        self.no_run(FAILED, says, "--init-from", "@bare")

    # ---- standard output

    def test_text_that_cannot_be_printed_is_an_error(self):
        with open("/dev/full", "w") as full:
            for says, *words in [("cannot write the help text: No space", "hc_train", "--help"),
                                 ("cannot write the version: No space", "hc_train", "--version"),
                                 *(("hc_sample: cannot write the text: No space left on device", *SAMPLE, "@whole/ckpt-2", "--max-new-tokens", count)
                                   for count in (0, 3))]:
                self.call(*words, status=FAILED, says=says, output=full)
        text = self.call(*SAMPLE, "@whole/ckpt-2", "--max-new-tokens", "3", "--prompt", "ab").printed
        self.assertEqual((len(text), text[:2]), (2 + 3 + 1, b"ab"))  # and a newline

    # ---- batches for hc_probe

    def test_wrong_batches_are_refused(self):
        fine, high = ((2, 16), [1, 2, 3]), ((2, 16), [0, 0, 256])
        for says, x, y in [("x[1] = -1 is not a token of this model", ((2, 16), [0, -1]), fine),
                           ("x[2] = 256 is not a token", high, fine),
                           ("y[2] = 256 is not a token", fine, high),
                           ("y[1] = -2 is not a token", fine, ((2, 16), [0, -2])),
                           ("tensor 'x' must be there as I32 with 2 dim", ((32,), [1, 2, 3]), fine),
                           ("tensor 'y' must be there as I32 with 2", fine, ((2, 4, 4), [1, 2, 3])),
                           ("none of them 0", ((0, 16), []), fine),
                           ("x and y have different shapes", fine, ((1, 16), [1, 2, 3])),
                           ("block_size 16", ((2, 17), [1, 2, 3]), ((2, 17), [1, 2, 3]))]:
            self.put_batch("batch", x, y)
            self.leaves_nothing(FAILED, says, *PROBE, "@batch")
        self.leaves_nothing(FAILED, "I32 with 4 dimensions", *PROBE, "@batch", "--train")
        self.leaves_nothing(FAILED, "tensor 'x' must be there", *PROBE, "@whole/ckpt-2/model.safetensors")
        self.leaves_nothing(FAILED, "no-batch", *PROBE, "@no-batch")
        self.put_batch("batch", fine, fine)
        self.call(*PROBE, "@batch")
        self.remove("refused")

    def test_probe_that_cannot_write_leaves_the_old_results(self):
        """So many bytes hold what programs and PoCL write, but no result."""
        self.train("large", "--vocab-size", "4096", "--max-iters", "0")
        for out, file, shape, mode in [("probed/result", "probed/result", (2, 16), "--no-train"),
                                       ("probed-steps", "probed-steps/model.safetensors", (1, 1, 2, 16), "--train")]:
            with self.subTest(mode):
                folder = file.partition("/")[0]
                self.path(folder).mkdir()
                words = ("hc_probe", "--device", "pocl", "--checkpoint", "@large/ckpt-0", "--batch", "@batch", "--out", f"@{out}", mode)
                self.put_batch("batch", (shape, [1, 2, 3]), (shape, [1, 2, 3]))
                self.call(*words)  # fills the caches of kernels
                entries = self.entries(folder)
                self.put(file, "old")
                self.call(*words, status=FAILED, says=["File too large", "what was there before is untouched"], file_bytes=150000)
                self.assertEqual((self.text(file), self.entries(folder)), ("old", entries))


if __name__ == "__main__":
    programs.main()
