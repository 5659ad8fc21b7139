#!/usr/bin/env python3
"""Sends a run's settings and metrics to Weights & Biases, while it trains or afterwards.

  examples/to_wandb.py out/demo [SECONDS]

SECONDS without a new line end it (600; 0: what is there now). Started again, also after the run was resumed, it adds what is missing. Needs
hctrain and wandb (pip install hctrain wandb).
"""
import sys

try:
    import hctrain
    import wandb
except ImportError as error:
    sys.exit(f"to_wandb.py: {error}; 'pip install hctrain wandb' installs what is needed")
if len(sys.argv) not in (2, 3):
    sys.exit(__doc__)

try:
    run = hctrain.read_run(sys.argv[1])
except hctrain.Error as error:
    sys.exit(f"to_wandb.py: {error}")
settings = {name: hctrain.printable(value) if isinstance(value, str) else value for name, value in run.settings.items()}
with wandb.init(project="hctrain", name=run.folder.name, id=run.id, resume="allow", config=settings) as logged:
    for record in run.follow(logged.step, *map(float, sys.argv[2:3])):
        logged.log(record.metrics, step=record.iteration)
