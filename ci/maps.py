"""Counts the cycles that one lane takes for a connection's map from projections to H, while the other lanes of its row wait.

In the fused frame (cl/frame.cl) the first lane of each row computes H_pre, H_post and H_res, and their gradients. The time is that of a
sequence of dependent instructions, which more lanes or cores do not shorten. runtime/device/gpu_model.c has the numbers, for the roofline;
this program fails where they differ from what the compilers make by more than a twentieth.

Cycles: NVIDIA's machine code says for each instruction how long its warp waits before the next one. A wave of CDNA begins a vector
instruction every 4 cycles, a transcendental one takes 16. On RDNA 3 a wave begins one every cycle, and a result can be used after 5, of a
transcendental one after 10 (LLVM's model of the target). Loops take as many turns as there are streams, four; that of Sinkhorn as many as its
iterations. Its long way for wild logits is left out, and so is all waiting for memory. For NVIDIA clang is told to divide as OpenCL asks,
to 2.5 units in the last place, which the version that is tested here does not do by itself.

Exit status: 0 all well, 1 a number of the roofline is another, 2 wrong usage, 3 a compiler is missing.
"""
import argparse
import copy
import re
import struct
import sys
import tempfile

import assembly
import portability
from vendors import Failure, elf_section

MAPS = ("identity", "hc", "mhc", "mhc_lite", "shc", "krom", "circulant", "go_mhc", "ohc")
STREAMS, ITERATIONS = 4, 20
LONG_WAY = "return largest <= FACTOR_LIMIT;", "return true;"
KERNELS = """
ROW_KERNEL void alone_forward(__global const float *theta, __global const float *z, __global float *h) {
    hc_forward(theta, z, h);
}
ROW_KERNEL void alone_backward(__global const float *theta, __global const float *z, __global const float *h, __global const float *d_h,
                               __global float *d_z, __global float *d_theta) {
    WORK_DECLARE(0);
    hc_backward(theta, z, h, d_h, d_z, d_theta WORK_ARGUMENT);
}
"""
PRECISE_ENOUGH = ["-Xclang", "-mllvm", "-Xclang", "-nvptx-prec-divf32=1"]
ARRAY = r"static const struct lane_map {}_maps\[\] = \{{(.*?)\}};"
ENTRY = r'\{"(\w+)", (\d+), (\d+)\}'
TOLERANCE = 0.05

# AMD: cycles between two vector instructions of a wave, until a result can be used, and the same of transcendental ones.
AMD = {"gfx942": ((4, 4), (16, 16)), "gfx1100": ((1, 5), (4, 10))}
TRANSCENDENTAL = re.compile(r"v_(rcp|rsq|sqrt|exp|log|sin|cos)_")
REGISTER = re.compile(r"\b([vs])(?:(\d+)|\[(\d+):(\d+)\])|\b(vcc|exec)")


def turned(code, targets, turns):
    """The places of instructions in the order in which they run: each loop as often as it turns, nothing else left out."""
    ends = {}
    for place, target in enumerate(targets):
        if target is not None and target < place: # to itself: what stands behind the end of NVIDIA's kernels
            ends[target] = place

    def walk(first, last, inside):
        order, place = [], first
        while place <= last:
            end = ends.get(place)
            if end is not None and end <= last and (place, end) not in inside:
                order += walk(place, end, inside | {(place, end)}) * turns
                place = end + 1
            else:
                order.append(place)
                place += 1
        return order

    return [code[place] for place in walk(0, len(code) - 1, frozenset())]


