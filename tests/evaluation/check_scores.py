#!/usr/bin/env python3
"""hc_eval --score against a computation of its own: tokens made here in Python as lm-evaluation-harness makes them, and log-likelihoods from the logits that
hc_probe writes. Also several ranks, and lines that are refused.

  tests/evaluation/check_scores.py BUILD MPIRUN

CTest's `scores`.
"""
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
from compare_analysis import Tensors, write_batch
from small_runs import make_text, train

CONTEXT, VOCABULARY = 96, 410
LLAMA3 = TESTS / "text/tokenizers/llama3.json"
TOLERANCE = 1e-5
WORDS = "the boats went out late and nobody saw them near a green wall so we sang ON it quietly".split()


def phrase(seed, count):
    return " ".join(WORDS[(seed * 7 + i * (seed % 5 + 2)) % len(WORDS)] for i in range(count))


def requests(count):
    """Contexts with white space at their ends or none, empty ones, and such as are longer than the model's, each with a continuation."""
    return [dict(context="" if i == 0 else phrase(i, 1 + 4 * (i % 7)) + ["", " ", "\n", " \n "][i % 4],
                 continuation=["", " ", "  "][i % 3] + phrase(i + 1, 1 + i % 6)) for i in range(count)]


# ---- tokens

class Bytes:
    count, first, beginning = 256, [ord("\n")], []

    def encode(self, text):
        return list(text.encode())


class Llama3:
    """Its merges, on ASCII. `count` tokens are in the softmax; None: those of the tokenizer."""
    def __init__(self, count=None):
        file = json.loads(LLAMA3.read_text())
        self.tokens = file["model"]["vocab"]
        self.ranks = {tuple(merge.split(" ") if isinstance(merge, str) else merge): i for i, merge in enumerate(file["model"]["merges"])}
        self.count = count or len(self.tokens) + len(file["added_tokens"])
        self.beginning = self.first = [file["post_processor"]["special_tokens"]["<|begin_of_text|>"]["ids"][0]]

    def encode(self, text):
        pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\na-zA-Z0-9]?[a-zA-Z]+|[0-9]{1,3}| ?[^\sa-zA-Z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        return [token for piece in re.findall(pattern, text) for token in self.encode_piece(piece)]

    def encode_piece(self, piece):
        parts = [{" ": "\u0120", "\n": "\u010a"}.get(letter, letter) for letter in piece]
        while pairs := [(self.ranks[pair], i) for i, pair in enumerate(zip(parts, parts[1:])) if pair in self.ranks]:
            i = min(pairs)[1]
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        return [self.tokens[part] for part in parts]


def request(tokenizer, context, continuation):
    """The tokens that are read, at most CONTEXT + 1, and how many of them are scored."""
    if not context:
        before, after = tokenizer.first, tokenizer.encode(continuation)
    else:
        stripped = context.rstrip()
        before, whole = (tokenizer.beginning + tokenizer.encode(text) for text in (stripped, context + continuation))
        after = whole[len(before):]
    return (before + after)[-CONTEXT - 1:], len(after)


# ---- the model's logits

def probe(build, checkpoint, folder, rows):
    """Logits [rows, CONTEXT, VOCABULARY] of rows of tokens, in double precision."""
    x = numpy.zeros((len(rows), CONTEXT), numpy.int32)
    for i, row in enumerate(rows):
        x[i, :len(row) - 1] = row[:-1]
    write_batch(folder / "batch.safetensors", x)
    subprocess.run([build / "hc_probe", "--checkpoint", checkpoint, "--batch", folder / "batch.safetensors", "--out", folder / "probe.safetensors", "--logits",
                    "--no-grad", "--device", "pocl"], check=True, stderr=subprocess.DEVNULL)
    return Tensors(folder / "probe.safetensors")["logits"].astype(numpy.float64)


def score(logits, row, scored):
    """The log-likelihood of the last tokens of a row, and whether each has the largest logit."""
    logits, tokens = logits[len(row) - 1 - scored:len(row) - 1], row[-scored:]
    largest = logits.max(axis=1)
    likelihoods = logits[range(scored), tokens] - largest - numpy.log(numpy.exp(logits - largest[:, None]).sum(axis=1))
    return likelihoods.sum(), bool((logits.argmax(axis=1) == tokens).all())


# ---- checks

def require(holds, what):
    if not holds:
        sys.exit(what)


def near(found, expected, what):
    require(math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE), f"{what}: {found}, expected {expected}")


