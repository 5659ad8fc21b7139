"""Counts the instructions of the loops that multiply on matrix cores, in what the vendors' compilers make of them.

A kernel's speed without its GPU: for each hot kernel and GPU the innermost loops with matrix instructions, what stands in them, and how many
groups of the kernel a core has at a time. ci/assembly.txt has the most instructions that a loop may have, which only fall: --update
lowers them, and a higher one is written by hand, with its reason in the log. Loads of 16 bits from local memory are not allowed.

The programs are model M's in bf16, as tests/programs/list_programs.c lists them. The compilers are those of ci/portability.py, and ptxas
for NVIDIA. This program reads ptxas's machine code by itself; iga64 disassembles that of Intel's ocloc. Exit status: 0 all well, 1 a loop is worse than its limit, 2 wrong usage, 3 a compiler is missing.
"""
import argparse
import collections
import os
import re
import shutil
import struct
import sys
import tempfile

import portability
from vendors import Failure, elf_section, intel_kernels, run

HERE = os.path.dirname(os.path.abspath(__file__))
LIMITS = os.path.join(HERE, "assembly.txt")
MODELS = os.path.join(HERE, "..", "runtime", "device", "gpu_model.c")
DOCUMENT = os.path.join(HERE, "..", "docs", "notes", "matrix_cores.md")
BEGIN, END = "<!-- ci/assembly.py writes from here -->", "<!-- to here -->"

# What a core has for groups. NVIDIA, "CUDA C++ Programming Guide", compute capability 8.6: registers of 32 bits, given out to warps in units;
# AMD, "RDNA 3" and "CDNA 3 Instruction Set Architecture", vector registers of a lane in each of `units` SIMDs, in units of `granule`;
# Intel, "oneAPI GPU Optimization Guide", of a Xe core: vector engines, whose threads have 128 or 256 of an engine's 1024 registers.
Core = collections.namedtuple("Core", "units registers granule waves local warp")
CORES = {
    "sm_86": Core(4, 512, 8, 12, 100 << 10, 32),
    "gfx1100": Core(2, 1536, 24, 16, 64 << 10, 32),
    "gfx1201": Core(2, 1536, 24, 16, 64 << 10, 32),
    "gfx90a": Core(4, 512, 8, 8, 64 << 10, 64),
    "gfx942": Core(4, 512, 8, 8, 64 << 10, 64),
    "ocloc:dg2-g10": Core(16, 1024, 128, 8, 128 << 10, 8),
    "ocloc:pvc": Core(8, 1024, 128, 8, 128 << 10, 16),
}
DAILY, DAILY_PROGRAMS = ("sm_86", "gfx90a", "gfx1100", "ocloc:dg2-g10"), ("attention", "gemm")
# Names of programs, and what is in their labels. The GEMMs are y = x w^T, the gradients of x and of w.
PROGRAMS = {
    "attention": ("attention_matrix_cores.cl", "DROPS=0", "HEAD_SIZE=64"),
    "attention 128": ("attention_matrix_cores.cl", "DROPS=0", "HEAD_SIZE=128"),
    "gemm": ("mma_gemm.cl", "BIAS=1", "SIDE=0", "BLOCK_M=128", "BLOCK_N=128", "LOAD=2", "PARTS=0", "TRANSPOSE_B=1"),
    "gemm dx": ("mma_gemm.cl", "ADDS=0", "SIDE=2", "BLOCK_M=128", "BLOCK_N=128", "LOAD=2", "PARTS=0", "TRANSPOSE_A=0", "TRANSPOSE_B=0"),
    "gemm dw": ("mma_gemm.cl", "ADDS=1", "BLOCK_M=128", "BLOCK_N=128", "LOAD=2", "PARTS=0", "TRANSPOSE_A=1"),
}