def nvidia_cycles(tools, target, program, turns):
    """{kernel: cycles}: the number of cycles to wait is in 4 bits of each instruction, from bit 105 on."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        portability.assemble(tools, target, program, portability.nvidia_assembly(tools, target, program), file.name)
        elf = file.read()
    found = {}
    for kernel in ("alone_forward", "alone_backward"):
        text = elf_section(elf, ".text." + kernel)
        waits = [struct.unpack_from("<Q", text, place + 8)[0] >> 41 & 15 for place in range(0, len(text), 16)]
        found[kernel] = sum(turned(waits, [one.target for one in assembly.sass_code(text)], turns))
    return found


def registers(text):
    """Names of the registers in an operand, or in several."""
    found = set()
    for kind, one, first, last, named in REGISTER.findall(text):
        found |= {named} if named else {kind + one} if one else {f"{kind}{n}" for n in range(int(first), int(last) + 1)}
    return found


def amd_cycles(tools, target, program, turns):
    """{kernel: cycles}: instructions begin one after another, and each when what it reads is there."""
    text, found = portability.amd_assembly(tools, target, program), {}
    for kernel in ("alone_forward", "alone_backward"):
        body = text.split(f"\n{kernel}:")[1].split("\n.Lfunc_end")[0]
        code, labels = [], {}
        for line in body.split("\n"):
            label, words = re.match(r"(\.L\w+):", line), re.match(r"\s+([a-z]\w+)\s*([^;]*)", line)
            if label:
                labels[label[1]] = len(code)
            elif words:
                code.append((words[1], words[2]))
        aims = [labels.get(operands.strip()) if "branch" in name else None for name, operands in code]
        found[kernel] = in_order(turned(code, aims, turns), *AMD[target.name])
    return found


def in_order(code, plain, transcendental):
    now, ready = 0, {}
    for name, operands in code:
        if name.startswith("s_"): # the scalar unit works beside the vectors
            continue
        each, latency = transcendental if TRANSCENDENTAL.match(name) else plain
        for half in operands.split("::"): # two of RDNA 3 at once
            to, _, of = half.partition(",")
            now = max([now, *(ready.get(one, 0) for one in registers(of))])
            ready.update({one: now + latency for one in registers(to)})
        now += each
    return now


def map_program(programs, name, target):
    own = [program for program in programs if program.label.startswith(f"hc_{name}.cl")
           and {f"STREAMS={STREAMS}", "STATIC=0", "H_TRANSPOSED=0", "HC_EPS=0.000000000e+00f"} <= set(program.label.split())]
    if not own:
        raise Failure(f"list_programs lists no map of {name} for {STREAMS} streams")
    program = copy.copy(own[0])
    program.text = program.text.replace(*LONG_WAY) + KERNELS
    program.options = [option.replace("MAP_LOCAL=0", "MAP_LOCAL=100000") for option in program.options] + PRECISE_ENOUGH * (target.vendor == "NVIDIA")
    return program


def judge(target, found):
    """Texts of what runtime/device/gpu_model.c has otherwise."""
    with open(assembly.MODELS, encoding="utf-8") as file:
        table = re.search(ARRAY.format(target), file.read(), re.S)
    known = {name: (int(one), int(other)) for name, one, other in re.findall(ENTRY, table[1] if table else "")}
    return [f'runtime/device/gpu_model.c: {target}_maps should have {{"{name}", {row[0]}, {row[1]}}}' for name, row in found.items()
            if any(abs(now - then) > TOLERANCE * now for now, then in zip(row, known.get(name, (0, 0))))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", choices=["sm_86", *AMD], help="only this target; may be repeated")
    parser.add_argument("--programs", metavar="FILE", default="build/tests/list_programs", help="the built list_programs")
    parser.add_argument("--ptxas", metavar="FILE", help="NVIDIA's assembler (default: the one in PATH)")
    options = parser.parse_args()
    tools, programs = portability.Tools(options.ptxas), portability.read_programs(options.programs, False, 64)
    targets = list(filter(None, (assembly.usable(tools, name) for name in options.target or ["sm_86", *AMD])))
    wrong = []
    for target in targets:
        count = nvidia_cycles if target.vendor == "NVIDIA" else amd_cycles
        found = {}
        for name in MAPS:
            cycles = count(tools, target, map_program(programs, name, target), ITERATIONS if name == "mhc" else STREAMS)
            found[name] = cycles["alone_forward"], cycles["alone_backward"]
            print(f"{target.name}\t{name}\t{found[name][0]}\t{found[name][1]}")
        wrong += judge(target.name, found)
    return assembly.verdict(targets, f"{len(targets) * len(MAPS)} maps", wrong)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(str(failure))