class Check:
    def __init__(self, build, mpirun, folder):
        self.build, self.mpirun, self.folder = build, mpirun, folder
        make_text(folder, build)
        run = train(folder, build, "pocl", "run", "shc", 2, "--block-size", str(CONTEXT), "--vocab-size", str(VOCABULARY))
        self.checkpoint = run / "ckpt-30"

    def eval(self, *arguments, ranks=1, status=0):
        command = [self.build / "hc_eval", "--checkpoint", self.checkpoint, "--device", "pocl", "--dtype", "fp32", *map(str, arguments)]
        done = subprocess.run([self.mpirun, "-np", str(ranks), *command] if ranks > 1 else command, capture_output=True, text=True)
        require(done.returncode == status, f"{command}: exit status {done.returncode}: {done.stderr}")
        return done

    def write(self, name, documents):
        path = self.folder / name
        path.write_text("".join(json.dumps(document, ensure_ascii=i % 2 == 0) + "\n" for i, document in enumerate(documents)), encoding="utf-8")
        return path

    def scores(self, source, *options, ranks=1):
        """Results, lines as bytes and as JSON."""
        lines, metrics = self.folder / "scores.jsonl", self.folder / "metrics.json"
        self.eval("--score", "--json", metrics, "--per-document", lines, *options, source, ranks=ranks)
        results = json.loads(metrics.read_text())
        del results["seconds"], results["tokens_per_second"]
        return results, lines.read_text(), [json.loads(line) for line in lines.read_text().splitlines()]

    def compare(self, tokenizer, asked, results, scores):
        rows = [request(tokenizer, one["context"], one["continuation"]) for one in asked]
        logits = probe(self.build, self.checkpoint, self.folder, [row for row, _ in rows])[..., :tokenizer.count]
        total = 0.0
        for i, ((row, scored), found) in enumerate(zip(rows, scores, strict=True)):
            expected, greedy = score(logits[i], row, scored)
            near(found["log_likelihood"], expected, f"{asked[i]}: log-likelihood")
            require((found["greedy"], found["tokens"], found["context_tokens"], found["line"]) == (greedy, scored, len(row) - scored, i + 1), f"{asked[i]}: {found}")
            total += expected
        near(results["log_likelihood"], total, "sum of log-likelihoods")
        require((results["requests"], results["tokens"]) == (len(asked), sum(scored for _, scored in rows)), f"{results}")

    def plain(self):
        asked = requests(40)
        source = self.write("requests.jsonl", asked)
        results, text, scores = self.scores(source)
        self.compare(Bytes(), asked, results, scores)
        require(len(scores) > len({found["context_tokens"] + found["tokens"] for found in scores}) > 9, "contexts of too few lengths")
        require(self.scores(source, ranks=2)[:2] == (results, text), "two ranks give other results")
        require(self.scores(source, "--batch-size", 1)[2][7]["greedy"] == scores[7]["greedy"], "a batch of one gives other results")

    def greedy(self):
        """Continuations that the model would write: of each context the letters with the largest logits, and the same with another one at the end."""
        text = (self.folder / "text").read_text()
        contexts = [list(text[i:i + 40].encode()) for i in range(0, 32 * CONTEXT, CONTEXT)]
        rows = [list(context) for context in contexts]
        for _ in range(3):
            logits = probe(self.build, self.checkpoint, self.folder, [row + [0] for row in rows])[..., :Bytes.count]
            rows = [row + [int(values[len(row) - 1].argmax())] for row, values in zip(rows, logits)]
        asked = [dict(context=bytes(context).decode(), continuation=bytes(row[40:]).decode()) for context, row in zip(contexts, rows)
                 if max(row) < 128 and context[-1] not in b" \n"]
        others = [dict(one, continuation=one["continuation"][:-1] + ("x" if one["continuation"][-1] != "x" else "y")) for one in asked]
        require(len(asked) > 4, "the model would write no letters")
        _, _, scores = self.scores(self.write("greedy.jsonl", asked + others))
        require([found["greedy"] for found in scores] == len(asked) * [True] + len(others) * [False], f"what the model would write is not greedy: {scores}")

    def tokenizer(self):
        """A token before each text, and merges over the place between context and continuation."""
        asked = requests(24)
        results, _, scores = self.scores(self.write("merged.jsonl", asked), "--tokenizer", LLAMA3)
        self.compare(Llama3(VOCABULARY), asked, results, scores)

    def documents(self):
        """A document follows the token that the tokenizer puts before each text."""
        text, tokens = "the boats went out late", Llama3()
        source, metrics = self.write("document.jsonl", [dict(text=text)]), self.folder / "document.json"
        row = tokens.beginning + tokens.encode(text)
        logits = probe(self.build, self.checkpoint, self.folder, [row])[0]
        for options, count in ((), VOCABULARY), (("--score-padding", "yes"), VOCABULARY), (("--score-padding", "no"), tokens.count):
            self.eval("--json", metrics, "--tokenizer", LLAMA3, *options, source)
            near(json.loads(metrics.read_text())["log_likelihood"], score(logits[:, :count], row, len(row) - 1)[0], f"documents {options}: log-likelihood")
        refused = self.eval("--data", self.folder, "--score-padding", "no", status=2)
        require("--score-padding no is for documents and requests" in refused.stderr, refused.stderr)

    def windows(self, row):
        """Log-likelihood of a row of tokens but the first: windows of CONTEXT new ones, each read behind as many as the context holds."""
        cuts = [(start, min(start + CONTEXT, len(row) - 1)) for start in range(0, len(row) - 1, CONTEXT)]
        rows = [row[max(0, end - CONTEXT):end + 1] for _, end in cuts]
        logits = probe(self.build, self.checkpoint, self.folder, rows)[..., :Bytes.count] if rows else []
        return sum(score(logits[i], rows[i], end - start)[0] for i, (start, end) in enumerate(cuts))

    def lengths(self):
        """Documents of all lengths, a blank line among them, and what is printed of all; then a whole split, whose windows do not overlap."""
        texts = [phrase(i, 200)[:length] for i, length in enumerate((1, CONTEXT - 1, CONTEXT, CONTEXT + 1, 2 * CONTEXT, 2 * CONTEXT + 1, 100, 0, 777))]
        source, each, metrics = self.write("documents.jsonl", [dict(text=text) for text in texts]), self.folder / "each.jsonl", self.folder / "document.json"
        lines = source.read_text().splitlines(True)
        source.write_text("".join(lines[:3] + ["\n"] + lines[3:]))
        self.eval("--json", metrics, "--per-document", each, source)
        results, found = json.loads(metrics.read_text()), [json.loads(line) for line in each.read_text().splitlines()]
        sums = {"log_likelihood": 0.0, "tokens": 0, "bytes": 0, "words": 0}
        for i, (text, line) in enumerate(zip(texts, found, strict=True)):
            expected = {"log_likelihood": self.windows(Bytes.first + list(text.encode())), "tokens": len(text), "bytes": len(text),
                        "words": len(re.split(r"\s+", text))}
            for name, number in expected.items():
                near(line[name], number, f"document {i + 1}: {name}")
                sums[name] += number
            require((line["document"], line["line"], line["source"]) == (i + 1, i + 1 + (i >= 3), str(source)), f"{line}")
            require(line["loss"] is None if not text else math.isclose(line["loss"], -expected["log_likelihood"] / len(text), rel_tol=TOLERANCE), f"{line}")
        loss = -sums["log_likelihood"]
        for name, number in (*sums.items(), ("documents", len(texts)), ("vocabulary", Bytes.count), ("word_perplexity", math.exp(loss / sums["words"])),
                             ("byte_perplexity", math.exp(loss / sums["bytes"])), ("bits_per_byte", loss / sums["bytes"] / math.log(2)),
                             ("token_perplexity", math.exp(loss / sums["tokens"]))):
            near(results[name] / number, 1, f"all documents: {name}")
        tokens = numpy.fromfile(self.folder / "data/val.bin", "<u2").astype(int).tolist()
        rows = [tokens[at:at + CONTEXT + 1] for at in range(0, len(tokens) - 1, CONTEXT)]
        logits = probe(self.build, self.checkpoint, self.folder, rows)
        loss = -sum(score(logits[i], row, len(row) - 1)[0] for i, row in enumerate(rows)) / (len(tokens) - 1)
        done = self.eval("--data", self.folder / "data", "--json", metrics)
        require("split             val.bin, the whole file\nloss (nats/token) " in done.stdout, done.stdout)
        results = json.loads(metrics.read_text())
        for name, number in (("tokens", len(tokens) - 1), ("loss", loss), ("perplexity", math.exp(loss))):
            near(results[name] / number, 1, f"whole split: {name}")

    def refused(self, words, text):
        """Nothing is written for a line like that, the second of the file."""
        data = text if isinstance(text, bytes) else text.encode()
        (self.folder / "bad.jsonl").write_bytes(json.dumps(requests(2)[1]).encode() + b"\n" + data + b"\n")
        results = self.folder / "refused.jsonl"
        done = self.eval("--score", "--per-document", results, self.folder / "bad.jsonl", status=1)
        require(f"bad.jsonl:2: {words}" in done.stderr, f"expected '{words}', found: {done.stderr}")
        require(not results.exists(), f"results of '{words}'")

    def refusals(self):
        self.refused("no field 'context'; there is 'continuation'\n", '{"continuation": "a"}')
        self.refused("no field 'continuation'; there is 'context'\n", '{"context": "a"}')
        self.refused("field 'context' is not a string", '{"context": 1, "continuation": "a"}')
        self.refused("the continuation has 101 tokens, and the model a context of 96", json.dumps(dict(context="a", continuation=101 * "a")))
        self.refused("the continuation has no tokens: it is empty", '{"context": "a", "continuation": ""}')
        self.refused("the context has white space only", '{"context": " ", "continuation": "a"}')
        self.refused("not UTF-8", b'{"context": "\xff"}')
        self.refused("not JSON at byte", '{"context": "a"')
        (self.folder / "blank.jsonl").write_text("\n\n")
        blank = self.eval("--score", "--per-document", self.folder / "x", self.folder / "blank.jsonl", status=1)
        require("blank.jsonl has no requests: it is empty, or has blank lines only" in blank.stderr, blank.stderr)
        for words, options in (("--score needs files of requests, and --per-document FILE", ("--score", "x")), ("--score needs files", ("--score", "--data", "x")),
                               ("leave out --count-field", ("--score", "--per-document", "z", "--count-field", "x", "y"))):
            require(words in self.eval(*options, status=2).stderr, f"{options} is not refused by '{words}'")


def main():
    build, mpirun = pathlib.Path(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        check = Check(build, mpirun, pathlib.Path(folder))
        check.plain()
        check.greedy()
        check.tokenizer()
        check.documents()
        check.lengths()
        check.refusals()


if __name__ == "__main__":
    main()
