"""Hostile text wherever programs take in names: of files and folders, tensors, types, settings and tokenizers. They show it, and print nothing that a
terminal would obey, or that could be taken for a line of theirs."""
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import HOSTILE

IN_JSON = json.dumps(HOSTILE)[1:-1]
NAME = "name" + HOSTILE
DEVICE = ("--device", "pocl")
TRAIN = ("hc_train", "--config", "@tiny.conf", "--data-dir", "@data", "--out-dir")
SAMPLE = ("hc_sample", *DEVICE, "--checkpoint")


class ForeignText(programs.Case):
    @classmethod
    def begin(cls):
        super().begin()
        cls.made(*TRAIN, "@run", "--max-iters", "2", "--residual", "shc")

    def refused_and_shown(self, *words):
        with self.subTest(words):
            self.shown(self.refused("", *words).said)

    def damage(self, name, old, new):
        """Puts a file of the run "run" into "damaged" with this text in place of another."""
        text = self.text(f"run/{name}")
        self.assertIn(old, text)
        self.put(f"damaged/{name}", text.replace(old, new, 1))

    def test_tensors(self):
        for header in ['{"%s":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}' % IN_JSON,
                       '{"x":{"dtype":"%s","shape":[1],"data_offsets":[0,4]}}' % IN_JSON,
                       '{"x":"\u009b2J\n"}']:
            text = header.encode()
            self.put("hostile.safetensors", len(text).to_bytes(8, "little") + text + bytes(4))
            self.refused_and_shown("hc_probe", *DEVICE, "--batch", "@hostile.safetensors", "--out", "@probed", "--checkpoint", "@run/ckpt-2")

    def test_settings(self):
        for line in ["\x1b[31mname = 1\n", "n_layer = \x1b[31m\n", "no line \x1b[31m\n", 'residual = "\\x1b[31m\\r\\nforged"\n']:
            self.put("hostile.conf", line)
            self.refused_and_shown("hc_train", "--config", "@hostile.conf", "--out-dir", "@new")
        for words in [("--" + HOSTILE, "1"), ("--n-layer", HOSTILE), (HOSTILE,), ("--data-dir", "@data", "--device", HOSTILE, "--out-dir", "@new")]:
            self.refused_and_shown("hc_train", *words)

    def test_checkpoints(self):
        self.damage("ckpt-2/config.json", '"tokenizer": "byte"', '"tokenizer": "\\u001b[1m\\n"')
        self.refused_and_shown(*SAMPLE, "@damaged/ckpt-2")
        self.put("damaged/ckpt-2/config.json", '{"model_type": "%s"}' % IN_JSON)
        self.refused_and_shown(*SAMPLE, "@damaged/ckpt-2")
        for old, new in [('"settings": "', f'"settings": "{IN_JSON} = 1\\n'), ('"config.json"', f'"{IN_JSON}"')]:
            self.damage("ckpt-2/state.json", old, new)
            self.refused_and_shown(*TRAIN, "@damaged", "--init-from", "resume")

    def test_data_folders(self):
        """A tokenizer's name may go into the checkpoint, which is then refused."""
        self.copy("data", "named")
        for meta in ['{"vocab_size": "\u009b2J\n"}', '{"vocab_size": 256, "tokenizer": "\\u001b[1m\\n"}']:
            self.put("named/meta.json", meta)
            run = self.call(*TRAIN, "@hostile-run", "--data-dir", "@named", "--start-over", status=(0, 1, 2))
            if run.status == 0:
                self.refused_and_shown(*SAMPLE, "@hostile-run/ckpt-20", "--max-new-tokens", "1")
            else:
                self.shown(run.said)

    def test_names_of_files(self):
        for words in [("hc_train", "--data-dir", f"@{NAME}"),
                      ("hc_train", "--config", f"@{NAME}"),
                      (*SAMPLE, f"@{NAME}"),
                      (*SAMPLE, "@run/ckpt-2", "--prompt-file", f"@{NAME}"),
                      ("hc_eval", *DEVICE, "--checkpoint", "@run/ckpt-2", f"@{NAME}"),
                      ("hc_probe", *DEVICE, "--checkpoint", "@run/ckpt-2", "--out", "@probed", "--batch", f"@{NAME}"),
                      ("hc_export", "--out", "@exported", "--checkpoint", f"@{NAME}"),
                      ("hc_prepare", "--out", "@prepared", f"@{NAME}"),
                      ("hc_analyze", "--out", "@report", f"@{NAME}"),
                      ("hc_bench", "--json", f"@no/{NAME}", "--steps", "1")]:
            self.refused_and_shown(*words)

    def test_names_of_results(self):
        """What programs print that did what they were to do, and what a report has."""
        result = "result" + HOSTILE
        for words in [("hc_prepare", "--out", f"@{result}", "@text.txt"),
                      ("hc_train", "--config", "@tiny.conf", "--vocab-size", "256", "--data-dir", f"@{result}", "--max-iters", "2",
                       "--out-dir", f"@run-{result}"),
                      ("hc_export", "--format", "torch", "--out", f"@exported-{result}", "--checkpoint", f"@run-{result}/ckpt-2"),
                      ("hc_eval", *DEVICE, "--eval-iters", "1", "--data", f"@{result}", "--checkpoint", f"@run-{result}/ckpt-2"),
                      ("hc_analyze", *DEVICE, "--samples", "1", "--data-dir", f"@{result}", "--out", f"@report-{result}", f"@run-{result}")]:
            with self.subTest(words):
                done = self.call(*words)
                self.shown(done.printed.decode(errors="surrogateescape") + done.said)
        for file in ("report.html", "figures/loss.csv", "figures/loss.svg"):
            text = self.path(f"report-{result}/{file}").read_bytes().decode(errors="surrogateescape")
            for hostile in ("\0", "\x1b", "\r", "\u009b", "\nforged"):
                self.assertNotIn(hostile, text, file)

    def test_samples_on_a_terminal(self):
        master, terminal = os.openpty()
        self.call(*SAMPLE, "@run/ckpt-2", "--max-new-tokens", "0", "--prompt", "\x1b[31mab\u00e9\n", output=terminal)
        self.assertEqual(os.read(master, 1024), "\\x1b[31mab\u00e9\r\n\r\n".encode())  # the terminal's own \r
        os.close(master)
        os.close(terminal)


if __name__ == "__main__":
    programs.main()
