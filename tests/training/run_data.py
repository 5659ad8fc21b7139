#!/usr/bin/env python3
"""Training on completions alone and on mixtures: prompts are no targets, sequences have whole examples, and the loss is the mean over all
targets; folders have their shares, and the validation loss is the mean of theirs.

  run_data.py BUILD [MPIRUN...]
"""
import json
import os
import random
import subprocess
import sys
import tempfile

import numpy

BUILD, MPIRUN = sys.argv[1], sys.argv[2:]
PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "python")
sys.path.insert(0, PYTHON)
from hctrain.checkpoints import Tensors, write_tensors  # noqa: E402

CONTEXT = 32
MODEL = ["--device", "pocl", "--residual", "rc", "--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--block-size", str(CONTEXT), "--dtype", "fp32",
         "--eval-iters", "3", "--warmup-iters", "2", "--train-batches", "documents"]


def call(*command, fails=None):
    done = subprocess.run([str(word) for word in command], capture_output=True)
    said = done.stderr.decode(errors="replace")
    if fails is None and done.returncode != 0:
        sys.exit("%s: status %d\n%s" % (" ".join(map(str, command)), done.returncode, said))
    if fails is not None and (done.returncode not in (1, 2) or fails not in said):
        sys.exit("%s: status %d, '%s' is not in:\n%s" % (" ".join(map(str, command)), done.returncode, fails, said))
    return said


def program(name):
    return os.path.join(BUILD, name)


def expect(condition, what):
    if not condition:
        sys.exit("not so: " + what)


def write_examples(path):
    """Prompts and completions of 0 to 90 characters, all different."""
    chosen, examples = random.Random(1), []
    for i in range(90):
        words = ["".join(chosen.choice("abcdé ") for _ in range(chosen.randrange(most))) for most in (20, 25 if i % 9 else 90)]
        examples.append(("%d?" % i + words[0] if i % 10 else "", "%d!" % i + words[1]))
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"prompt": prompt, "completion": completion}) + "\n" for prompt, completion in examples)
    return examples


def read_split(folder, split):
    """Tokens, and of each document its length and how many tokens are a prompt."""
    tokens = numpy.fromfile(os.path.join(folder, split + ".bin"), "<u2").astype(numpy.int32)
    return tokens, numpy.fromfile(os.path.join(folder, split + ".documents"), "<u4").reshape(-1, 2).astype(int)


def check_prepared(folder, examples):
    """Every example is there, and its prompt ends where the file says."""
    left = {(prompt.encode(), completion.encode() + b"\n\n") for prompt, completion in examples}
    for split in ("train", "val"):
        tokens, documents = read_split(folder, split)
        text = tokens.astype(numpy.uint8).tobytes()
        for length, prompt in documents:
            found = (text[:prompt], text[prompt:length])
            expect(found in left, "%r is an example of %s" % (found, split))
            left.remove(found)
            text = text[length:]
        expect(not text, "the documents are all of %s.bin" % split)
    expect(not left, "all examples are in train.bin or val.bin")


def pack(folder):
    """x and y [rows, CONTEXT] of whole examples, plainly: a row is closed before the example that does not fit."""
    tokens, documents = read_split(folder, "train")
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
        x[i, : len(row)] = tokens[row]
        for k, place in enumerate(row):
            inside = k + 1 < len(row) or (place + 1 < len(tokens) and owner[place + 1] == owner[place])
            if inside and not is_prompt[place + 1]:
                y[i, k] = tokens[place + 1]
    return x, y


def steps(folder):
    """(loss, gradient norm) by iteration, and validation losses."""
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return ({line["iter"]: (line["loss"], line["grad_norm"]) for line in lines if "loss" in line},
            {line["iter"]: (line["val_loss"], line["train_loss"]) for line in lines if "val_loss" in line})


def train(data, out, *options, ranks=None):
    return call(*([*MPIRUN, "-np", ranks] if ranks else []), program("hc_train"), *MODEL, "--data-dir", data, "--out-dir", out, *options)


def check_loss(data, path):
    """All sequences in one step: the loss is the mean over all targets, whatever the micro-batches."""
    x, y = pack(data)
    said = train(data, path("start"), "--batch-size", 1, "--gradient-accumulation-steps", len(x), "--max-iters", 1, "--learning-rate", "1e-12", "--min-lr", 0)
    expect(" of %d sequences\n         1.0 iterations read each document once" % len(x) in said, "%d sequences are filled: %s" % (len(x), said))
    write_tensors(path("batch"), {"x": x, "y": y})
    call(program("hc_probe"), "--checkpoint", path("start/ckpt-1"), "--batch", path("batch"), "--out", path("probe"), "--no-grad", "--device", "pocl")
    expected, found = float(Tensors(path("probe"))["loss"]), steps(path("start"))[0][0][0]
    expect(abs(expected - found) < 1e-5 * expected, "the loss %.7f is that of the packed rows, %.7f" % (found, expected))


def close(first, second, relative):
    return first.keys() == second.keys() and all(abs(a - b) <= relative * abs(a) for i in first for a, b in zip(first[i], second[i]))