# An instruction: its class, for loads and stores bits of a lane, and the number of the instruction to which it branches, or None.
Instruction = collections.namedtuple("Instruction", "kind bits target")
KINDS = ("matrix", "local load", "local store", "global load", "scratch", "float", "integer", "move", "branch", "wait")
# A kernel: its instructions, registers of a work-item, bytes of local memory, warps of a group.
Kernel = collections.namedtuple("Kernel", "code registers local warps")
# A loop: its number in the kernel, the count of each kind, of local loads by their bits, and bits of a lane that pass through local memory.
Loop = collections.namedtuple("Loop", "number kinds loads bits")


# ---- machine code


def classify(name, patterns):
    return next(kind for kind, pattern in patterns if re.match(pattern, name))


AMD_KINDS = (
    ("matrix", r"v_(wmma|mfma)"), ("local load", r"ds_(load|read)"), ("local store", r"ds_(store|write)"), ("global load", r"global_load"),
    ("scratch", r"scratch_|buffer_"), ("branch", r"s_c?branch"), ("wait", r"s_(wait|delay|nop|barrier|clause|sleep)"),
    ("move", r"[sv]_(dual_)?mov|v_accvgpr|v_readfirstlane|v_permlane|ds_bpermute|v_cndmask"),
    ("float", r"v_(dual_|pk_)?\w*(_f32|_f16|_bf16)|v_exp|v_max3|v_log"), ("integer", r"."))
AMD_BITS = (("b128|dwordx4", 128), ("b96", 96), ("b64|dwordx2", 64), ("[ui]16|b16|short", 16), ("[ui]8|b8|byte", 8), (".", 32))


def amd_kernels(assembly):
    """{kernel: its instructions} of the text that clang prints."""
    found, code, labels = {}, None, {}
    for line in assembly.split("\n"):
        name = re.match(r"([a-z]\w*):", line)
        if name:
            code, labels = found.setdefault(name[1], []), {}
        elif line.startswith(".Lfunc_end"):
            code = None
        elif code is not None:
            label, text = re.match(r"(\.L\w+):", line), re.match(r"\s+([a-z]\w+)\s*([^;]*)", line)
            if label:
                labels[label[1]] = len(code)
            elif text:
                kind = classify(text[1], AMD_KINDS)
                bits = next(bits for pattern, bits in AMD_BITS if re.search(pattern, text[1])) if "load" in kind or "store" in kind else 0
                bits *= 2 if re.match(r"ds_\w+_2addr|ds_(read|write)2", text[1]) else 1
                aim = re.search(r"\.L\w+", text[2]) if kind == "branch" else None
                code.append(Instruction(kind, bits, labels.get(aim[0]) if aim else None)) # forward: not known yet, and no loop
    return found


# Machine code of compute capability 7 and later: 16 bytes an instruction, whose operation is in the lowest 9 bits; a load's width in 3
# bits from bit 73 on, and the distance of a branch in bytes from bit 32 on. Found by comparison with nvdisasm, with which all counts agree.
SASS_KINDS = {0x03C: "matrix", 0x03B: "local load", 0x184: "local load", 0x188: "local store", 0x1AE: "copy", 0x181: "global load",
              0x183: "scratch", 0x187: "scratch", 0x147: "branch", 0x14D: "branch", 0x118: "wait", 0x11A: "wait", 0x11D: "wait",
              0x1AF: "wait", 0x145: "wait", 0x141: "wait", 0x002: "move", 0x082: "move", 0x087: "move", 0x007: "move", 0x008: "float",
              0x009: "float", 0x020: "float", 0x021: "float", 0x023: "float", 0x03E: "float", 0x108: "float", 0x00B: "float", 0x189: "move"}
SASS_BITS = {0: 8, 1: 8, 2: 16, 3: 16, 4: 32, 5: 64, 6: 128}
LDSM = 0x03B


