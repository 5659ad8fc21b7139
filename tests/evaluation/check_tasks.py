#!/usr/bin/env python3
"""hc_eval --task against a computation of its own: prompts made here in Python as lm-evaluation-harness makes them, and log-likelihoods
from the logits that hc_probe writes. Also several ranks, examples, and lines that are refused.

  tests/evaluation/check_tasks.py BUILD MPIRUN

CTest's `tasks`.
"""
import json
import math
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import numpy

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
from compare_analysis import read_tensors, write_batch
from small_runs import make_text, train

CONTEXT, VOCABULARY = 96, 410
LLAMA3 = TESTS / "text/tokenizers/llama3.json"
TOLERANCE = 1e-5
WORDS = "the boats went out late and nobody saw them near a green wall so we sang ON it quietly".split()


# ---- questions, each with what its data set has

def phrase(seed, count):
    return " ".join(WORDS[(seed * 7 + i * (seed % 5 + 2)) % len(WORDS)] for i in range(count))


def hellaswag(i):
    return dict(activity_label=f"Rowing {i}", ctx_a=["", " ", "\u00a0"][i % 3] + phrase(i, 2 + 5 * (i % 3)), ctx_b=["", "He ÉLAN", "ßa [b]", "ΟΔΟΣ"][i % 4],
                endings=[["", "  ", "a [title] b "][i % 3] + phrase(i + k, 1 + k) + ["", " [substeps] x", "[y\nz]  "][k % 3] for k in range(4)],
                label=str(i % 4), ind=i)


def lambada(i):
    return dict(text="alone" if i == 0 else phrase(i, 3 + 4 * (i % 6)) + ["", "\n", " "][i % 3] + " " + WORDS[i % 5])


def piqa(i):
    return dict(goal=phrase(i, 3 + 7 * (i % 4)) + " "[: i % 2], sol1=phrase(i + 1, 1 + i % 9), sol2=phrase(i + 2, 2 + i % 5), label=i % 2)


def arc(i):
    labels = [list("ABCD"), list("1234"), list("ABC")][i % 3]
    return dict(id=str(i), question=phrase(i, 4 + i % 9), choices=dict(text=[phrase(i + k, 1 + k) for k in range(len(labels))], label=labels),
                answerKey=labels[i % len(labels)])


def winogrande(i):
    return dict(sentence=f"{phrase(i, 4 + 3 * (i % 5))} _ {phrase(i + 1, 2)} _.", option1="Ann", option2="the boats", answer=str(1 + i % 2))


MAKERS = dict(hellaswag=hellaswag, lambada=lambada, piqa=piqa, arc_easy=arc, arc_challenge=arc, winogrande=winogrande)


# ---- prompts: [(context, continuation, characters)], the right one, and an example's text

def cleaned(text):
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def prompts(task, document):
    if task == "lambada":
        *context, word = document["text"].split(" ")
        context = " ".join(context)
        return [(context, " " + word, 1)], 0, f"{context}  {word}\n\n"
    if task == "winogrande":
        head, tail = document["sentence"].split("_", 1)
        contexts, label = [head + document["option1"], head + document["option2"]], int(document["answer"]) - 1
        return [(context, " " + tail.strip(), 1) for context in contexts], label, f"{contexts[label]} {tail.strip()}\n\n"
    if task == "hellaswag":
        context = cleaned(f"{document['activity_label']}: {document['ctx_a']} {document['ctx_b'].capitalize()}")
        choices, label = [cleaned(ending) for ending in document["endings"]], int(document["label"])
    elif task == "piqa":
        context, choices, label = f"Question: {document['goal']}\nAnswer:", [document["sol1"], document["sol2"]], document["label"]
    else:
        context, choices = f"Question: {document['question']}\nAnswer:", document["choices"]["text"]
        label = document["choices"]["label"].index(document["answerKey"])
    return [(context, " " + choice, len(choice)) for choice in choices], label, f"{context} {choices[label]}\n\n"


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
    return read_tensors(folder / "probe.safetensors")["logits"].astype(numpy.float64)


def score(logits, row, scored):
    """The log-likelihood of the last tokens of a row, and whether each has the largest logit."""
    logits, tokens = logits[len(row) - 1 - scored:len(row) - 1], row[-scored:]
    largest = logits.max(axis=1)
    likelihoods = logits[range(scored), tokens] - largest - numpy.log(numpy.exp(logits - largest[:, None]).sum(axis=1))
    return likelihoods.sum(), bool((logits.argmax(axis=1) == tokens).all())