def check_runs(data, path):
    common = ["--batch-size", 2, "--gradient-accumulation-steps", 4, "--lr-decay-iters", 12, "--eval-interval", 6, "--checkpoint-interval", 6]
    train(data, path("once"), *common, "--max-iters", 12)
    train(data, path("twice"), *common, "--max-iters", 6)
    train(data, path("twice"), "--max-iters", 12, "--init-from", "resume")
    expect(steps(path("once")) == steps(path("twice")), "a resumed run has the same bits")
    expect(len(set(steps(path("once"))[0].values())) == 12, "steps differ")
    if MPIRUN:
        train(data, path("ranks"), *common, "--max-iters", 12, ranks=2)
        for alone, together in zip(steps(path("once")), steps(path("ranks"))):
            expect(close(alone, together, 1e-5), "two ranks train as one does")
    train(data, path("random"), *common, "--max-iters", 2, "--train-batches", "random", "--eval-batches", "sampled")


def check_evaluations(data, path):
    """hc_eval computes the losses of the run, and counts targets only."""
    _, documents = read_split(data, "val")
    targets = int(sum(length - prompt for length, prompt in documents)) - (documents[0][1] == 0)
    last = steps(path("once"))[1][12]
    for i, options in enumerate((["--split", "val"], ["--split", "train", "--eval-iters", 3, "--batch-size", 2])):
        call(program("hc_eval"), "--checkpoint", path("once/ckpt-12"), "--data", data, "--device", "pocl", "--json", path("eval.json"), *options)
        with open(path("eval.json"), encoding="utf-8") as file:
            found = json.load(file)
        expect(abs(found["loss"] - last[i]) < 1e-5 * last[i], "hc_eval has the loss of the run, %g: %s" % (last[i], found))
        expect(found["tokens"] == targets if i == 0 else 0 < found["tokens"] < 3 * 2 * CONTEXT, "%d targets are counted: %s" % (targets, found))


def write_text(path, words, data):
    chosen = random.Random(len(words))
    with open(path + ".txt", "w", encoding="utf-8") as file:
        file.writelines(" ".join(chosen.choices(words, k=8)) + "\n" for _ in range(300))
    call(program("hc_prepare"), "--out", data, path + ".txt")


def evaluations(folder):
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
        return [line for line in map(json.loads, file) if "val_loss" in line]


def check_mixtures(answers, path):
    first, second, odd = path("first"), path("second"), path("a:1,b")
    write_text(path("one"), ["red", "green", "blue"], first)
    write_text(path("two"), ["7", "12", "345", "9"], second)
    write_text(path("three"), ["north", "south"], odd)
    both = "%s:7,%s:3" % (first, second)
    common = ["--train-batches", "random", "--batch-size", 2, "--gradient-accumulation-steps", 4, "--lr-decay-iters", 12, "--eval-interval", 6,
              "--checkpoint-interval", 6]
    said = train(both, path("mixed"), *common, "--max-iters", 12)
    expect("70 % of the sequences from " + first in said and "30 % of the sequences from " + second in said, "shares are printed: " + said)
    for line in evaluations(path("mixed")):
        expect(abs(line["val_loss"] - 0.7 * line["val_loss_1"] - 0.3 * line["val_loss_2"]) < 1e-6, "the mean is weighted: %s" % line)
    train(both, path("parts"), *common, "--max-iters", 6)
    train("%s:3.5,%s:1.5" % (first, second), path("parts"), *common, "--max-iters", 12, "--init-from", "resume")
    expect(steps(path("mixed")) == steps(path("parts")), "a resumed run of a mixture has the same bits")
    call(program("hc_train"), "--out-dir", path("parts"), "--init-from", "resume", "--device", "pocl", "--data-dir", "%s:1,%s:1" % (first, second), fails="has other files or weights than")
    if MPIRUN:
        train(both, path("mixed-ranks"), *common, "--max-iters", 12, ranks=2)
        for alone, together in zip(steps(path("mixed")), steps(path("mixed-ranks"))):
            expect(close(alone, together, 1e-5), "two ranks train on a mixture as one does")
    train(first, path("alone"), *common, "--max-iters", 2)
    train(first + ":5", path("whole"), *common, "--max-iters", 2)
    expect(steps(path("alone")) == steps(path("whole")), "a single folder with a weight is the folder")
    train(odd, path("odd"), *common, "--max-iters", 1)
    train("%s:1,%s:1" % (answers, answers), path("answers"), "--max-iters", 2)
    command = [program("hc_train"), *MODEL, *common, "--out-dir", path("bad-mixture"), "--max-iters", 1, "--data-dir"]
    for bad in ("0", "-1", "x", "", "1e999", "nan", "0x1"):
        call(*command, "%s:1,%s:%s" % (first, second, bad), fails="no weight above 0")
    call(*command, "%s:1,%s" % (first, second), fails="no weight above 0")
    call(*command, "%s:1,%s:1" % (first, path("nowhere")), fails="nowhere/train.bin does not exist")
    call(*command, both, "--train-batches", "sequential", fails="data_dir is a mixture")
    meta = os.path.join(second, "meta.json")
    with open(meta, encoding="utf-8") as file:
        changed = json.load(file) | {"vocab_size": 300}
    with open(meta, "w", encoding="utf-8") as file:
        json.dump(changed, file)
    call(*command, both, fails="a mixture has one vocabulary")


