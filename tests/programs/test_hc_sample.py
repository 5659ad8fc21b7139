"""hc_sample, the program: what it prints for byte and GPT-2 models, prompts from everywhere, and what it refuses."""
import base64
import math
import os
import random
import signal
import struct
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "support"))
import programs
from programs import FAILED, INTERRUPTED, WRONG_USAGE

SAMPLE = ("hc_sample", "--device", "pocl", "--checkpoint")
PROMPT = ("--prompt", "ab", "--max-new-tokens")
RANKS = ("--vocab-file", "@ranks")


class HcSample(programs.Case):
    @classmethod
    def begin(cls):
        super().begin()
        os.environ.pop("HCTRAIN_VOCAB_FILE", None)
        cls.made("hc_train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir", "@run", "--max-iters", "0", "--residual", "shc",
                 "--n-streams", "3", "--n-layer", "2")
        cls.make_checkpoint("bytes", 256, "byte")
        cls.make_checkpoint("ended", 256, "byte")
        cls.make_checkpoint("short", 256, "byte", is_bf16=True)
        cls.make_checkpoint("unnamed", 257, "")
        cls.make_checkpoint("gpt2", 300, "gpt2")  # ids from 258 on are no tokens
        cls.make_checkpoint("llama3", 410, "file")
        cls.make_checkpoint("small_gpt2", 257, "gpt2")
        ranks = [bytes([byte]) for byte in range(256)] + [b" w"]  # all bytes, byte b being token b, and one more
        cls.put("ranks", "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(ranks)))

    @classmethod
    def make_checkpoint(cls, name, vocabulary, tokenizer, is_bf16=False):
        """Of random weights, those of hyper-connections so large that H differs from token to token; in bf16 they have no more digits."""
        chosen, tensors = random.Random(3), {}
        for tensor, (kind, shape, numbers) in cls.tensors("run/ckpt-0/model.safetensors").items():
            shape = [vocabulary if size == 256 else size for size in shape]
            is_gain = ".ln_" in tensor and tensor.endswith(".weight")
            spread = 1.0 if ".hc_" in tensor and not tensor.rpartition(".")[2].startswith("w") else 0.3
            numbers = struct.pack(f"<{math.prod(shape)}f", *(chosen.gauss(is_gain, spread) for _ in range(math.prod(shape))))
            if is_bf16:
                numbers = b"".join(b"\0\0" + numbers[i + 2:i + 4] for i in range(0, len(numbers), 4))
            tensors[tensor] = kind, shape, numbers
        cls.put_tensors(f"{name}/model.safetensors", tensors)
        cls.put_json(f"{name}/config.json", {**cls.json("run/ckpt-0/config.json"), "vocab_size": vocabulary, "tokenizer": tokenizer})

    def sample(self, checkpoint, *more, **setup):
        return self.call(*SAMPLE, f"@{checkpoint}", *more, **setup).printed

    # ---- what comes out

    def test_bytes_come_as_they_are(self):
        text = self.sample("bytes", *PROMPT, "50")
        self.assertEqual((len(text), text[:2], text[-1:]), (2 + 50 + 1, b"ab", b"\n"))
        self.assertEqual(self.sample("bytes", *PROMPT, "50"), text)
        self.assertNotEqual(self.sample("bytes", *PROMPT, "50", "--seed", "2"), text)
        self.assertEqual(self.sample("bytes", "--max-new-tokens", "0"), b"\n")

    def test_weights_in_bf16_alone_give_the_same_text(self):
        words = ("short", "--dtype", "bf16", *PROMPT, "50")
        self.assertEqual(self.sample(*words, "--master", "bf16"), self.sample(*words))

    def test_samples_come_one_after_the_other(self):
        """The same texts, one after the other, however many are written side by side; the first is that of one alone."""
        five = self.sample("bytes", *PROMPT, "40", "--num-samples", "5", "--batch-size", "2")
        line = b"---------------\n"
        self.assertEqual(len(five), 5 * 43 + 4 * len(line))
        texts = [five[at:at + 43] for at in range(0, len(five), 43 + len(line))]
        self.assertEqual(line.join(texts), five)
        self.assertEqual(texts[0], self.sample("bytes", *PROMPT, "40"))
        for text in texts[1:]:
            self.assertEqual(text[:2], b"ab")
            self.assertNotEqual(text, texts[0])
        for size in (1, 4, 16):
            self.assertEqual(self.sample("bytes", *PROMPT, "40", "--num-samples", "5", "--batch-size", size), five, size)

    def test_a_stop_text_ends_samples(self):
        whole = self.sample("bytes", *PROMPT, "40")
        stop = next(whole[at:at + 2] for at in range(5, 40) if 0 not in whole[at:at + 2])  # no NUL in arguments
        for more in ((), ("--stop", "what never comes")):
            text = self.sample("bytes", *PROMPT, "40", *more, "--stop", os.fsdecode(stop))
            self.assertEqual(text, whole[:whole.index(stop, 2)] + b"\n", more)

    def test_a_penalty_changes_the_text(self):
        self.assertNotEqual(self.sample("bytes", *PROMPT, "40", "--repetition-penalty", "3"), self.sample("bytes", *PROMPT, "40"))

    def test_a_closed_pipe_ends_the_text_quietly(self):
        """Text is written as it is made: who reads a pipe gets it at once, and may close it before the end."""
        run = self.start(*SAMPLE, "@bytes", *PROMPT, "1000000000", output=subprocess.PIPE)
        self.assertEqual(run.process.stdout.read(50)[:2], b"ab")
        run.process.stdout.close()
        run.finish()
        self.assertEqual((run.status, run.said), (-signal.SIGPIPE, ""))

    def test_prompts_come_from_files(self):
        self.put("prompt", "ab\nc")
        expected = self.sample("bytes", "--prompt", "ab\nc", "--max-new-tokens", "20")
        self.assertEqual(self.sample("bytes", "--prompt-file", "@prompt", "--max-new-tokens", "20"), expected)
        with open(self.path("prompt")) as prompt:
            self.assertEqual(self.sample("bytes", "--max-new-tokens", "20", "--prompt-file", "-", stdin=prompt), expected)
        self.put("zeros", bytes(3))
        self.assertEqual(len(self.sample("bytes", "--prompt-file", "@zeros", "--max-new-tokens", "2")), 3 + 2 + 1)

    def test_an_interrupted_text_is_ended(self):
        """Stopped while it writes: what there is stays, and ends as a text does."""
        with open(self.put("out", ""), "wb") as output:
            run = self.start(*SAMPLE, "@bytes", *PROMPT, "1000000000", output=output)
        run.wait_for(lambda: self.path("out").stat().st_size >= 100)
        self.ended(run.interrupt(), INTERRUPTED)
        text = self.path("out").read_bytes()
        self.assertGreater(len(text), 100)
        self.assertEqual((text[:2], text[-1:]), (b"ab", b"\n"))

    # ---- tokens of GPT-2 and others

    def test_text_is_utf8(self):
        words = ("gpt2", "--prompt", "\u00e9 w", "--max-new-tokens", "200", "--temperature", "3")
        text = self.sample(*words, *RANKS)
        self.assertEqual(text.decode()[:3], "\u00e9 w")
        self.assertGreater(len(text), 100)
        self.assertEqual(self.sample(*words, environment={"HCTRAIN_VOCAB_FILE": "@ranks"}), text)

    def test_the_end_of_text_ends_samples(self):
        """With 258 tokens to choose from, it comes soon."""
        text = self.sample("gpt2", *RANKS, "--max-new-tokens", "20000", "--temperature", "100")
        self.assertLess(len(text), 15000)
        self.assertNotIn(b"endoftext", text)

    def test_a_text_begins_as_its_tokenizer_says(self):
        """Llama 3's begins with <|begin_of_text|>, also without a prompt; a prompt may have it already."""
        begin = "<|begin_of_text|>"
        words = ("llama3", "--tokenizer", TESTS / "text/tokenizers/llama3.json", "--temperature", "0", "--max-new-tokens", "12")
        texts = {prompt: self.sample(*words, "--prompt", prompt) for prompt in ("", "ab")}
        for prompt, text in texts.items():
            self.assertEqual(self.sample(*words, "--special-tokens", "parse", "--prompt", begin + prompt), begin.encode() + text)
        self.assertNotEqual(texts[""], texts["ab"][2:])

    def test_tokens_of_the_model_end_samples(self):
        """The second of two tokens that config.json names."""
        whole = self.sample("bytes", *PROMPT, "40")
        self.change_json("ended/config.json", "eos_token_id", [-7, whole[12]])
        self.assertEqual(self.sample("ended", *PROMPT, "40"), whole[:whole.index(whole[12], 2)] + b"\n")

    def test_what_cannot_be_is_refused(self):
        self.put("bad", "x\n")
        for status, says, checkpoint, *more in [
                (FAILED, "data/gpt2/vocabulary.sh gets it", "gpt2"),
                (FAILED, "/none does not exist: data/gpt2/vocabulary.sh", "gpt2", "--vocab-file", "@none"),
                (FAILED, "bad:1", "gpt2", "--vocab-file", "@bad"),
                (FAILED, "the model has 257 tokens and the tokenizer 'gpt2' 258", "small_gpt2", *RANKS),
                (FAILED, "does not say which tokenizer its 257 tokens are of: give --tokenizer byte", "unnamed"),
                (FAILED, "the prompt: byte 1 of the text is not UTF-8", "gpt2", *RANKS, "--prompt", "a\udcff"),
                (WRONG_USAGE, "are two prompts", "bytes", "--prompt", "a", "--prompt-file", "b"),
                (FAILED, "cannot open ", "bytes", "--prompt-file", "@none"),
                (FAILED, "cannot read ", "bytes", "--prompt-file", "@"),
                (WRONG_USAGE, "top-p", "bytes", "--top-p", "1.5"),
                (WRONG_USAGE, "min-p", "bytes", "--min-p", "-0.1"),
                (WRONG_USAGE, "repetition-penalty", "bytes", "--repetition-penalty", "0"),
                (WRONG_USAGE, "num-samples", "bytes", "--num-samples", "0"),
                (WRONG_USAGE, "batch-size", "bytes", "--batch-size", "17"),
                (FAILED, "'words' is not there", "bytes", "--tokenizer", "words"),
                (FAILED, "master = bf16 needs dtype = bf16", "short", "--dtype", "fp32", "--master", "bf16")]:
            with self.subTest(says):
                self.call(*SAMPLE, f"@{checkpoint}", *more, status=status, says=says)
        self.assertEqual(len(self.sample("unnamed", "--tokenizer", "byte", "--max-new-tokens", "2")), 3)


if __name__ == "__main__":
    programs.main()
