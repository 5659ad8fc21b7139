#!/usr/bin/env python3
"""A report of hc_analyze in headless Chromium, at the width of a desk and of a phone: all pictures are there, tables sort, nothing is wider than the
page or its own frame, the console is silent.

  tests/check_report.py BUILD

The report is of small models that are trained for some steps. Exit status 77 where there is no Chromium.
"""
import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import small_runs

RUNS = [("rc-1", "rc", 1, 1), ("identity-1", "identity", 2, 1), ("mhc-1", "mhc", 2, 1), ("shc-1", "shc", 3, 1), ("shc-2", "shc", 3, 2)]
PLOTS = 11  # of runs with evaluations, statistics and measured matrices, but for those of hc_bench
WIDTHS = {"desk": 1200, "phone": 390}
NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]

# Runs in the page when it has loaded; leaves what it saw where --dump-dom shows it.
PROBE = """<script>addEventListener('load', () => {
  const seen = {wide: document.documentElement.scrollWidth - document.documentElement.clientWidth, broken: 0, cut: [], tables: [], outside: 0, figures: document.images.length};
  for (const image of document.images) seen.broken += image.naturalWidth === 0;
  for (const link of document.querySelectorAll('link[href],img[src],script[src]')) seen.outside += !/^data:/.test(link.getAttribute('href') ?? link.getAttribute('src'));
  for (const box of document.querySelectorAll('figure, .table')) if (box.scrollWidth > box.clientWidth) seen.cut.push(`${box.textContent.trim().slice(0, 60)}: ${box.scrollWidth} > ${box.clientWidth}`);
  for (const table of document.querySelectorAll('table')) {
    const column = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
    const button = table.tHead.querySelector('button'), before = column();
    button.click(); const up = column(); button.click(); const down = column();
    seen.tables.push({up, down, before});
  }
  document.body.dataset.seen = JSON.stringify(seen);
});</script></body>"""


def run(program, page, width, *extra):
    with tempfile.TemporaryDirectory() as profile:
        return subprocess.run([program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
                               "--enable-logging=stderr", f"--window-size={width},1000", *extra, page.as_uri()], capture_output=True, text=True, timeout=120)


def check(program, report, name, width, folder):
    page = folder / "probe.html"
    page.write_text(report.read_text().replace("</body>", PROBE))
    result = run(program, page, width, "--dump-dom", "--virtual-time-budget=3000")
    found = re.search(r'data-seen="([^"]*)"', result.stdout)
    if not found:
        sys.exit(f"{name}: the page did not load: {result.stderr[-2000:]}")
    seen = json.loads(html.unescape(found.group(1)))
    words = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    wrong = []
    if seen["wide"] > 0:
        wrong.append(f"{seen['wide']} pixels wider than the screen")
    if seen["cut"]:
        wrong.append("wider than their frames: " + "; ".join(" ".join(box.split()) for box in seen["cut"]))
    if seen["broken"] or seen["outside"]:
        wrong.append(f"{seen['broken']} broken pictures, {seen['outside']} things outside of the page")
    if seen["figures"] < PLOTS:
        wrong.append(f"{seen['figures']} plots, expected {PLOTS}")
    if words:
        wrong.append("the console says " + "; ".join(words))
    for table in seen["tables"]:
        if table["up"] != sorted(table["before"]) or table["down"] != sorted(table["before"], reverse=True):
            wrong.append(f"a table does not sort: {table}")
    print(f"{name}, {width} pixels: {len(seen['tables'])} tables, {'; '.join(wrong) if wrong else 'all right'}")
    return not wrong and bool(seen["tables"])


def make_report(folder, build):
    small_runs.make_text(folder, build)
    runs = [small_runs.train(folder, build, "pocl", name, residual, streams, "--seed", str(seed), "--statistics-interval", "5", "--eval-interval", "10",
                             "--eval-iters", "2") for name, residual, streams, seed in RUNS]
    subprocess.run([build / "hc_analyze", "--out", folder / "out", "--data-dir", folder / "data", "--samples", "4", "--device", "pocl", *runs], check=True,
                   stderr=subprocess.DEVNULL)
    return folder / "out/report.html"


def main():
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if not program:
        print("there is no Chromium; Debian has it in the package of that name")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        report = make_report(folder, pathlib.Path(sys.argv[1]))
        good = [check(program, report, name, width, folder) for name, width in WIDTHS.items()]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
