#!/usr/bin/env python3
"""Sends a run's metrics to Weights & Biases, while it trains or afterwards.

  examples/to_wandb.py out/demo [SECONDS]

SECONDS without a new line end it (600; 0: what is there now). Needs wandb (pip install wandb).
"""
import sys

import wandb
from follow import follow, settings

folder = sys.argv[1]
with wandb.init(project="hctrain", name=folder, config=settings(folder)) as run:
    for iteration, metrics in follow(folder, *map(float, sys.argv[2:3])):
        run.log(metrics, step=iteration)
