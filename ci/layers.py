#!/usr/bin/env python3
"""Checks the #includes of all sources against the table of modules in ci/modules.txt, and draws them.

    ci/layers.py               reports files in no module, #includes that the table does not allow, and circular #includes
    ci/layers.py --draw FILE   also draws the modules and their #includes as SVG, for docs/architecture.md

A module is a folder. Its files may include one another and files of the modules that its line names, which stand above it in the
table. NAME.c and NAME.h count as one file in the search for circular #includes.
"""
import argparse
import html
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "ci" / "modules.txt"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class Module:
    def __init__(self, name, purpose):
        self.name, self.purpose = name, purpose
        self.may = set()
        self.uses = {}  # module -> number of #includes


def read_table(problems):
    """Returns the modules by name, in the table's order. A line is "<module> | <modules that it may include> | <purpose>"."""
    modules = {}
    for number, line in enumerate(TABLE.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 3:
            problems.append(f"{TABLE.name}:{number}: not of the form module | modules | purpose")
            continue
        name, may, purpose = parts
        module = modules[name] = Module(name, purpose)
        for word in may.split():
            named = [other for other in modules if other == word or (word.endswith("*") and other.startswith(word[:-1]))]
            if not named:
                problems.append(f"{TABLE.name}:{number}: {name} names {word}, which does not stand above it")
            module.may.update(named)
        module.may.add(name)
    return modules


def module_of(path, modules):
    """The module of a file: the line of its folder, or else the line "<top folder>/*"."""
    folder = pathlib.PurePosixPath(path).parent
    return modules.get(str(folder)) or modules.get(f"{folder.parent}/*")


def read_sources(modules, problems):
    """Returns, for every source file, the files of this repository that it includes."""
    includes = {}
    for folder in ("runtime", "src", "tests"):
        for path in sorted((ROOT / folder).rglob("*.[ch]")):
            name = path.relative_to(ROOT).as_posix()
            includes[name] = INCLUDE.findall(path.read_text())
            if module_of(name, modules) is None:
                problems.append(f"{name} is in no module of {TABLE.name}")
    return includes


def check_includes(includes, modules, problems):
    for name, included in includes.items():
        module = module_of(name, modules)
        for other in included:
            target = module_of(other, modules)
            if other not in includes:
                problems.append(f'{name} includes "{other}", which does not exist')
            elif module and target:
                module.uses[target.name] = module.uses.get(target.name, 0) + 1
                if target.name not in module.may:
                    problems.append(f'{name} includes "{other}", but {module.name} may not include {target.name}')


def find_circles(includes, problems):
    """Reports the strongly connected components of the graph of files (Tarjan's algorithm)."""
    stem = lambda name: name.rsplit(".", 1)[0]
    graph = {}
    for name, included in includes.items():
        arrows = graph.setdefault(stem(name), set())
        arrows.update(stem(other) for other in included if stem(other) != stem(name))
    order, low, stack, on_stack = {}, {}, [], set()

    def visit(node):
        order[node] = low[node] = len(order)
        stack.append(node)
        on_stack.add(node)
        for other in sorted(graph.get(node, ())):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on_stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            circle = []
            while not circle or circle[-1] != node:
                circle.append(stack.pop())
                on_stack.discard(circle[-1])
            if len(circle) > 1:
                problems.append("these files include one another in a circle: " + ", ".join(sorted(circle)))

    sys.setrecursionlimit(10000)
    for node in sorted(graph):
        if node not in order:
            visit(node)


# ---- drawing

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 168, 46, 26, 54, 20


def levels_of(modules):
    """Lists of modules, the highest level first: a module stands one level above the highest that it includes. Tests are left out."""
    level_of = {}
    shown = [module for module in modules.values() if not module.name.startswith("tests")]
    for module in shown:
        level_of[module.name] = max((level_of[other] + 1 for other in module.uses if other != module.name and other in level_of),
                                    default=0)
    top = max(level_of.values())
    return [[module for module in shown if level_of[module.name] == level] for level in range(top, -1, -1)]


def draw(modules, path):
    levels = levels_of(modules)
    width = 2 * MARGIN + max(len(row) for row in levels) * (BOX_WIDTH + GAP_X) - GAP_X
    height = 2 * MARGIN + len(levels) * (BOX_HEIGHT + GAP_Y) - GAP_Y
    place, boxes, arrows = {}, [], []
    for level, row in enumerate(levels):
        left = (width - len(row) * (BOX_WIDTH + GAP_X) + GAP_X) / 2
        for index, module in enumerate(row):
            x, y = left + index * (BOX_WIDTH + GAP_X), MARGIN + level * (BOX_HEIGHT + GAP_Y)
            place[module.name] = (x + BOX_WIDTH / 2, y)
            colour = "#e8f0fe" if module.name.startswith("src") else "#eef5e9"
            boxes.append(
                f'<g><title>{html.escape(module.purpose)}</title><rect x="{x:.0f}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
                f'rx="6" fill="{colour}" stroke="#5f6b7a"/><text x="{x + BOX_WIDTH / 2:.0f}" y="{y + 28}" '
                f'text-anchor="middle">{module.name}</text></g>')
    for module in modules.values():
        for other, count in sorted(module.uses.items()):
            if module.name in place and other in place and other != module.name:
                (x1, y1), (x2, y2) = place[module.name], place[other]
                y1 += BOX_HEIGHT
                arrows.append(f'<path d="M{x1:.0f},{y1} C{x1:.0f},{y1 + GAP_Y * 0.6:.0f} {x2:.0f},{y2 - GAP_Y * 0.6:.0f} '
                              f'{x2:.0f},{y2 - 2}" stroke-width="{min(0.6 + count / 12, 3):.1f}"><title>{module.name} to '
                              f'{other}: {count} includes</title></path>')
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-family="sans-serif" font-size="14">\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" markerHeight="5" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#8a97a6"/></marker></defs>\n'
        f'<rect width="{width:.0f}" height="{height}" fill="#ffffff"/>\n'
        '<g fill="none" stroke="#8a97a6" marker-end="url(#tip)">\n' + "\n".join(arrows) + "\n</g>\n" + "\n".join(boxes) +
        "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=pathlib.Path, metavar="FILE", help="draw the modules as SVG as well")
    arguments = parser.parse_args()
    problems = []
    modules = read_table(problems)
    includes = read_sources(modules, problems)
    check_includes(includes, modules, problems)
    find_circles(includes, problems)
    for problem in problems:
        print(problem)
    arrows = sum(len([other for other in module.uses if other != module.name]) for module in modules.values())
    print(f"{len(includes)} files in {len(modules)} modules, {arrows} pairs of modules with #includes, {len(problems)} problems")
    if arguments.draw:
        draw(modules, arguments.draw)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
