"""A tokenizer.json on its way through the programs: beside the token files that it made, in the checkpoints of models that are trained on them, in
samples, evaluations and exports."""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import FAILED

QWEN2, LLAMA3 = (Path(__file__).resolve().parent / "tokenizers" / name for name in ("qwen2.json", "llama3.json"))
DEVICE = ("--device", "pocl")
TUNED = ("--init-from", "@run/ckpt-2")


class ModelTokenizer(programs.Case):
    @classmethod
    def begin(cls):
        cls.put("text.txt", ("the tokens of a text.\n" * 2000)[:40000])
        cls.made("hc_prepare", "--out", "@data", "--tokenizer", QWEN2, "@text.txt")
        cls.made(*cls.training("run", "--max-iters", "2"))

    def prepare(self, folder, *words, **setup):
        self.call("hc_prepare", "--out", f"@{folder}", *words, **setup)

    def train_on(self, data, run, *words, **setup):
        self.train(run, "--data-dir", f"@{data}", "--max-iters", "2", *words, **setup)

    def with_model(self, program, *words, **setup):
        self.call(program, "--checkpoint", "@run/ckpt-2", *words, **setup)

    def copied(self, folder, tokenizer=QWEN2):
        self.assertEqual(self.path(f"{folder}/tokenizer.json").read_bytes(), tokenizer.read_bytes())

    def test_prepared_folders(self):
        """Other results replace it; without one, none is left."""
        self.prepare("replaced", "--tokenizer", LLAMA3, "@text.txt")
        self.copied("replaced", LLAMA3)
        self.prepare("replaced", "--tokenizer", QWEN2, "--end-of-text", "<|im_end|>", "@text.txt")
        self.copied("replaced")
        meta = self.json("replaced/meta.json")
        self.assertEqual((meta["tokenizer"], meta["end_of_text"], meta["vocab_size"]), ("file", "<|im_end|>", 406))
        self.assertIn("tokenizer_sha256", meta)
        self.prepare("replaced", "--tokenizer", "@replaced/tokenizer.json", "@text.txt", status=FAILED, says="tokenizer.json")
        self.prepare("replaced", "@text.txt")
        self.assertFalse(self.has("replaced/tokenizer.json"))
        self.prepare("none", "--tokenizer", "words", "@text.txt", status=FAILED, says="'words' is not there")

    def test_control_tokens(self):
        """A control token in a document is text, or with parse the token itself."""
        self.put("line.jsonl", '{"text": "<|im_end|>"}\n')
        counts = []
        for word in ("parse", "text"):
            self.prepare("special", "--tokenizer", QWEN2, "--special-tokens", word, "--val-fraction", "0", "@line.jsonl")
            counts.append(self.json("special/meta.json")["train_tokens"])
        self.assertEqual(counts[0], 2)  # and the end of the text
        self.assertGreater(counts[1], 5)

    def test_checkpoints(self):
        self.copied("run/ckpt-2")
        self.with_model("hc_sample", *DEVICE, "--prompt", "the <|im_start|>", "--max-new-tokens", "3")
        self.with_model("hc_eval", *DEVICE, "@text.txt")
        self.with_model("hc_export", "--format", "torch", "--out", "@export")
        self.copied("export")
        self.prepare("other", "--tokenizer", LLAMA3, "@text.txt")
        self.train_on("other", "tuned", *TUNED, status=FAILED,
                      says="ckpt-2/tokenizer.json are not the same: prepare the text with the model's tokenizer")
        self.train_on("data", "tuned", *TUNED)
        self.copied("tuned/ckpt-2")
        self.remove("tuned/ckpt-2/tokenizer.json")
        self.call("hc_sample", "--checkpoint", "@tuned/ckpt-2", "--prompt", "a", status=FAILED, says="ckpt-2/tokenizer.json")
        self.call("hc_sample", "--checkpoint", "@tuned/ckpt-2", *DEVICE, "--prompt", "a", "--max-new-tokens", "2", "--tokenizer", QWEN2)

    def test_added_after_training(self):
        """Tokens that were added after training have no rows in the model, which only texts with them need: it has 448 rows for 406 tokens. A folder
        whose tokenizer.json has them is trained on, too."""
        tokenizer = json.loads(QWEN2.read_text())
        tokenizer["added_tokens"] += [{"id": 406 + i, "content": f"[PAD{i}]"} for i in range(50)]
        self.put_json("padded.json", tokenizer)
        padded = ("--tokenizer", "@padded.json")
        self.with_model("hc_sample", *DEVICE, "--prompt", "a [PAD0]", "--max-new-tokens", "2", *padded)
        self.with_model("hc_eval", *DEVICE, *padded, "@text.txt")
        self.with_model("hc_sample", "--prompt", "a [PAD49]", *padded, status=FAILED,
                        says="the text has the token '[PAD49]', 455, and the model has only 448 tokens")
        self.copy("run", "padded-run")
        self.copy("padded.json", "padded-run/ckpt-2/tokenizer.json")
        self.prepare("padded", *padded, "@text.txt")
        self.train_on("padded", "on-padded", "--init-from", "@padded-run/ckpt-2")
        self.put("pad.txt", ("[PAD49] the\n" * 400)[:4000])
        self.prepare("needing", *padded, "--special-tokens", "parse", "--val-fraction", "0", "@pad.txt")
        self.train_on("needing", "on-needing", "--eval-iters", "0", "--init-from", "@padded-run/ckpt-2", status=FAILED, says="vocabulary")


if __name__ == "__main__":
    programs.main()
