#!/usr/bin/env python3
"""The tokens that hc_sample chooses among, against an implementation in numpy.

  filter_tokens.py PROGRAM     the program is built from filter_tokens.c
"""
import subprocess
import sys

import numpy

# temperature, top_k, top_p, min_p, repetition penalty
SETTINGS = [(1.0, 0, 1.0, 0.0, 1.0), (0.7, 0, 1.0, 0.0, 1.0), (1.0, 5, 1.0, 0.0, 1.0), (1.0, 0, 0.9, 0.0, 1.0), (1.0, 0, 1.0, 0.05, 1.0),
            (1.0, 0, 1.0, 0.0, 1.3), (2.5, 0, 1.0, 0.0, 0.8), (0.8, 40, 0.95, 0.02, 1.1), (1.5, 7, 0.5, 0.3, 1.2), (1.0, 1, 1.0, 0.0, 2.0),
            (0.3, 0, 0.0, 0.0, 1.0), (1.0, 0, 0.999, 0.001, 1.05), (1.0, 0, 1.0, 1.0, 1.0), (1.2, 100000, 0.8, 0.1, 1.0)]
VOCABULARIES = [1, 2, 33, 50257]


def cases(vocabulary, rows=4):
    """Logits float32 [rows, vocabulary] of several spreads, and which tokens are present, a third of them."""
    generator = numpy.random.default_rng(vocabulary)
    logits = generator.normal(0.0, 3.0, (rows, vocabulary)) * generator.uniform(0.2, 2.0, (rows, 1))
    return logits.astype(numpy.float32), generator.random((rows, vocabulary)) < 1 / 3


def program_probabilities(program, logits, present, settings):
    """float64 [rows, vocabulary], 0 for tokens that are left out."""
    rows = b"".join(row.tobytes() + seen.astype(numpy.uint8).tobytes() for row, seen in zip(logits, present))
    done = subprocess.run([program, str(logits.shape[1]), *map(str, settings)], input=rows, stdout=subprocess.PIPE, check=True)
    return numpy.frombuffer(done.stdout, numpy.float64).reshape(logits.shape)


def softmax(scores):
    weights = numpy.exp(scores - scores.max())
    return weights / weights.sum()


def plain_probabilities(logits, present, settings):
    """Of one row: each step removes tokens by the probabilities that the steps before it leave."""
    temperature, top_k, top_p, min_p, penalty = settings
    scores = logits.astype(numpy.float64)
    scores = numpy.where(present, numpy.where(scores < 0, scores * penalty, scores / penalty), scores) / temperature
    order = numpy.argsort(-scores, kind="stable")
    if top_k:
        scores[order[top_k:]] = -numpy.inf
    if top_p < 1:
        probabilities = softmax(scores)[order]
        removed = numpy.cumsum(probabilities) - probabilities >= top_p  # likelier tokens have it already
        removed[0] = False
        scores[order[removed]] = -numpy.inf
    probabilities = softmax(scores)
    scores[probabilities < min_p * probabilities.max()] = -numpy.inf
    return softmax(scores)


def main(program):
    checked = 0
    for vocabulary in VOCABULARIES:
        logits, present = cases(vocabulary)
        for settings in SETTINGS:
            found = program_probabilities(program, logits, present, settings)
            for row in range(len(logits)):
                expected = plain_probabilities(logits[row], present[row], settings)
                if ((found[row] > 0) != (expected > 0)).any() or numpy.abs(found[row] - expected).max() > 1e-6:
                    sys.exit("%d tokens, settings %s, row %d: %d tokens are left instead of %d" %
                             (vocabulary, settings, row, (found[row] > 0).sum(), (expected > 0).sum()))
                checked += 1
    print("%d distributions are those of numpy" % checked)


if __name__ == "__main__":
    main(sys.argv[1])
