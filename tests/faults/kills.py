"""Kills hc_train at random moments, again and again; the run that goes on each time must end with the bits of one that nobody killed.

    python3 tests/faults/kills.py --kills 200 [--busy 2] [--delay 300]
"""
import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sweep
from scenarios import SCENARIOS, train_arguments, trained, trained_again


def start(tools, folder, delay):
    """The run from its beginning, or from its newest checkpoint."""
    going_on = list((folder / "run").glob("ckpt-[0-9]*"))
    begin = ["--init-from", "resume"] if going_on else ["--start-over"]
    environment = {**tools.environment, **({"LD_PRELOAD": str(tools.faults), "HC_FAULT_DELAY": str(delay)} if delay else {})}
    return subprocess.Popen(tools.program("hc_train", *begin, *train_arguments()), env=environment, cwd=folder, stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder of the programs")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--busy", type=int, default=0, help="processes beside it that only compute")
    parser.add_argument("--delay", type=int, default=0, help="calls of the system and of libraries wait at random, at most so many microseconds")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    settings = argparse.Namespace(build=options.build)
    place = sweep.Sweep(settings)
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "train")
    chance = random.Random(options.seed)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
    try:
        template = place.template(scenario)
        _, complete, _ = place.count(scenario, template)
        kills, ended, folder = 0, 0, place.copy(template)
        began = time.monotonic()
        start(place.tools(folder), folder, options.delay).communicate()
        longest = time.monotonic() - began  # of a run that nobody kills
        shutil.rmtree(folder)
        folder = place.copy(template)
        last = False  # whether a run has ended since the last kill
        while kills < options.kills or not last:
            process = start(place.tools(folder), folder, options.delay)
            try:
                _, said = process.communicate(timeout=chance.uniform(0, longest) if kills < options.kills else sweep.PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                if kills >= options.kills:
                    sys.exit(f"after {kills} kills: it hangs")
                kills += 1
                last = False
                continue
            if process.returncode != 0:
                sys.exit(f"after {kills} kills: exit {process.returncode}: {said}")
            result = trained(folder)
            if not trained_again(1)(result, complete):
                sys.exit(f"after {kills} kills: {sweep.differences(complete, result)}")
            ended += 1
            last = True
            shutil.rmtree(folder)
            folder = place.copy(template)
        print(f"{kills} kills, {ended} runs that came to their end, all with the bits of a run without; {time.monotonic() - began:.0f} s")
    finally:
        for process in busy:
            process.kill()
        shutil.rmtree(place.home, ignore_errors=True)


if __name__ == "__main__":
    main()