def sass_code(text):
    code = []
    for place in range(0, len(text), 16):
        low, high = struct.unpack_from("<QQ", text, place)
        operation = low & 0x1FF
        kind = SASS_KINDS.get(operation, "integer")
        distance = struct.unpack("<i", struct.pack("<I", low >> 32))[0]
        target = (place + 16 + distance) // 16 if operation == 0x147 else None
        bits = 128 if operation == LDSM else SASS_BITS.get(high >> 9 & 7, 0) if kind in ("local load", "local store", "global load", "copy") else 0
        code.append(Instruction(kind, bits, target))
    return code


def nvidia_kernels(tools, target, program):
    assembly = portability.nvidia_assembly(tools, target, program)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        report = portability.assemble(tools, target, program, assembly, file.name)
        elf = file.read()
    found = {}
    for part in report:
        name, registers, local = re.search(r"'(\w+)'", part)[1], re.search(r"Used (\d+) registers", part), re.search(r"(\d+) bytes smem", part)
        found[name] = Kernel(sass_code(elf_section(elf, ".text." + name)), int(registers[1]), int(local[1]) if local else 0, warps_of(program))
    return found


# Intel's instructions by iga64's names; those that go to memory by the message that stands behind them, such as load.slm.d32x4.a32: 4 numbers
# of 32 bits for each lane, or with a t behind them for the whole sub-group.
INTEL_KINDS = (
    ("matrix", "dpas"), ("scratch", r".*scratch|.*\.ss\["), ("local load", r"load\.slm"), ("local store", r"store\.slm"),
    ("global load", r"load\.ugm"), ("branch", "jmpi|goto|join|while|if|else|endif|br[cd]|break|call|ret|halt"),
    ("wait", "sync|fence|signal|nop"), ("move", "mov|sel|csel"), ("float", r"math|\S+ h?f$"), ("integer", "."))
INTEL_FAMILY = {"dg2-g10": "xehpg", "pvc": "xehpc"}


