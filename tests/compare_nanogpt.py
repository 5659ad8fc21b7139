#!/usr/bin/env python3
"""train.bin and val.bin of data/prepare_parquet.sh beside those of nanoGPT's recipe (datasets, tiktoken, numpy): the same bytes.

  tests/compare_nanogpt.py --vocab-file gpt2.tiktoken [--documents 5000] [--fraction 0.005] [--seed 2357]

Makes a small corpus of Parquet files in a temporary folder. Needs datasets, pyarrow, tiktoken and numpy (pip install datasets tiktoken), a
built hc_prepare and zstd, and no network.
"""
import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import datasets
import numpy
import pyarrow
import pyarrow.parquet
from compare_tokenizers import Tiktoken

END_OF_TEXT = 50256
WORDS = ["the", " web", " has", "\n\n", " 1,234", "  ", "äöü", " 日本語", "😀", "it's", " we'll", "\t", "\u3000", "—", '"quoted"', "\\", "\u2028", "\0"]


def make_files(folder, documents):
    """Parquet files of uneven sizes; returns their paths in order."""
    draw = random.Random(1)
    texts = ["".join(draw.choices(WORDS, k=draw.randrange(400))) for _ in range(documents)]
    cuts = [0, documents // 7, documents // 2, documents]
    paths = []
    for number, (first, last) in enumerate(zip(cuts, cuts[1:])):
        paths.append(str(folder / f"part-{number:05}.parquet"))
        table = pyarrow.table({"url": [f"u{i}" for i in range(first, last)], "text": texts[first:last]})
        pyarrow.parquet.write_table(table, paths[-1])
    return paths


def tokens_of(tokenizer, part):
    """The documents' tokens one after the other, with an end after each."""
    ids = [token for text in part["text"] for token in tokenizer.encode(text, False) + [END_OF_TEXT]]
    return numpy.array(ids, dtype="<u2").tobytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab-file", required=True)
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--fraction", type=float, default=0.005)
    parser.add_argument("--seed", type=int, default=2357)
    arguments = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parent.parent
    tokenizer = Tiktoken(arguments.vocab_file)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        paths = make_files(folder, arguments.documents)
        split = datasets.load_dataset("parquet", data_files=paths, split="train", cache_dir=str(folder / "cache")).train_test_split(
            test_size=arguments.fraction, seed=arguments.seed, shuffle=True)
        subprocess.run(["sh", str(root / "data/prepare_parquet.sh"), "--fraction", str(arguments.fraction), "--seed", str(arguments.seed),
                        str(folder / "out"), str(folder)], check=True,
                       env=os.environ | {"HCTRAIN_VOCAB_FILE": arguments.vocab_file, "HCTRAIN_PYTHON": sys.executable})
        same = True
        for ours, theirs in (("train.bin", "train"), ("val.bin", "test")):
            data, expected = (folder / "out" / ours).read_bytes(), tokens_of(tokenizer, split[theirs])
            same = same and data == expected
            print(f"{ours}: {len(data) // 2} tokens, nanoGPT's {len(expected) // 2}, {'the same' if data == expected else 'different'}")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