def check_empty_steps(path):
    """A step whose sequences are prompts has no loss, neither in the log nor in means. Sequences that all are prompts are refused."""
    with open(path("long.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"prompt": "p" * (2 * CONTEXT + 8), "completion": "answer %d" % i}) + "\n" for i in range(6))
    call(program("hc_prepare"), "--out", path("long"), "--prompt-field", "prompt", "--field", "completion", "--val-fraction", 0, path("long.jsonl"))
    options = ["--batch-size", 1, "--max-iters", 9, "--eval-iters", 0]
    said = train(path("long"), path("empty"), *options)
    losses = [loss for loss, _ in steps(path("empty"))[0].values()]
    expect(0 < losses.count(None) < 9 and min(loss for loss in losses if loss is not None) > 0.5, "steps without targets have no loss: %s" % losses)
    expect("sequences consist of prompts, from which" in said, "they are counted: " + said)
    summary = call(sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import hctrain; print(hctrain.read_run(sys.argv[2]).summary.train_loss, "
                   "file=sys.stderr)", PYTHON, path("empty"))
    present = [loss for loss in losses if loss is not None]
    expect(abs(float(summary) - sum(present) / len(present)) < 1e-6, "the mean is of the others: " + summary)
    with open(path("prompts.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"prompt": "p" * 200, "completion": "a"}) + "\n" for _ in range(3))
    call(program("hc_prepare"), "--out", path("prompts"), "--prompt-field", "prompt", "--field", "completion", "--val-fraction", 0, path("prompts.jsonl"))
    files = {name: os.path.join(path("prompts"), "train." + name) for name in ("bin", "documents")}
    tokens, documents = numpy.fromfile(files["bin"], "<u2"), numpy.fromfile(files["documents"], "<u4").reshape(-1, 2)
    documents[:, 1] = documents[:, 0]
    documents.tofile(files["documents"])
    tokens.tofile(files["bin"])
    call(program("hc_train"), *MODEL, *options, "--data-dir", path("prompts"), "--out-dir", path("no-targets"), fails="sequences consist of prompts")


def check_other_step_sizes(path):
    """A resumed run whose steps have another size says so."""
    options = ["--learning-rate", 0, "--min-lr", 0, "--lr-schedule", "constant", "--train-batches", "sequential", "--eval-iters", 0]
    train(path("long"), path("ordered"), *options, "--batch-size", 1, "--max-iters", 2)
    said = train(path("long"), path("ordered"), *options, "--init-from", "resume", "--batch-size", 1, "--max-iters", 3)
    expect("warning" not in said, "steps have the same size: " + said)
    said = train(path("long"), path("ordered"), *options, "--init-from", "resume", "--batch-size", 2, "--max-iters", 4)
    expect("another number of tokens before" in said, "steps have another size: " + said)


def check_refusals(data, examples, path):
    call(program("hc_prepare"), "--out", path("none"), "--prompt-field", "question", "--field", "completion", examples, fails="examples.jsonl:1: no field 'question'; there is 'prompt', 'completion' (choose with --prompt-field)")
    call(program("hc_prepare"), "--out", path("none"), "--prompt-field", "prompt", "--documents", "chunks", examples, fails="--prompt-field is for JSON lines")
    call(program("hc_prepare"), "--out", path("plain"), "--field", "completion", examples)
    command = [program("hc_train"), *MODEL, "--out-dir", path("bad"), "--max-iters", 1, "--data-dir"]
    call(*command, path("plain"), fails="no lengths of documents")
    documents = os.path.join(data, "train.documents")
    with open(documents, "rb") as file:
        good = file.read()
    for bad in (good[:-1], good[:-8], good + good[:8], b"\0" * 8 + good[8:], good[:4] + b"\xff\xff\xff\xff" + good[8:], b""):
        with open(documents, "wb") as file:
            file.write(bad)
        call(*command, data, fails="does not describe the token file beside it" if bad else "train.documents")
    os.remove(documents)
    call(*command, data, fails="train.documents")


def main():
    with tempfile.TemporaryDirectory(prefix="hctrain-test-") as folder:
        def path(name):
            return os.path.join(folder, name)

        examples = write_examples(path("examples.jsonl"))
        data = path("data")
        call(program("hc_prepare"), "--out", data, "--prompt-field", "prompt", "--field", "completion", "--val-fraction", 0.2, path("examples.jsonl"))
        check_prepared(data, examples)
        check_loss(data, path)
        check_runs(data, path)
        check_evaluations(data, path)
        check_empty_steps(path)
        check_other_step_sizes(path)
        check_mixtures(data, path)
        check_refusals(data, path("examples.jsonl"), path)


if __name__ == "__main__":
    main()
