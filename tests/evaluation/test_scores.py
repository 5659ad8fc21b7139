"""hc_eval --score against a computation of its own: tokens made here in Python as lm-evaluation-harness makes them, and log-likelihoods from the logits
that hc_probe writes. Also several ranks, and lines that are refused."""
import json
import math
import re
import sys
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from hctrain.checkpoints import Tensors
from programs import FAILED, WRONG_USAGE

CONTEXT, VOCABULARY = 96, 410
LLAMA3 = Path(__file__).resolve().parent.parent / "text/tokenizers/llama3.json"
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


def score(logits, row, scored):
    """The log-likelihood of the last tokens of a row, and whether each has the largest logit."""
    logits, tokens = logits[len(row) - 1 - scored:len(row) - 1], row[-scored:]
    largest = logits.max(axis=1)
    likelihoods = logits[range(scored), tokens] - largest - numpy.log(numpy.exp(logits - largest[:, None]).sum(axis=1))
    return likelihoods.sum(), bool((logits.argmax(axis=1) == tokens).all())


class Scores(programs.Case):
    @classmethod
    def begin(cls):
        super().begin()
        cls.made(*cls.training("run", "--residual", "shc", "--n-streams", "2", "--n-layer", "2", "--block-size", CONTEXT, "--vocab-size", VOCABULARY,
                               "--learning-rate", "3e-2", "--max-iters", "30"))

    def eval(self, *words, **setup):
        return self.call("hc_eval", "--checkpoint", "@run/ckpt-30", "--device", "pocl", "--dtype", "fp32", *words, **setup)

    def put_lines(self, name, documents):
        self.put(name, "".join(json.dumps(document, ensure_ascii=i % 2 == 0) + "\n" for i, document in enumerate(documents)))

    def near(self, found, expected, what):
        self.assertTrue(math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE), f"{what}: {found}, expected {expected}")

    def probe(self, rows):
        """Logits [rows, CONTEXT, VOCABULARY] of rows of tokens, in double precision."""
        x = numpy.zeros((len(rows), CONTEXT), int)
        for i, row in enumerate(rows):
            x[i, :len(row) - 1] = row[:-1]
        self.put_batch("batch", *[(x.shape, x.ravel().tolist())] * 2)
        self.call("hc_probe", "--checkpoint", "@run/ckpt-30", "--batch", "@batch", "--out", "@probe", "--logits", "--no-grad", "--device", "pocl")
        return Tensors(self.path("probe"))["logits"].astype(numpy.float64)

    # ---- requests

    def scores(self, name, asked, *options, **setup):
        """Results, lines as text and as JSON."""
        self.put_lines(name, asked)
        self.eval("--score", "--json", "@metrics.json", "--per-document", "@scores.jsonl", *options, f"@{name}", **setup)
        results = self.json("metrics.json")
        del results["seconds"], results["tokens_per_second"]
        return results, self.text("scores.jsonl"), self.records("scores.jsonl")

    def compare(self, tokenizer, asked, results, scores):
        rows = [request(tokenizer, one["context"], one["continuation"]) for one in asked]
        logits = self.probe([row for row, _ in rows])[..., :tokenizer.count]
        total = 0.0
        for i, ((row, scored), found) in enumerate(zip(rows, scores, strict=True)):
            expected, greedy = score(logits[i], row, scored)
            self.near(found["log_likelihood"], expected, f"{asked[i]}: log-likelihood")
            self.assertEqual([found[name] for name in ("greedy", "tokens", "context_tokens", "line")], [greedy, scored, len(row) - scored, i + 1], asked[i])
            total += expected
        self.near(results["log_likelihood"], total, "sum of log-likelihoods")
        self.assertEqual((results["requests"], results["tokens"]), (len(asked), sum(scored for _, scored in rows)))

    def test_requests(self):
        asked = requests(40)
        results, text, scores = self.scores("requests.jsonl", asked)
        self.compare(Bytes(), asked, results, scores)
        self.assertTrue(len(scores) > len({found["context_tokens"] + found["tokens"] for found in scores}) > 9, "contexts of too few lengths")
        self.assertEqual(self.scores("requests.jsonl", asked, ranks=2)[:2], (results, text))
        self.assertEqual(self.scores("requests.jsonl", asked, "--batch-size", 1)[2][7]["greedy"], scores[7]["greedy"])

    def test_greedy(self):
        """Continuations that the model would write: of each context the letters with the largest logits, and the same with another one at the end."""
        text = self.text("text.txt")
        contexts = [list(text[i:i + 40].encode()) for i in range(0, 32 * CONTEXT, CONTEXT)]
        rows = [list(context) for context in contexts]
        for _ in range(3):
            logits = self.probe([row + [0] for row in rows])[..., :Bytes.count]
            rows = [row + [int(values[len(row) - 1].argmax())] for row, values in zip(rows, logits)]
        asked = [dict(context=bytes(context).decode(), continuation=bytes(row[40:]).decode()) for context, row in zip(contexts, rows)
                 if max(row) < 128 and context[-1] not in b" \n"]
        others = [dict(one, continuation=one["continuation"][:-1] + ("x" if one["continuation"][-1] != "x" else "y")) for one in asked]
        self.assertGreater(len(asked), 4, "the model would write no letters")
        _, _, scores = self.scores("greedy.jsonl", asked + others)
        self.assertEqual([found["greedy"] for found in scores], len(asked) * [True] + len(others) * [False])

    def test_tokenizer(self):
        """A token before each text, and merges over the place between context and continuation."""
        asked = requests(24)
        results, _, scores = self.scores("merged.jsonl", asked, "--tokenizer", LLAMA3)
        self.compare(Llama3(VOCABULARY), asked, results, scores)

    # ---- documents

    def test_beginning(self):
        """A document follows the token that the tokenizer puts before each text."""
        text, tokens = "the boats went out late", Llama3()
        self.put_lines("document.jsonl", [dict(text=text)])
        row = tokens.beginning + tokens.encode(text)
        logits = self.probe([row])[0]
        for options, count in ((), VOCABULARY), (("--score-padding", "yes"), VOCABULARY), (("--score-padding", "no"), tokens.count):
            self.eval("--json", "@document.json", "--tokenizer", LLAMA3, *options, "@document.jsonl")
            self.near(self.json("document.json")["log_likelihood"], score(logits[:, :count], row, len(row) - 1)[0], options)
        self.eval("--data", "@data", "--score-padding", "no", status=WRONG_USAGE, says="--score-padding no is for documents and requests")

    def windows(self, row):
        """Log-likelihood of a row of tokens but the first: windows of CONTEXT new ones, each read behind as many as the context holds."""
        cuts = [(start, min(start + CONTEXT, len(row) - 1)) for start in range(0, len(row) - 1, CONTEXT)]
        rows = [row[max(0, end - CONTEXT):end + 1] for _, end in cuts]
        logits = self.probe(rows)[..., :Bytes.count] if rows else []
        return sum(score(logits[i], rows[i], end - start)[0] for i, (start, end) in enumerate(cuts))

    def test_lengths(self):
        """Documents of all lengths, a blank line among them, and what is printed of all; then a whole split, whose windows do not overlap."""
        texts = [phrase(i, 200)[:length] for i, length in enumerate((1, CONTEXT - 1, CONTEXT, CONTEXT + 1, 2 * CONTEXT, 2 * CONTEXT + 1, 100, 0, 777))]
        lines = [json.dumps(dict(text=text)) + "\n" for text in texts]
        self.put("documents.jsonl", "".join(lines[:3] + ["\n"] + lines[3:]))
        self.eval("--json", "@document.json", "--per-document", "@each.jsonl", "@documents.jsonl")
        results = self.json("document.json")
        sums = {"log_likelihood": 0.0, "tokens": 0, "bytes": 0, "words": 0}
        for i, (text, line) in enumerate(zip(texts, self.records("each.jsonl"), strict=True)):
            expected = {"log_likelihood": self.windows(Bytes.first + list(text.encode())), "tokens": len(text), "bytes": len(text),
                        "words": len(re.split(r"\s+", text))}
            for name, number in expected.items():
                self.near(line[name], number, f"document {i + 1}: {name}")
                sums[name] += number
            self.assertEqual((line["document"], line["line"], line["source"]), (i + 1, i + 1 + (i >= 3), str(self.path("documents.jsonl"))))
            self.assertTrue(line["loss"] is None if not text else math.isclose(line["loss"], -expected["log_likelihood"] / len(text), rel_tol=TOLERANCE), line)
        loss = -sums["log_likelihood"]
        for name, number in (*sums.items(), ("documents", len(texts)), ("vocabulary", Bytes.count), ("word_perplexity", math.exp(loss / sums["words"])),
                             ("byte_perplexity", math.exp(loss / sums["bytes"])), ("bits_per_byte", loss / sums["bytes"] / math.log(2)),
                             ("token_perplexity", math.exp(loss / sums["tokens"]))):
            self.near(results[name] / number, 1, f"all documents: {name}")
        tokens = numpy.fromfile(self.path("data/val.bin"), "<u2").astype(int).tolist()
        rows = [tokens[at:at + CONTEXT + 1] for at in range(0, len(tokens) - 1, CONTEXT)]
        logits = self.probe(rows)
        loss = -sum(score(logits[i], row, len(row) - 1)[0] for i, row in enumerate(rows)) / (len(tokens) - 1)
        done = self.eval("--data", "@data", "--json", "@split.json")
        self.assertIn(b"split             val.bin, the whole file\nloss (nats/token) ", done.printed)
        results = self.json("split.json")
        for name, number in (("tokens", len(tokens) - 1), ("loss", loss), ("perplexity", math.exp(loss))):
            self.near(results[name] / number, 1, f"whole split: {name}")

    # ---- what is refused

    def test_refused_lines(self):
        """Nothing is written for a line like that, the second of the file."""
        for says, line in [("no field 'context'; there is 'continuation'\n", b'{"continuation": "a"}'),
                           ("no field 'continuation'; there is 'context'\n", b'{"context": "a"}'),
                           ("field 'context' is not a string", b'{"context": 1, "continuation": "a"}'),
                           ("the continuation has 101 tokens, and the model a context of 96", b'{"context": "a", "continuation": "%s"}' % (101 * b"a")),
                           ("the continuation has no tokens: it is empty", b'{"context": "a", "continuation": ""}'),
                           ("the context has white space only", b'{"context": " ", "continuation": "a"}'),
                           ("not UTF-8", b'{"context": "\xff"}'),
                           ("not JSON at byte", b'{"context": "a"')]:
            self.put("bad.jsonl", json.dumps(requests(2)[1]).encode() + b"\n" + line + b"\n")
            self.eval("--score", "--per-document", "@refused.jsonl", "@bad.jsonl", status=FAILED, says=f"bad.jsonl:2: {says}")
            self.assertFalse(self.has("refused.jsonl"))

    def test_refused_words(self):
        self.put("blank.jsonl", "\n\n")
        for status, says, *words in [(FAILED, "blank.jsonl has no requests: it is empty, or has blank lines only", "--per-document", "@x", "@blank.jsonl"),
                                     (WRONG_USAGE, "--score needs files of requests, and --per-document FILE", "x"),
                                     (WRONG_USAGE, "--score needs files", "--data", "x"),
                                     (WRONG_USAGE, "leave out --count-field", "--per-document", "z", "--count-field", "x", "y")]:
            self.eval("--score", *words, status=status, says=says)

    # ---- bits per byte

    def bytes_of(self, tokens):
        """Bytes of text that each token stands for, one for each letter of GPT-2's alphabet; control tokens stand for none."""
        lengths = {number: len(name) for name, number in Llama3().tokens.items()}
        return [lengths.get(token, 0) for token in tokens]

    def prepare(self, name, *seeds):
        """The tokens of val.bin of texts, each of which ends with a control token."""
        self.put_lines(f"{name}.jsonl", [dict(text=phrase(seed, 40)) for seed in seeds])
        self.call("hc_prepare", "--tokenizer", LLAMA3, "--val-fraction", "0.4", "--out", f"@{name}", f"@{name}.jsonl")
        return numpy.fromfile(self.path(f"{name}/val.bin"), "<u2").astype(int).tolist()

    def test_bits_per_byte(self):
        """Of token files: the losses of what stands for text, in bits, by its bytes. The ends of documents count in neither."""
        tokens = self.prepare("merged", *range(30))
        rows = [tokens[at:at + CONTEXT + 1] for at in range(0, len(tokens) - 1, CONTEXT)]
        losses = [-score(values[i:i + 1], row[i:i + 2], 1)[0] for row, values in zip(rows, self.probe(rows)) for i in range(len(row) - 1)]
        lengths = self.bytes_of(tokens[1:])
        self.assertGreater(lengths.count(0), 5)
        of_text = sum(loss for loss, length in zip(losses, lengths, strict=True) if length)
        results = []
        for ranks in (1, 2):
            printed = self.eval("--data", "@merged", "--tokenizer", LLAMA3, "--json", "@bits.json", ranks=ranks).printed.decode()
            results.append(self.json("bits.json"))
            self.assertIn(f"bits_per_byte     {results[-1]['bits_per_byte']:.6f}\n", printed)
        self.near(results[0]["bits_per_byte"], of_text / sum(lengths) / math.log(2), "bits per byte")
        self.near(results[0]["loss"], sum(losses) / len(losses), "loss")
        self.assertEqual([one["bits_per_byte"] for one in results], 2 * [results[0]["bits_per_byte"]])
        self.call("hc_eval", "--checkpoint", "@run/ckpt-30", "--device", "pocl", "--data", "@merged", "--tokenizer", "none.json", status=FAILED,
                  says="'none.json' is not there")

    def test_bits_per_byte_in_training(self):
        """hc_train has those of hc_eval, whole and sampled; a mixture's are of its text, in which folders have their shares; of unknown tokens there are
        none."""
        def trained(name, data, *options):
            printed = self.call(*self.training(name, "--data-dir", data, "--max-iters", "0", "--eval-iters", "3", *options)).said
            line = self.metrics(name)[0]
            self.assertEqual("bits per byte" in printed, "val_bits_per_byte" in line)
            return line.get("val_bits_per_byte")

        def scored(data, *options):
            self.call("hc_eval", "--checkpoint", "@whole/ckpt-0", "--device", "pocl", "--data", f"@{data}", "--json", "@bits.json", *options)
            return self.json("bits.json")["bits_per_byte"]

        lengths = {name: self.bytes_of(self.prepare(name, *seeds)[1:]) for name, seeds in (("merged", range(30)), ("few", range(40, 52)))}
        self.near(trained("whole", "@merged", "--eval-batches", "whole"), scored("merged"), "whole")
        self.near(trained("sampled", "@merged", "--eval-batches", "sampled"), scored("merged", "--eval-iters", "3", "--batch-size", "4"), "sampled")
        share = {name: weight * sum(lengths[name]) / len(lengths[name]) for name, weight in (("merged", 0.25), ("few", 0.75))}  # of the bytes
        mixed = trained("mixed", f"{self.path('merged')}:1,{self.path('few')}:3", "--eval-batches", "whole")
        self.near(mixed, sum(share[name] * scored(name) for name in share) / sum(share.values()), "mixture")
        self.put_json("merged/meta.json", {"vocab_size": 403})
        self.remove("merged/tokenizer.json")
        self.assertIsNone(trained("unknown", "@merged"))


if __name__ == "__main__":
    programs.main()
