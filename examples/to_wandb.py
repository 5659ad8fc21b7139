#!/usr/bin/env python3
"""Sends a run's settings and metrics to Weights & Biases, while it trains or afterwards.

  examples/to_wandb.py out/demo [SECONDS]

SECONDS without a new line end it (600; 0: what is there now). Started again, also after the run was resumed, it adds what is missing. Needs
hctrain and wandb (pip install hctrain wandb).
"""
import sys

import hctrain
import wandb

run = hctrain.read_run(sys.argv[1])
settings = {name: hctrain.printable(value) if isinstance(value, str) else value for name, value in run.settings.items()}
with wandb.init(project="hctrain", name=run.folder.name, id=run.id, resume="allow", config=settings) as logged:
    for record in run.follow(logged.step, *map(float, sys.argv[2:3])):
        logged.log(record.metrics, step=record.iteration)
