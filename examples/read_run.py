#!/usr/bin/env python3
"""Metrics and weights of a run in Python.

  examples/read_run.py out/demo

Needs pandas and safetensors (pip install pandas safetensors).
"""
import sys
from pathlib import Path

import numpy
import pandas
from safetensors.numpy import load_file

run = Path(sys.argv[1] if len(sys.argv) > 1 else "out/demo")

# A line of metrics.jsonl is a step, or an evaluation. Both are tables by iteration.
lines = pandas.read_json(run / "metrics.jsonl", lines=True)
steps = lines.dropna(subset="loss").set_index("iter")
evaluations = lines.dropna(subset="val_loss").set_index("iter")[["train_loss", "val_loss"]]
print(evaluations)
print("\nloss of the last 100 steps: %.4f" % steps.loss.tail(100).mean())

# Weights are safetensors: names to arrays. docs/files.md lists the names.
weights = load_file(run / "ckpt-best" / "model.safetensors")
parameters = sum(array.size for array in weights.values())
print("%d arrays, %d parameters, the largest:" % (len(weights), parameters))
for name, array in sorted(weights.items(), key=lambda item: -item[1].size)[:3]:
    print("  %-40s %-14s root of the mean square %.4f" % (name, array.shape, numpy.sqrt(numpy.mean(numpy.square(array)))))