def intel_instruction(text, width, labels):
    text, _, message = re.sub(r"^(\([^)|]+\))?\s*", "", text).partition("//")
    name = re.match(r"\S+", text)[0]
    typed = re.search(r">:(\w+)", text)
    kind = classify(message.rpartition(";")[2].strip() if name.startswith("send") else f"{name} {typed[1]}" if typed else name, INTEL_KINDS)
    size = re.search(r"\.d(\d+)(?:u32)?(?:x(\d+)(t?))?\.", message)
    bits = max(int(size[1]), int(size[1]) * int(size[2] or 1) // (width if size[3] else 1)) if size else 0
    aim = re.search(r"\bL\d+\b", text) if kind == "branch" else None
    return Instruction(kind, bits, labels.get(aim[0]) if aim else None)


def intel_code(text, width):
    """The instructions of iga64's text; a label is on a line of its own before what it names."""
    code, labels = [], {}
    for line in filter(str.strip, text.split("\n")):
        if re.match(r"L\d+:", line):
            labels[line.strip()[:-1]] = len(code)
        else:
            code.append(intel_instruction(line.strip(), width, labels))
    return code


def ocloc_kernels(tools, target, program):
    gpu = portability.gpu_of(target)
    elf, printed = tools.own["ocloc"].build(gpu, portability.own_options(target, program), program.text)
    found = {}
    for name, numbers in intel_kernels(elf, printed).items():
        with tempfile.NamedTemporaryFile(suffix=".bin") as file:
            file.write(elf_section(elf, ".text." + name))
            file.flush()
            text = run(["iga64", "-d", "-p=" + INTEL_FAMILY[gpu], file.name])[0].decode()
        found[name] = Kernel(intel_code(text, numbers.width), numbers.registers, numbers.local, warps_of(program))
    return found


def warps_of(program):
    """Warps of a group, from the constants that the program is built with."""
    value = dict(re.findall(r"-D(\w+)=(\d+)", " ".join(program.options)))
    return int(value["WARPS"]) if "WARPS" in value else \
        int(value["BLOCK_M"]) // int(value["WARP_M"]) * (int(value["BLOCK_N"]) // int(value["WARP_N"]))


def compile_kernels(tools, target, program):
    """{name: Kernel}"""
    if target.vendor == "NVIDIA":
        return nvidia_kernels(tools, target, program)
    if target.vendor == "ocloc":
        return ocloc_kernels(tools, target, program)
    assembly = portability.amd_assembly(tools, target, program)
    codes = amd_kernels(assembly)
    return {name: Kernel(codes[name], int(value["vgpr_count"]), int(value["group_segment_fixed_size"]), warps_of(program))
            for name, value in portability.amd_metadata(assembly).items()}


# ---- loops


def loops(code):
    """The innermost loops with matrix instructions: from where a branch goes back to, to the last such branch."""
    ends = {}
    for place, instruction in enumerate(code):
        if instruction.target is not None and instruction.target <= place:
            ends[instruction.target] = place
    spans = [(start, end) for start, end in ends.items() if any(one.kind == "matrix" for one in code[start:end + 1])]
    inner = sorted((start, end) for start, end in spans
                   if not any(other != (start, end) and other[0] >= start and other[1] <= end for other in spans))
    return [loop_of(number, code[start:end + 1]) for number, (start, end) in enumerate(inner)]


def loop_of(number, code):
    """NVIDIA's asynchronous copies are loads from global memory that pass through local memory as well."""
    through = sum(one.bits for one in code if one.kind in ("local load", "local store", "copy"))
    kinds = collections.Counter("global load" if one.kind == "copy" else one.kind for one in code)
    return Loop(number, kinds, collections.Counter(one.bits for one in code if one.kind == "local load"), through)


def instructions(loop):
    return sum(loop.kinds.values())


def price(loop):
    """Instructions for each matrix instruction."""
    return instructions(loop) / loop.kinds["matrix"]


def local_bytes(loop, core):
    """Bytes that a warp moves through local memory for each matrix instruction."""
    return loop.bits / 8 * core.warp / loop.kinds["matrix"]


def groups_at_a_time(core, kernel):
    """How many groups a core has registers, slots and local memory for."""
    waves = min(core.waves, core.registers // (-(-kernel.registers // core.granule) * core.granule))
    return min(waves * core.units // kernel.warps, core.local // kernel.local if kernel.local else waves * core.units)


# ---- limits

# Of a loop of a kernel for a target: the most instructions for each matrix instruction, and the fewest groups at a time.
Limit = collections.namedtuple("Limit", "price groups")


def limits_read():
    """({(target, program, kernel, number): Limit}, {target: compiler})"""
    limits, compilers = {}, {}
    if os.path.exists(LIMITS):
        with open(LIMITS, encoding="utf-8") as file:
            for line in file:
                words = line.split()
                if line.startswith("target "):
                    compilers[words[1]] = words[2]
                elif words and not line.startswith("#"):
                    limits[words[0], words[1].replace("_", " "), words[2], int(words[3])] = Limit(float(words[4]), int(words[5]))
    return limits, compilers


def limits_write(found, compilers):
    """Lowers limits to what was found. Of the programs that were compiled now, limits of loops that no longer exist are dropped."""
    limits, known = limits_read()
    now = {key[:2] for key in found}
    kept = {key: limit for key, limit in limits.items() if key[:2] not in now}
    for key, limit in found.items():
        old = limits.get(key, limit)
        kept[key] = Limit(min(old.price, limit.price), max(old.groups, limit.groups))
    with open(LIMITS, "w", encoding="utf-8") as file:
        file.write("# Limits of ci/assembly.py, in model M's kernels in bf16: target, program, kernel, number of the loop, the most instructions for each\n"
                   "# matrix instruction, the fewest groups that a core has at a time. `target` lines: the compiler that they are of. --update lowers\n"
                   "# instructions and raises groups; the other way they are written by hand.\n")
        for target, compiler in sorted({**known, **compilers}.items()):
            file.write(f"target {target} {compiler}\n")
        for (target, program, kernel, number), limit in sorted(kept.items()):
            file.write(f"{target} {program.replace(' ', '_')} {kernel} {number} {limit.price:.2f} {limit.groups}\n")


def judge(found, loops_found, compilers):
    """Texts of what is worse than its limit."""
    limits, known = limits_read()
    wrong = []
    for key, now in found.items():
        words, loop = " ".join(map(str, key)), loops_found[key]
        narrow = loop.loads[16] + loop.loads[8]
        if narrow:
            wrong.append(f"{words}: {narrow} loads of 16 bits or less from local memory")
        if loop.kinds["scratch"]:
            wrong.append(f"{words}: {loop.kinds['scratch']} accesses to scratch memory")
        limit = limits.get(key)
        if known.get(key[0]) != compilers[key[0]]:
            continue
        if limit is None:
            wrong.append(f"{words}: a loop without a limit in ci/assembly.txt")
        elif now.price > limit.price + 0.005 or now.groups < limit.groups:
            wrong.append(f"{words}: {now.price:.2f} instructions for each matrix instruction and {now.groups} groups at a time, "
                         f"the limits are {limit.price:.2f} and {limit.groups}")
    return wrong


# ---- the roofline's table

ARRAY = r"static const struct matrix_loop {}\[\] = \{{(.*?)\}};"
ENTRY = r'\{"(\w+)", ([\d.]+), ([\d.]+)\}'
TOLERANCE = 0.05


def roofline_rows(loops_found, target):
    """{kernel: (instructions, bytes of local memory) for each matrix instruction}: of the dearest GEMM, and of attention's blocks without a
    mask."""
    rows = {}
    for (of, program, kernel, number), loop in loops_found.items():
        if of == target and number == 0 and program in ("attention", "gemm", "gemm dx", "gemm dw"):
            row = price(loop), local_bytes(loop, CORES[target])
            rows[kernel] = max(rows.get(kernel, row), row)
    return rows


def judge_roofline(loops_found):
    """Texts of what runtime/device/gpu_model.c has otherwise; only of targets of which all programs were compiled."""
    with open(MODELS, encoding="utf-8") as file:
        text = file.read()
    wrong = []
    for target in CORES:
        table = re.search(ARRAY.format(target.removeprefix("ocloc:").replace("-", "_")), text, re.S)
        own = {key[1] for key in loops_found if key[0] == target}
        if not table or not own >= {"attention", "gemm", "gemm dx", "gemm dw"}:
            continue
        known = {name: (float(one), float(other)) for name, one, other in re.findall(ENTRY, table[1])}
        for kernel, row in roofline_rows(loops_found, target).items():
            if kernel not in known or any(abs(now - then) > TOLERANCE * now for now, then in zip(row, known[kernel])):
                wrong.append(f'runtime/device/gpu_model.c: {target} should have {{"{kernel}", {row[0]:.2f}, {row[1]:.0f}}}')
    return wrong


# ---- output

COLUMNS = ("target", "program", "kernel", "loop", "matrix", "all", "each", *(f"local loads {bits}" for bits in (128, 64, 32, 16)),
           "local stores", "global loads", "float", "integer", "moves", "branches", "waits", "registers", "local bytes", "groups")


def row_of(key, loop, kernel, groups):
    target, program, name, number = key
    kinds = loop.kinds
    return [target, program, re.sub(r"attention_matrix_cores_|mma_", "", name), number, kinds["matrix"], instructions(loop), f"{price(loop):.2f}",
            sum(count for bits, count in loop.loads.items() if bits >= 128), *(loop.loads[bits] for bits in (64, 32, 16)), kinds["local store"], kinds["global load"], kinds["float"], kinds["integer"],
            kinds["move"], kinds["branch"], kinds["wait"], kernel.registers, kernel.local, groups]


def document(rows):
    """Replaces the table in the document."""
    with open(DOCUMENT, encoding="utf-8") as file:
        before, _, rest = file.read().partition(BEGIN)
    table = "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [COLUMNS, ["---"] * len(COLUMNS), *rows])
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}")


# ---- main


def replaced(program, words):
    """The program with a text in it replaced, for tests of the limits."""
    if words and words[0] in program.text:
        program.text = program.text.replace(*words)
    return program


def programs_of(programs, target, names):
    """[(name, program)]: the first that has all that its label must have, since others differ in what follows the loops."""
    found = []
    for name in names:
        own = [program for program in programs if program.target == (target.matrix or target.name) and "-DFP16=0" in program.options
               and set(PROGRAMS[name]) <= set(program.label.split())]
        if not own:
            raise Failure(f"{target.name}: list_programs lists no {' '.join(PROGRAMS[name])}")
        found.append((name, own[0]))
    return found


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all programs for all targets (default: attention, and y = x w^T, for " + ", ".join(DAILY) + ")")
    parser.add_argument("--target", action="append", choices=list(CORES), help="only this target; may be repeated")
    parser.add_argument("--program", action="append", choices=list(PROGRAMS), help="only this program; may be repeated")
    parser.add_argument("--replace", nargs=2, metavar=("OLD", "NEW"), help="first replace a text of the kernels, to see that the limits find it")
    parser.add_argument("--update", action="store_true", help="lower the limits in ci/assembly.txt")
    parser.add_argument("--write", action="store_true", help="write the table of docs/notes/matrix_cores.md; implies --all")
    parser.add_argument("--programs", metavar="FILE", default="build/tests/list_programs", help="the built list_programs")
    parser.add_argument("--ptxas", metavar="FILE", help="NVIDIA's assembler (default: the one in PATH)")
    return parser.parse_args()


def usable(tools, name):
    """The target, or None with a line that says why not."""
    target = next(target for target in portability.TARGETS if target.name == name)
    reason = tools.lacks(target) or ("no ptxas" if target.vendor == "NVIDIA" and not tools.ptxas else
                                     f"no iga64: {portability.SETUP_INSTALLS}" if target.vendor == "ocloc" and not shutil.which("iga64") else None)
    if reason:
        print(f"{name}: SKIPPED: {reason}")
    return None if reason else target


def verdict(targets, counted, wrong):
    """Prints what is wrong. Returns the exit status."""
    for text in wrong:
        print(f"FAILED {text}")
    print(f"{counted}, {len(wrong)} failures")
    return 1 if wrong else 0 if targets else 3


def main():
    options = parse()
    everything = options.all or options.write
    tools, programs = portability.Tools(options.ptxas), portability.read_programs(options.programs, False, 64)
    targets = list(filter(None, (usable(tools, name) for name in options.target or (CORES if everything else DAILY))))
    found, loops_found, rows = {}, {}, []
    for target in targets:
        for name, program in programs_of(programs, target, options.program or (PROGRAMS if everything else DAILY_PROGRAMS)):
            for kernel_name, kernel in compile_kernels(tools, target, replaced(program, options.replace)).items():
                groups = groups_at_a_time(CORES[target.name], kernel)
                for loop in loops(kernel.code):
                    key = target.name, name, kernel_name, loop.number
                    found[key], loops_found[key] = Limit(price(loop), groups), loop
                    rows.append(row_of(key, loop, kernel, groups))
    for row in [COLUMNS, *rows] if rows else []:
        print("\t".join(map(str, row)))
    compilers = {target.name: portability.compiler_name(tools, target) for target in targets}
    if options.update:
        limits_write(found, compilers)
    if options.write:
        document(rows)
    wrong = judge(found, loops_found, compilers) + judge_roofline(loops_found)
    return verdict(targets, f"{len(found)} loops", wrong)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(str(failure))
