"""Many processes at once: from a cold cache, all with the same results; in one run directory, where one gets it and the others are refused.

    python3 tests/faults/crowd.py [--processes 8]
"""
import argparse
import shutil
import subprocess
import sys

import sweep
from scenarios import SCENARIOS, train_arguments, trained


def all_at_once(tools, folder, commands):
    """(status, stdout, stderr) of each."""
    processes = [subprocess.Popen(command, env=tools.environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  errors="replace") for command in commands]
    return [(process.wait(), *outputs) for process, outputs in [(process, process.communicate()) for process in processes]]


def scenario(name):
    return next(scenario for scenario in SCENARIOS if scenario.name == name)


def cold(place, count):
    """Programs that compile the same kernels and write them into the same cache."""
    template = place.template(scenario("sample"))
    tools = place.tools(template)
    tools.environment["POCL_CACHE_DIR"] = str(template / "pocl")
    shutil.rmtree(template / "cache", ignore_errors=True)
    (template / "pocl").mkdir()
    outcomes = all_at_once(tools, template, [scenario("sample").command(tools, template)] * count)
    warm = all_at_once(tools, template, [scenario("sample").command(tools, template)])
    texts = {(status, stdout) for status, stdout, _ in outcomes + warm}
    left = [path.name for path in (template / "cache").rglob(".tmp-*")]
    if len(texts) != 1 or outcomes[0][0] != 0 or left:
        sys.exit(f"{count} processes from a cold cache: {[(status, stderr[-200:]) for status, _, stderr in outcomes]}; left: {left}")
    print(f"{count} processes from a cold cache: the same text {count + 1} times")


def one_folder(place, count):
    template = place.template(scenario("train"))
    _, complete, _ = place.count(scenario("train"), template)
    tools = place.tools(template)
    outcomes = all_at_once(tools, template, [tools.program("hc_train", *train_arguments())] * count)
    statuses = sorted(status for status, _, _ in outcomes)
    messages = [stderr for status, _, stderr in outcomes if status != 0]
    if statuses[0] != 0 or statuses.count(0) != 1 or not all("hc_train: " in message for message in messages) or trained(template) != complete:
        sys.exit(f"{count} runs in one folder: {[(status, stderr[-200:]) for status, _, stderr in outcomes]}")
    print(f"{count} runs in one folder: one of them trained, with the bits of one alone; {count - 1} were refused: {messages[0].strip().splitlines()[-1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="folder of the programs")
    parser.add_argument("--processes", type=int, default=8)
    options = parser.parse_args()
    place = sweep.Sweep(argparse.Namespace(build=options.build))
    try:
        cold(place, options.processes)
        one_folder(place, options.processes)
    finally:
        shutil.rmtree(place.home, ignore_errors=True)


if __name__ == "__main__":
    main()
