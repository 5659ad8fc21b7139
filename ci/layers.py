#!/usr/bin/env python3
"""Holds the #includes of the sources to the table of rooms in ci/rooms.txt, and draws them.

    ci/layers.py               fails on a file in no room, an #include that the table does not allow, and a circle of files
    ci/layers.py --draw FILE   the rooms with their arrows as SVG, for docs/architecture.md

A room is a folder. It may include itself and the rooms that its line names, which must stand above it in the table, so that no
arrow leads upwards. NAME.c and NAME.h count as one file when circles are looked for.
"""
import argparse
import html
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "ci" / "rooms.txt"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class Room:
    def __init__(self, name, purpose, floor):
        self.name, self.purpose, self.floor = name, purpose, floor
        self.may = set()
        self.uses = {}  # room -> number of #includes


def read_table(problems):
    """Rooms by name, in order. A line is "<room> | <rooms that it may include> | <what it is for>"; runtime/* stands for all
    rooms there."""
    rooms = {}
    for number, line in enumerate(TABLE.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 3:
            problems.append(f"{TABLE.name}:{number}: not of the form room | rooms | purpose")
            continue
        name, may, purpose = parts
        room = rooms[name] = Room(name, purpose, len(rooms))
        for word in may.split():
            named = [other for other in rooms if other == word or (word.endswith("*") and other.startswith(word[:-1]))]
            if not named:
                problems.append(f"{TABLE.name}:{number}: {name} names {word}, which does not stand above it")
            room.may.update(named)
        room.may.add(name)
    return rooms


def room_of(path, rooms):
    return rooms.get(str(pathlib.PurePosixPath(path).parent))


def read_sources(rooms, problems):
    """Every source file with what it includes of ours."""
    includes = {}
    for folder in ("runtime", "src", "tests"):
        for path in sorted((ROOT / folder).rglob("*.[ch]")):
            name = path.relative_to(ROOT).as_posix()
            includes[name] = INCLUDE.findall(path.read_text())
            if room_of(name, rooms) is None:
                problems.append(f"{name} is in no room of {TABLE.name}")
    return includes


def check_arrows(includes, rooms, problems):
    for name, included in includes.items():
        room = room_of(name, rooms)
        for other in included:
            target = room_of(other, rooms)
            if other not in includes:
                problems.append(f'{name} includes "{other}", which is no file here')
            elif room and target:
                room.uses[target.name] = room.uses.get(target.name, 0) + 1
                if target.name not in room.may:
                    problems.append(f'{name} includes "{other}", but {room.name} may not include {target.name}')


def find_circles(includes, problems):
    """Strongly connected parts of the graph of files (Tarjan), without recursion limits in the way: the graph is small."""
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
                problems.append("a circle of files: " + ", ".join(sorted(circle)))

    sys.setrecursionlimit(10000)
    for node in sorted(graph):
        if node not in order:
            visit(node)


# ---- the picture

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 168, 46, 26, 54, 20


def floors_of(rooms):
    """Rooms by the longest way down to the ground; tests are left out, they may use everything."""
    floor = {}
    shown = [room for room in rooms.values() if not room.name.startswith("tests")]
    for room in shown:
        floor[room.name] = max((floor[other] + 1 for other in room.uses if other != room.name and other in floor), default=0)
    top = max(floor.values())
    return [[room for room in shown if floor[room.name] == level] for level in range(top, -1, -1)]


def draw(rooms, path):
    floors = floors_of(rooms)
    width = 2 * MARGIN + max(len(row) for row in floors) * (BOX_WIDTH + GAP_X) - GAP_X
    height = 2 * MARGIN + len(floors) * (BOX_HEIGHT + GAP_Y) - GAP_Y
    place, boxes, arrows = {}, [], []
    for level, row in enumerate(floors):
        left = (width - len(row) * (BOX_WIDTH + GAP_X) + GAP_X) / 2
        for index, room in enumerate(row):
            x, y = left + index * (BOX_WIDTH + GAP_X), MARGIN + level * (BOX_HEIGHT + GAP_Y)
            place[room.name] = (x + BOX_WIDTH / 2, y)
            colour = "#e8f0fe" if room.name.startswith("src") else "#eef5e9"
            boxes.append(
                f'<g><title>{html.escape(room.purpose)}</title><rect x="{x:.0f}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
                f'rx="6" fill="{colour}" stroke="#5f6b7a"/><text x="{x + BOX_WIDTH / 2:.0f}" y="{y + 28}" '
                f'text-anchor="middle">{room.name}</text></g>')
    for room in rooms.values():
        for other, count in sorted(room.uses.items()):
            if room.name in place and other in place and other != room.name:
                (x1, y1), (x2, y2) = place[room.name], place[other]
                y1 += BOX_HEIGHT
                arrows.append(f'<path d="M{x1:.0f},{y1} C{x1:.0f},{y1 + GAP_Y * 0.6:.0f} {x2:.0f},{y2 - GAP_Y * 0.6:.0f} '
                              f'{x2:.0f},{y2 - 2}" stroke-width="{min(0.6 + count / 12, 3):.1f}"><title>{room.name} to '
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
    parser.add_argument("--draw", type=pathlib.Path, metavar="FILE", help="write the picture as well")
    arguments = parser.parse_args()
    problems = []
    rooms = read_table(problems)
    includes = read_sources(rooms, problems)
    check_arrows(includes, rooms, problems)
    find_circles(includes, problems)
    for problem in problems:
        print(problem)
    arrows = sum(len([other for other in room.uses if other != room.name]) for room in rooms.values())
    print(f"{len(includes)} files in {len(rooms)} rooms, {arrows} arrows between rooms, {len(problems)} problems")
    if arguments.draw:
        draw(rooms, arguments.draw)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
