"""Prints the figures of sweeps, as they stand in sweep.py's reports, as a table in Markdown: the last report of a scenario counts."""
import json
import sys
from pathlib import Path

COLUMNS = ("failed", "passed over", "interrupted", "not reached", "crash", "hang")


def main():
    latest = {}
    for path in sys.argv[1:]:
        latest.update({result["scenario"]: result for result in json.loads(Path(path).read_text())})
    print("| command | calls | places | faults | tried | " + " | ".join(COLUMNS) + " | wrong |")
    print("| --- " + "| ---: " * (5 + len(COLUMNS)) + "|")
    for name, result in latest.items():
        print(f"| {name} | {result['calls']} | {result['places']} | {result['faults']} | {result['tried']} | "
              + " | ".join(str(result["outcomes"].get(column, 0)) for column in COLUMNS) + f" | {len(result['wrong'])} |")


if __name__ == "__main__":
    main()
