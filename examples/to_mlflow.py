#!/usr/bin/env python3
"""Sends a run's metrics to MLflow, while it trains or afterwards.

  examples/to_mlflow.py out/demo [SECONDS]

SECONDS without a new line end it (600; 0: what is there now). MLFLOW_TRACKING_URI in the environment says where to; without it
MLflow keeps them in this folder. Needs mlflow (pip install mlflow).
"""
import sys

import mlflow
from follow import follow, settings

folder = sys.argv[1]
mlflow.set_experiment("hctrain")
with mlflow.start_run(run_name=folder):
    mlflow.log_params(settings(folder))
    for iteration, metrics in follow(folder, *map(float, sys.argv[2:3])):
        mlflow.log_metrics(metrics, step=iteration)