def bootstrap(likelihoods):
    """The standard error of the perplexity, as lm-evaluation-harness draws it."""
    samples = []
    for seed in range(100):
        rng = random.Random(seed)
        samples += [math.exp(-sum(rng.choices(likelihoods, k=len(likelihoods))) / len(likelihoods)) for _ in range(1000)]
    return numpy.std(samples, ddof=1)


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

    def answers(self, task, source, *options, ranks=1):
        """Results, answers as bytes and as JSON."""
        lines, metrics = self.folder / "answers.jsonl", self.folder / "metrics.json"
        self.eval("--task", task, "--json", metrics, "--per-document", lines, *options, source, ranks=ranks)
        text = lines.read_text()
        results = json.loads(metrics.read_text())
        del results["seconds"], results["tokens_per_second"]
        return results, text, [json.loads(line) for line in text.splitlines()]

    def compare(self, task, tokenizer, documents, examples, results, answers):
        """examples: of each document, the text before its context."""
        asked = [prompts(task, document) for document in documents]
        requests = [request(tokenizer, before + context, continuation)
                    for before, (choices, _, _) in zip(examples, asked) for context, continuation, _ in choices]
        logits = probe(self.build, self.checkpoint, self.folder, [row for row, _ in requests])[..., :tokenizer.count]
        scores = iter([score(logits[i], *asked_row) for i, asked_row in enumerate(requests)])
        right, right_norm, likelihoods = [], [], []
        for (choices, label, _), answer in zip(asked, answers, strict=True):
            found = [next(scores) for _ in choices]
            values = numpy.array([value for value, _ in found])
            norms = values / [characters for _, _, characters in choices]
            for value, expected in zip(answer["log_likelihoods"], values, strict=True):
                near(value, expected, f"{task}: log-likelihood")
            likelihoods.append(values[0])
            right.append(found[0][1] if task == "lambada" else values.argmax() == label)
            right_norm.append(norms.argmax() == label)
            expected = dict(greedy=found[0][1]) if task == "lambada" else dict(label=label, pick=int(values.argmax()))
            if task in ("hellaswag", "piqa") or task.startswith("arc"):
                expected["pick_norm"] = int(norms.argmax())
            require({name: value for name, value in answer.items() if name not in ("source", "document", "line", "log_likelihoods")} == expected,
                    f"{task}: {answer}, expected {expected}")
        self.compare_means(task, results, right, right_norm, likelihoods)

    def compare_means(self, task, results, right, right_norm, likelihoods):
        deviation = lambda values: numpy.std(values, ddof=1) / math.sqrt(len(values))
        expected = dict(acc=numpy.mean(right), acc_stderr=deviation(right))
        if task == "lambada":
            perplexity = math.exp(-numpy.mean(likelihoods))
            expected.update(perplexity=perplexity, perplexity_stderr=bootstrap(likelihoods))
        elif task != "winogrande":
            expected.update(acc_norm=numpy.mean(right_norm), acc_norm_stderr=deviation(right_norm))
        require({name for name in results if re.match("acc|perplexity", name)} == set(expected), f"{task}: {results}")
        for name, value in expected.items():
            near(results[name], value, f"{task}: {name}")

    def tasks(self):
        for task, make in MAKERS.items():
            documents = [make(i) for i in range(16)]
            source = self.write(f"{task}.jsonl", documents)
            results, text, answers = self.answers(task, source)
            self.compare(task, Bytes(), documents, [""] * len(documents), results, answers)
            if task in ("hellaswag", "lambada"):
                require(self.answers(task, source, ranks=2)[:2] == (results, text), f"{task}: two ranks give other results")

    def greedy(self):
        """Last words that the model would write: one letter, behind a context and a space that have the largest logits."""
        text = (self.folder / "text").read_text()
        rows = [list(text[i:i + CONTEXT - 2].encode()) for i in range(0, 64 * CONTEXT, CONTEXT)]
        logits = probe(self.build, self.checkpoint, self.folder, [row + [0] for row in rows])[..., :Bytes.count]
        contexts = [row[:at + 1] for row, values in zip(rows, logits) for at in range(4, len(row))
                    if values[at].argmax() == ord(" ") and row[at] not in b" \n"][:64]
        logits = probe(self.build, self.checkpoint, self.folder, [context + [ord(" "), 0] for context in contexts])
        letters = [int(values[len(context), :Bytes.count].argmax()) for context, values in zip(contexts, logits)]
        texts = [bytes(context + [ord(" "), letter]).decode() for context, letter in zip(contexts, letters) if chr(letter).isalnum() and letter < 128]
        require(texts, "the model would write no word")
        results, _, answers = self.answers("lambada", self.write("greedy.jsonl", [dict(text=text) for text in texts]))
        require(all(answer["greedy"] for answer in answers) and results["acc"] == 1, f"words that the model would write are no answers: {results}")

    def tokenizer(self):
        """A token before each text, and merges over the place between context and continuation."""
        for task in ("piqa", "lambada"):
            documents = [MAKERS[task](i) for i in range(12)]
            results, _, answers = self.answers(task, self.write("merged.jsonl", documents), "--tokenizer", LLAMA3)
            self.compare(task, Llama3(VOCABULARY), documents, [""] * len(documents), results, answers)

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
        require("--score-padding no is for documents and questions" in refused.stderr, refused.stderr)

    def shots(self):
        for task in ("arc_easy", "lambada", "winogrande"):
            documents = [MAKERS[task](i) for i in (1, 2, 2, 3, 4, 5)]
            source, more = self.write("shots.jsonl", documents), self.write("more.jsonl", [MAKERS[task](i) for i in range(7, 11)])
            texts = [prompts(task, document)[2] for document in documents]
            others = ["".join([text for text, other in zip(texts, documents) if other != document][:2]) for document in documents]
            results, _, answers = self.answers(task, source, "--shots", 2)
            self.compare(task, Bytes(), documents, others, results, answers)
            before = "".join(prompts(task, MAKERS[task](i))[2] for i in range(7, 10))
            results, _, answers = self.answers(task, source, "--shots", 3, "--shots-file", more)
            self.compare(task, Bytes(), documents, [before] * len(documents), results, answers)

    def refused(self, words, task, text, *options):
        """Nothing is written for a line like that, the second of the file."""
        data = text if isinstance(text, bytes) else text.encode()
        (self.folder / "bad.jsonl").write_bytes(json.dumps(MAKERS[task](1)).encode() + b"\n" + data + b"\n")
        results = self.folder / "refused.json"
        done = self.eval("--task", task, "--json", results, *options, self.folder / "bad.jsonl", status=1)
        require(f"bad.jsonl:2: {words}" in done.stderr, f"{task}: expected '{words}', found: {done.stderr}")
        require(not results.exists(), f"{task}: results of '{words}'")

    def refusals(self):
        self.refused("no field 'goal'", "piqa", '{"label": 1}')
        self.refused("choice 0: a continuation has 101 tokens, and the model a context of 96", "piqa", json.dumps({**piqa(1), "sol1": 100 * "a"}))
        self.refused("'goal' is \"a\\u0000b\": it must be a string without NUL", "piqa", json.dumps({**piqa(1), "goal": "a\0b"}))
        self.refused("no field 'goal': is this a file of the data set of --task?", "piqa", '{"text": "a"}')
        (self.folder / "blank.jsonl").write_text("\n\n")
        blank = self.eval("--task", "piqa", self.folder / "blank.jsonl", status=1)
        require("blank.jsonl has no questions: it is empty, or has blank lines only" in blank.stderr, blank.stderr)
        self.refused("not UTF-8", "piqa", b'{"goal": "\xff"}')
        self.refused("choice 0: no tokens are left for the context", "lambada", '{"text": "  b"}')
        shots = self.eval("--task", "piqa", "--shots", 16, self.folder / "piqa.jsonl", status=1)
        require("piqa.jsonl:1: there are 15 examples for it, and --shots is 16" in shots.stderr, shots.stderr)
        for words, options in (("--task needs one file", ("--task", "piqa", "x", "y")), ("--shots and --shots-file are for questions", ("--shots", 1, "x.jsonl")),
                               ("--shots-file needs --shots", ("--task", "piqa", "--shots-file", "x", "y")),
                               ("leave out --count-field", ("--task", "piqa", "--count-field", "x", "y"))):
            require(words in self.eval(*options, status=2).stderr, f"{options} is not refused by '{words}'")


def main():
    build, mpirun = pathlib.Path(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        check = Check(build, mpirun, pathlib.Path(folder))
        check.tasks()
        check.greedy()
        check.tokenizer()
        check.documents()
        check.shots()
        check.refusals()


if __name__ == "__main__":
    main()
