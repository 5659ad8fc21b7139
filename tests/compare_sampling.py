#!/usr/bin/env python3
"""The tokens that hc_sample chooses among, and those that transformers leaves.

  tests/compare_sampling.py [--build build]

Needs torch and transformers (pip install torch transformers) and no network. For several vocabularies and settings, whose processors are those
that generate() makes, it prints how many tokens are left, by how much probabilities differ at most, and in how many of the rows a token is left
by one alone: transformers adds up probabilities in float32 and hctrain in float64, so a token at the limit of top_p or min_p may go either way.
The exit status says whether probabilities differ by at most 1e-5 in the other rows, and in no row more than one token is left by one alone.
"""
import argparse
import os
import sys

import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "sampling"))
from filter_tokens import SETTINGS, VOCABULARIES, cases, program_probabilities

MOST = 1e-5


def processors_of(settings):
    temperature, top_k, top_p, min_p, penalty = settings
    config = GenerationConfig(do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p or None, repetition_penalty=penalty)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_layer=1, n_head=1, n_embd=8, n_positions=8))
    return model._get_logits_processor(config, input_ids_seq_length=1, device="cpu")


def compare(program, settings, vocabulary):
    """The mean number of tokens that are left, the largest difference, rows with a token at a limit; None if more tokens differ."""
    logits, present = cases(vocabulary)
    found = torch.tensor(program_probabilities(program, logits, present, settings))
    processors, off, at_limit, left = processors_of(settings), 0.0, 0, 0
    for row in range(len(logits)):
        ids = torch.tensor(present[row]).nonzero().T
        expected = processors(ids, torch.tensor(logits[row : row + 1]))[0].double().softmax(-1)
        differ = int(((found[row] > 0) != (expected > 0)).sum())
        if differ > 1:
            return None
        at_limit += differ
        left += int((expected > 0).sum())
        if not differ:
            off = max(off, (found[row] - expected).abs().max().item())
    return left / len(logits), off, at_limit


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build")
    program, failed = os.path.join(parser.parse_args().build, "tests", "filter_tokens"), 0
    print("%-44s %7s %10s %9s %9s" % ("temperature, top_k, top_p, min_p, penalty", "tokens", "left", "off by", "at limit"))
    for vocabulary in VOCABULARIES:
        for settings in SETTINGS:
            result = compare(program, settings, vocabulary)
            held = result is not None and result[1] <= MOST
            failed += not held
            print("%-44s %7d %s" % (settings, vocabulary, ("%10.1f %9.1e %9d" % result if result else "") + ("" if held else " DIFF")))
    print("%d of %d differ" % (failed, len(SETTINGS) * len(VOCABULARIES)) if failed else "all agree")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
