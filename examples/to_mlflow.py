#!/usr/bin/env python3
"""Sends a run's settings and metrics to MLflow, while it trains or afterwards.

  examples/to_mlflow.py out/demo [SECONDS]

SECONDS without a new line end it (600; 0: what is there now). Started again, also after the run was resumed, it adds what is missing.
MLFLOW_TRACKING_URI in the environment says where to; without it MLflow keeps them in this folder. Needs hctrain and mlflow (pip install
hctrain mlflow).
"""
import sys

try:
    import hctrain
    import mlflow
except ImportError as error:
    sys.exit(f"to_mlflow.py: {error}; 'pip install hctrain mlflow' installs what is needed")
if len(sys.argv) not in (2, 3):
    sys.exit(__doc__)

try:
    run = hctrain.read_run(sys.argv[1])
except hctrain.Error as error:
    sys.exit(f"to_mlflow.py: {error}")
mlflow.set_experiment("hctrain")
known = mlflow.search_runs(filter_string=f"tags.hctrain_id = '{run.id}'", output_format="list")
with mlflow.start_run(run_id=known[0].info.run_id) if known else mlflow.start_run(run_name=run.folder.name, tags={"hctrain_id": run.id}) as logged:
    if not known:
        mlflow.log_params({name: hctrain.printable(value) for name, value in run.settings.items()})
    histories = (mlflow.MlflowClient().get_metric_history(logged.info.run_id, name) for name in ("loss", "val_loss"))
    step, evaluation = (max((metric.step for metric in history), default=-1) for history in histories)  # which were sent before
    for record in run.follow(step + 1, *map(float, sys.argv[2:3])):
        if not record.is_evaluation or record.iteration > evaluation:
            mlflow.log_metrics(record.metrics, step=record.iteration)
