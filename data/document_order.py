#!/usr/bin/env python3
"""The order in which Hugging Face's datasets shuffles documents, as a file for hc_prepare --order.

  data/document_order.py DOCUMENTS SEED OUTPUT

Dataset.train_test_split(test_size=f, seed=SEED) takes numpy's permutation of all documents and holds out the first
ceil(f DOCUMENTS) of it, in that order; hc_prepare --order OUTPUT --val-fraction f does the same. Needs numpy.
"""
import sys

import numpy


def main():
    if len(sys.argv) != 4 or not (sys.argv[1] + sys.argv[2]).isdigit():
        sys.exit(__doc__)
    documents, seed, output = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    numpy.random.default_rng(seed).permutation(documents).astype("<i8").tofile(output)


if __name__ == "__main__":
    main()
