"""The lines of a run's metrics.jsonl as they are written, for to_wandb.py and to_mlflow.py."""
import json
import time
from pathlib import Path


def follow(run, timeout_seconds=600.0):
    """Yields each line's iteration and its other fields as a dictionary; ends when nothing has come for `timeout_seconds` (0: at the end of the file)."""
    quiet_since = time.monotonic()
    with open(Path(run) / "metrics.jsonl", encoding="utf-8") as file:
        text = ""
        while True:
            text += file.readline()
            if text.endswith("\n"):
                fields = json.loads(text)
                yield fields.pop("iter"), fields
                text, quiet_since = "", time.monotonic()
            elif time.monotonic() - quiet_since >= timeout_seconds:
                return
            else:
                time.sleep(1)


def settings(run):
    """The run's settings: names to numbers, booleans and texts."""
    lines = (Path(run) / "settings.conf").read_text(encoding="utf-8").splitlines()
    return {name: value(text) for name, text in (line.split(" = ", 1) for line in lines if " = " in line and not line.startswith("#"))}


def value(text):
    """Values are written as JSON has them, but for names of files that are not UTF-8, whose bytes stand as \\xHH."""
    try:
        return json.loads(text)
    except ValueError:
        return text.strip('"')
