#!/usr/bin/env python3
"""bench/gpu_report.py on figures that are made up: what it makes of the clock and of the roofline, side by side.

  check_gpu_report.py bench/gpu_report.py
"""
import json
import pathlib
import subprocess
import sys
import tempfile


def report(folder, files):
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    subprocess.run([sys.executable, sys.argv[1], folder, folder / "page.md"], check=True)
    return (folder / "page.md").read_text()


def expect(page, line):
    if line not in page:
        sys.exit(f"there is no\n{line}\nin\n{page}")


def kernel(name, launches, seconds):
    return {"name": name, "launches": launches, "seconds": seconds}


def main():
    files = {"checks.txt": "golden\tpassed\t7\ttest_golden gpu\n", "devices.txt": "0: some GPU\n"}
    # four steps of three launches of a product, one of them with another number of groups
    profile = {"profiled_steps": 4, "seconds": {"step": {"median": 0.0125}}, "kernels": [
        {"name": "gemm_nn 1x2x3", "calls": 12, "seconds": 0.036}, {"name": "adamw", "calls": 4, "seconds": 0.004},
        {"name": "unforeseen", "calls": 8, "seconds": 0.008}]}
    roofline = {"title": "some GPU", "kernels": [kernel("gemm_nn 1x2x3", 2, 0.004), kernel("gemm_nn 1x2x3", 1, 0.002),
                                               kernel("adamw", 1, 0.002), kernel("never", 5, 0.0005), kernel("finish", 0, 0.0)]}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        page = report(folder, files)
        expect(page, "| golden | passed | 7 | `test_golden gpu` |")
        expect(page, "Nothing to compare: there is no data sheet of this device")
        page = report(folder, {"profile-shc.json": profile, "roofline-shc.json": roofline})
        expect(page, "shc in bf16, a step with one micro-step, of which the clock says 12.5 ms and the data sheet of some GPU")
        expect(page, "| `gemm_nn 1x2x3` | 3 | 3 | 9.000 | 6.000 | 1.50 |\n"
                     "| `unforeseen` | 2 | 0 | 2.000 | 0.000 |  |\n"
                     "| `adamw` | 1 | 1 | 1.000 | 2.000 | 0.50 |\n"
                     "| `never` | 0 | 5 | 0.000 | 0.500 |  |\n"
                     "| in all |  |  | 12.000 | 8.500 | 1.41 |\n")


if __name__ == "__main__":
    main()
