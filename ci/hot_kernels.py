"""Counts what the kernels that training spends its time in cost on GPUs, with 4 streams, and holds it to ci/hot_kernels.txt.

NVIDIA (sm_86): loads of 16 and of 32 bits from global memory, in the PTX that clang makes; where ptxas is there, also its stack and
spills, and where nvdisasm is there, too (PyPI: nvidia-cuda-nvdisasm), loads in the machine's code. AMD (gfx90a, gfx1100, and gfx942
where a clang knows it): scratch memory and spilled registers. And no kernel may convert vectors of fp16 in global memory: of vloada_half4 and its like
NVIDIA's own compiler makes 16-bit loads and stores, which clang's library hides. Exit status as of ci/portability.py, whose list of programs and
compilers these are.
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import os
import re
import shutil
import sys
import tempfile

import portability

HERE = os.path.dirname(os.path.abspath(__file__))
LIMITS = os.path.join(HERE, "hot_kernels.txt")
DOCUMENT = portability.DOCUMENT
ELSEWHERE = ("attention.cl", "gemm.cl", "gemm_blocks.cl", "gemm_parts.cl",  # matrix products and attention have checks of their own
             "loops.cl")  # a self-test
AMD = ("gfx90a", "gfx1100", "gfx942")
CLANG = 15  # which the counts of loads are of: clang 19 divides some vectors of 16 bits

# The most loads of 16 and of 32 bits (None: any number), and bytes of scratch, which is NVIDIA's stack, too.
Limit = collections.namedtuple("Limit", "halves scalars scratch why")


def limits_read():
    """{"file kernel": Limit}"""
    limits = {}
    with open(LIMITS, encoding="utf-8") as file:
        for line in file:
            words = line.split(None, 5)
            if words and not line.startswith("#"):
                scalars = None if words[3] == "any" else int(words[3])
                limits[f"{words[0]} {words[1]}"] = Limit(int(words[2]), scalars, int(words[4]), "".join(words[5:]).strip())
    return limits


def limit_of(name, limits):
    """What "file kernel" is allowed: by a line of its own, or else the first whose file is a pattern that fits; None without one."""
    return limits.get(name) or next((limits[line] for line in limits if fnmatch.fnmatchcase(name, line)), None)


def hot_programs(path, everything):
    """Model M's programs in bf16, and with `everything` in fp32, too, with 4 streams where they depend on them; of two that differ in a switch the one that has
    it on."""
    programs = {}
    for program in portability.read_programs(path, False):
        options = " ".join(program.options)
        other_width = program.file == "projections.cl" and "-DLENGTH=3072" not in options
        if (program.file in ELSEWHERE or "-DACT=2" in options or ("-DACT=0" in options and not everything) or "-DPLAIN=1" in options or other_width
                or ("-DSTREAMS=" in options and "-DSTREAMS=4" not in options)):
            continue
        programs[re.sub(portability.SWITCHES, "", program.label)] = program
    return list(programs.values())


# ---- NVIDIA


def ptx_counts(assembly):
    """{kernel: counts of its loads, and bytes of its stack as clang sees it}"""
    counts = {}
    for part in re.split(r"\.entry ", assembly)[1:]:
        body = part.split("\n}\n")[0]
        loads = re.findall(r"\bld\.global(?:\.nc)?\.([usfb])(\d+)\b", body)
        depot = re.search(r"__local_depot\d+\[(\d+)\]", body)
        counts[re.match(r"\w+", part)[0]] = collections.Counter(
            {"halves": sum(int(bits) < 32 for _, bits in loads), "scalars": sum(int(bits) == 32 for _, bits in loads),
             "scratch": int(depot[1]) if depot else 0})
    return counts


def sass_counts(text):
    """{kernel: counts of its instructions and loads}"""
    counts = {}
    for name, body in re.findall(r"//-+ \.text\.(\w+)\s+-+\n(.*?)(?=//-----|\Z)", text, re.S):
        codes = [code for code in re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z][\w.]*)", body) if code != "NOP"]
        loads = [code for code in codes if code.startswith("LDG.")]
        wide = [code for code in loads if re.search(r"\.(64|128)\b", code)]
        halves = [code for code in loads if re.search(r"\.[US](8|16)\b", code)]
        counts[name] = {"instructions": len(codes), "wide": len(wide), "sass_halves": len(halves),
                        "sass_scalars": len(loads) - len(wide) - len(halves)}
    return counts


def count_nvidia(tools, target, program):
    command = portability.clang_command(tools, target, "-target", portability.TRIPLES["NVIDIA"], "-Xclang", "-target-cpu", "-Xclang",
                                        target.name, *portability.with_library(tools, target), *program.options)
    assembly = portability.run(command, program.text.encode())[0]
    counts = ptx_counts(assembly.decode())
    if not tools.ptxas:
        return counts
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = os.path.join(folder, "a.ptx"), os.path.join(folder, "a.cubin")
        with open(ptx, "wb") as file:
            file.write(assembly)
        report = portability.run([tools.ptxas, "-v", f"-arch={target.name}", ptx, "-o", cubin])[1]
        text = portability.run([tools.nvdisasm, "-c", cubin])[0].decode() if tools.nvdisasm else ""
    for part in report.split("Compiling entry function")[1:]:
        name = re.search(r"'(\w+)'", part)[1]
        counts[name]["scratch"] = int(re.search(r"(\d+) bytes stack frame", part)[1])
        counts[name]["spills"] = int(re.search(r"(\d+) bytes spill stores", part)[1])
        counts[name]["registers"] = int(re.search(r"Used (\d+) registers", part)[1])
    for name, more in sass_counts(text).items():
        counts[name].update(more)
    return counts


def count_amd(tools, target, program):
    return {kernel: {"registers": figures.registers, "scratch": figures.scratch, "spills": figures.spills}
            for kernel, figures in portability.compile_amd(tools, target, program).items()}


def fp16_failures(tools, target, path, jobs):
    """Texts of the programs that convert vectors of fp16 in global memory; of those of the same files one in fp16 is looked at."""
    programs = {}
    for program in portability.read_programs(path, False):
        if program.files not in programs or "-DACT=2" in program.options:
            programs[program.files] = program

    def one(program):
        command = portability.clang_command(tools, target, "-target", portability.TRIPLES["NVIDIA"], "-S", "-emit-llvm", "-Xclang", "-disable-llvm-passes", *program.options)
        try:
            code = portability.run(command, program.text.encode())[0]
        except portability.Failure as failure:
            return [f"{program.label}: {failure}"]
        called = re.findall(rb"call .*@_Z\d+(v(?:load|store)a?_half\d\w*)PU3AS1", code)
        return [f"{program.label}: {name.decode()} of global memory" for name in sorted(set(called))]

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return [text for texts in pool.map(one, programs.values()) for text in texts]


def count_all(tools, targets, programs, jobs):
    """({"file kernel": {target's name: highest counts of all programs}}, [texts of failures])"""
    found, failures = {}, []

    def one(pair):
        target, program = pair
        try:
            return (count_nvidia if target.vendor == "NVIDIA" else count_amd)(tools, target, program)
        except portability.Failure as failure:
            failures.append(f"{target.name}: {program.label}: {failure}")
            return {}

    pairs = [(target, program) for program in programs for target in targets]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for (target, program), kernels in zip(pairs, pool.map(one, pairs)):
            for kernel, counts in kernels.items():
                highest = found.setdefault(f"{program.file} {kernel}", {}).setdefault(target.name, {})
                for name, value in counts.items():
                    highest[name] = max(highest.get(name, 0), value)
    return found, failures


# ---- the rules


def judge(found, limits):
    """Texts of what is not as the table says."""
    wrong = [f"{name}: no line in ci/hot_kernels.txt" for name in sorted(found) if not limit_of(name, limits)]
    wrong += [f"{line}: in ci/hot_kernels.txt, but not compiled" for line in sorted(limits) if not fnmatch.filter(found, line)]
    for name, targets in sorted(found.items()):
        limit = limit_of(name, limits)
        if not limit:
            continue
        for target, counts in targets.items():
            halves = max(counts.get("halves", 0), counts.get("sass_halves", 0))
            if halves > limit.halves:
                wrong.append(f"{target}: {name}: {halves} loads of 16 bits, {limit.halves} are allowed")
            if limit.scalars is not None and counts.get("scalars", 0) > limit.scalars:
                wrong.append(f"{target}: {name}: {counts['scalars']} loads of 32 bits, {limit.scalars} are allowed")
            if counts.get("scratch", 0) > limit.scratch:
                wrong.append(f"{target}: {name}: {counts['scratch']} bytes of stack or scratch, {limit.scratch} are allowed")
            if counts.get("spills", 0) and not limit.scratch:
                wrong.append(f"{target}: {name}: {counts['spills']} spilled")
    return wrong


# ---- the table


def cells(counts, names):
    return " | ".join(str(counts.get(name, "")) for name in names)


def table(found, limits):
    lines = ["| kernel | sm_86: instructions | registers | stack | loads of 64 and 128 bits | of 32 | of 16 | gfx90a: registers | scratch "
             "| gfx1100: registers | scratch | what is allowed, and why |", "| --- |" + " --- |" * 11]
    for name, targets in sorted(found.items()):
        nvidia = cells(targets.get("sm_86", {}), ("instructions", "registers", "scratch", "wide", "sass_scalars", "sass_halves"))
        amd = " | ".join(cells(targets.get(target, {}), ("registers", "scratch")) for target in AMD[:2])
        lines.append(f"| `{name}` | {nvidia} | {amd} | {limit.why if (limit := limit_of(name, limits)) else ''} |")
    return "\n".join(lines)


def document_write(text):
    begin, end = "<!-- hot kernels -->\n", "<!-- end of hot kernels -->\n"
    with open(DOCUMENT, encoding="utf-8") as file:
        before, rest = file.read().split(begin, 1)
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(before + begin + text + "\n" + end + rest.split(end, 1)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", metavar="FILE", default="build/tests/list_programs", help="the built list_programs")
    parser.add_argument("--ptxas", metavar="FILE", help="NVIDIA's assembler (default: the one in PATH)")
    parser.add_argument("--nvdisasm", metavar="FILE", help="NVIDIA's disassembler (default: the one in PATH)")
    parser.add_argument("--table", action="store_true", help="print the table")
    parser.add_argument("--update", action="store_true", help="write the table to docs/portability.md")
    parser.add_argument("--all", action="store_true", help="in fp32, too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at a time")
    options = parser.parse_args()
    tools = portability.Tools(options.ptxas)
    tools.nvdisasm = options.nvdisasm or shutil.which("nvdisasm")
    targets, status = portability.usable(tools, [target for target in portability.TARGETS if target.name in ("sm_86",) + AMD])
    others = [target for target in targets if target.vendor == "NVIDIA" and tools.clang(target) != CLANG]
    if others:
        print(f"NVIDIA: not compared: the table is of clang-{CLANG}, this is clang-{tools.clang(others[0])}")
        targets = [target for target in targets if target not in others]
    if tools.ptxas and not tools.nvdisasm:
        print("NVIDIA: no nvdisasm: loads are counted in PTX, not in the machine's code")
    limits = limits_read()
    found, failures = count_all(tools, targets, hot_programs(options.programs, options.all or options.update), options.jobs)
    failures += judge(found, limits)
    if targets:
        failures += fp16_failures(tools, targets[0], options.programs, options.jobs)
    if options.table:
        print(table(found, limits))
    if options.update and others:
        print("not written: the table has NVIDIA's columns, too")
    elif options.update and not failures and not status:
        document_write(table(found, limits))
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{len(found)} kernels, {len(failures)} failures")
    return 1 if failures else status


if __name__ == "__main__":
    sys.exit(main())
