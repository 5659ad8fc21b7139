"""Faults planted in kernels must be found on emulated GPUs: a barrier left out, a wait that is too short, a wrong row of a fragment.

    planted_faults.py BUILD [--all] [--only TEXT] [--jobs N]

Each fault changes a few words of a kernel's text as it is compiled (EMULATED_GPU_CHANGE of emulated_gpu.c), and a test that passes without
it must fail. Prints each fault, the device, and what found it; with --all also a table of them. Without --all
plants those of every day. Exit status: 0 if all are found, 77 where there are no emulated GPUs, else 1."""
import argparse
import collections
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
KERNELS = os.path.join(HERE, "..", "..", "cl")
SEED = "5"

# `kind`: a row of the table; `text` of `file` becomes `change`; `nth`: which of several, from 0, None: all. `tests`: arguments of the test
# program. `lanes`: of a warp are not kept in step. `daily`: part of every test run.
Fault = collections.namedtuple("Fault", "kind what file text change device tests nth lanes daily program",
                               defaults=(None, False, False, "test_emulated_gpu"))

KINDS = LOCAL, GLOBAL, FLAGS, FENCES, WAITS, PLACES, SWAPS, INSTRUCTIONS, STRIDES, SUMS, POINTERS = (
    "a missing barrier for local memory", "a missing barrier for global memory", "a barrier for the other memory", "a missing fence within a warp",
    "a missing or too short wait for copies", "a wrong row or place of a fragment", "halves, pairs or registers that change places",
    "a wrong instruction", "a wrong stride or index", "a work-group's sum of one lane, or written by all", "a null pointer to local memory")
# What finds a fault: the emulator, by a part of its message; else its compiler, or a comparison with the host.
CHECKS = {"race for local memory": "races: .* local memory", "race for a buffer": "races: .* buffer", "copy under way": "still copies",
          "alignment": "not aligned", "compiler": "cannot compile", "numbers": ""}

GEMM, ATTENTION, INTEL, MUON = "mma_gemm.cl", "attention_matrix_cores.cl", "matrix_cores_intel.cl", "muon.cl"
BARRIER, FENCE = "barrier(CLK_LOCAL_MEM_FENCE);", "WARP_FENCE();"
BARRIERS = BARRIER, "GROUP_BARRIER();", "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"
TOGETHER = "GROUP_BARRIER(); /* together"  # orders nothing, but keeps work-items at one place for the cache

# Tests whose kernels come to the barriers of other files: cases of test_operations, "in" a type or in fp32, or of test_gemm. A file without a GPU's kernels has none.
TESTS = {
    "attention_gpu.cl": ("attention (tiny mhc",),
    "attention_step.cl": ("attention, step",),
    "cross_entropy.cl": ("cross_entropy",),
    "depth_read.cl": ("depth_read (",),
    "frame.cl": ("frame (hc in bf16",),
    "gemm_blocks.cl": ("test_own_blocks*",),
    "group.cl": ("final_norm", "cross_entropy"),
    "hc_map.cl": ("map (",),
    "matrix_cores_emulated.cl": (),
    "reduce.cl": ("final_norm",),
    "stream_mix.cl": ("mix (tiny frac",),
    "value_embeds.cl": ("value_embed (tiny",),
}


def places(file, needle):
    """(which of them, what is left out) of each place of a text in a kernel file."""
    text = kernel_text(file)
    for nth, match in enumerate(re.finditer(re.escape(needle), text)):
        line = text[:match.start()].count("\n") + 1
        if not text.startswith(TOGETHER, match.start()):
            yield nth, f"{needle[:-1]} of {file}:{line} left out"


def left_out_of(file, needle, nth, what, test):
    kind = LOCAL if needle == BARRIER else GLOBAL
    if test.startswith("test_"):
        return Fault(kind, what, file, needle, ";", "sm_80", (test,), nth, True, program="test_gemm")
    case, _, dtype = test.partition(" in ")
    return Fault(kind, what, file, needle, ";", "sm_80", ("--tiny", "--filter", case, "--dtype", dtype or "fp32"), nth, True, program="test_operations")


def left_out():
    """Groups of faults: each barrier, fence and wait, left out. A group is one fault on several devices or in several tests, of which one
    must find it: not all compile its line."""
    groups = []
    for file, test in ((GEMM, "quick_gemm"), (ATTENTION, "quick_attention")):
        for needle, kind in ((BARRIER, LOCAL), (FENCE, FENCES), ("COPY_WAIT(0);", WAITS), ("COPY_WAIT(BEHIND);", WAITS)):
            devices = ("sm_80",) if needle.startswith("COPY") else ("sm_80", "gfx1100", "Max")
            for nth, what in places(file, needle):
                groups.append([Fault(kind, what, file, needle, ";", device, (test,), nth, needle == FENCE) for device in devices])
    for file in sorted(os.listdir(KERNELS)):
        for needle in () if file in (GEMM, ATTENTION) else BARRIERS:
            for nth, what in places(file, needle):
                if file not in TESTS:
                    sys.exit(f"which test comes to the barriers of {file}? Add it to TESTS")
                if TESTS[file]:
                    groups.append([left_out_of(file, needle, nth, what, test) for test in TESTS[file]])
    return groups


def faults():
    single = [
        Fault(WAITS, "the wait leaves one group of copies more", GEMM, "COPY_WAIT(BEHIND);", "COPY_WAIT(2);", "sm_80", ("quick_gemm",), daily=True),
        Fault(WAITS, "the wait leaves all copies", GEMM, "COPY_WAIT(BEHIND);", "COPY_WAIT(7);", "sm_80", ("quick_gemm",)),
        Fault(INSTRUCTIONS, "ldmatrix does not transpose", "matrix_cores_nvidia.cl", "m8n8.x4.trans.shared", "m8n8.x4.shared", "sm_80", ("quick_gemm",), daily=True),
        Fault(SWAPS, "registers of A change places", "matrix_cores_nvidia.cl", '"r"(a.y), "r"(a.z)', '"r"(a.z), "r"(a.y)', "sm_80", ("quick_gemm",)),
        Fault(SWAPS, "halves of B change places", "matrix_cores_ptx.cl", "b.lo", "b.hi", "sm_80", ("quick_gemm",)),
        Fault(SWAPS, "rounded pairs change places", "matrix_cores_nvidia.cl", '"f"(high), "f"(low)', '"f"(low), "f"(high)', "sm_80", ("quick_attention",)),
        Fault(PLACES, "MFMA: wrong row of C", "matrix_cores_amd_mfma.cl", ".lane / 16 * 4 + (i))", ".lane / 16 + 4 * (i))", "gfx90a", ("quick_gemm",), daily=True),
        Fault(PLACES, "MFMA: wrong place along k", "matrix_cores_amd_mfma.cl", "(lane) / 16 * 4)", "(lane) / 16 * 2)", "gfx90a", ("quick_gemm",)),
        Fault(SWAPS, "MFMA of gfx908: halves along k confused", "matrix_cores_amd_mfma_8.cl", "(b).hi", "(b).lo", "gfx908", ("quick_gemm",)),
        Fault(PLACES, "WMMA: wrong row of C", "matrix_cores_amd_wmma.cl", "(i) * 2 + (item).lane / 16", "(i) + (item).lane / 16 * 8", "gfx1100", ("quick_gemm",), daily=True),
        Fault(PLACES, "WMMA of gfx12: wrong place along k", "matrix_cores_amd_wmma_gfx12.cl", "(lane) / 16 * 8)", "(lane) / 16 * 0)", "gfx1201", ("quick_gemm",), daily=True),
        Fault(INSTRUCTIONS, "gfx12 takes gfx11's instruction", "matrix_cores_amd_wmma_gfx12.cl", "_bf16_w32_gfx12", "_bf16_w32", "gfx1201", ("quick_gemm",)),
        Fault(INSTRUCTIONS, "an exchange with the wrong lane", "matrix_cores_amd.cl", ".lane ^ (bit))", ".lane ^ (bit) / 2)", "gfx90a", ("quick_attention",)),
        Fault(SWAPS, "WMMA: halves of a row of A change places", "matrix_cores_amd.cl", "0x05040100 : 0x01000504", "0x01000504 : 0x05040100", "gfx1100",
              ("quick_attention",), daily=True),
        Fault(PLACES, "WMMA: numbers of columns where no lane looks for them", ATTENTION, "+ VALUE_PLACE(place % BLOCK)", "+ place % BLOCK", "gfx1100",
              ("quick_attention",)),
        Fault(STRIDES, "XMX: panels of a tile overlap", INTEL, "column / 16 * 128", "column / 16 * 64", "Arc", ("quick_gemm",), daily=True),
        Fault(PLACES, "XMX: rows of a panel change places", INTEL, "row % 8 * 16", "(row % 8 ^ 1) * 16", "Max", ("quick_gemm",)),
        Fault(PLACES, "XMX: all lanes have one row of A", INTEL, "row + item.lane", "row", "Arc", ("quick_gemm",)),
        Fault(PLACES, "XMX: wrong column of C", INTEL, "fragment_column(item, i) (i)", "fragment_column(item, i) ((i) ^ 2)", "Max", ("quick_gemm",)),
        Fault(INSTRUCTIONS, "XMX: factors change places", INTEL, "mad_k16(b, a, c->v)", "mad_k16(a, b, c->v)", "Arc", ("quick_gemm",), 1),
        Fault(SWAPS, "XMX: pairs of an A that was a C change places", INTEL, ".v[column], c[n].v[column + 1]", ".v[column + 1], c[n].v[column]", "Max",
              ("quick_attention",)),
        Fault(STRIDES, "next tile along k by a wrong stride", GEMM, "(ulong)BLOCK_K * source->stride", "(ulong)BLOCK_K * (source->stride - 8)", "sm_80", ("quick_gemm",)),
    ]
    operations = [
        Fault(POINTERS, "null pointers to local memory", "hc_mhc.cl", "i < STREAMS && keeps;", "i < STREAMS && kept;", "sm_80",
              ("--tiny", "--filter", "frame (mhc S"), daily=True, program="test_operations"),
        Fault(FLAGS, "barriers for global memory order local memory", "group.cl", "GROUP_BARRIER() barrier(CLK_GLOBAL_", "GROUP_BARRIER() barrier(CLK_LOCAL_",
              "sm_80", ("--tiny", "--filter", "frame (hc"), daily=True, program="test_operations"),
        Fault(FLAGS, "barriers for local memory order global memory", "group.cl", BARRIER, "barrier(CLK_GLOBAL_MEM_FENCE);", "sm_80",
              ("--tiny", "--filter", "final_norm"), program="test_operations"),
        Fault(STRIDES, "dropout's element one too far", ATTENTION, "% 4", "% 4 + 1", "sm_80", ("quick_attention",), 0),
        Fault(SWAPS, "transposed rows change places in pairs", ATTENTION, "e % 2 ?", "e % 2 == 0 ?", "gfx90a", ("quick_attention",), daily=True),
        Fault(PLACES, "warps that share rows add up the same channels", ATTENTION, "((item).warp % SHARES * ACROSS * FRAGMENT_N)", "0", "Arc",
              ("attention_128",)),
        Fault(SUMS, "all warps that share rows write their lse", ATTENTION, " && item.warp % SHARES == 0", "", "Max", ("attention_128",), daily=True),
        Fault(SUMS, "queries past the end count", ATTENTION, "LOG2E * value : INFINITY", "LOG2E * value : 0.0f", "gfx1100", ("quick_attention",)),
        Fault(SUMS, "a block that the diagonal crosses is not masked", ATTENTION, "key + KEYS <= first", "key <= first", "sm_80", ("quick_attention",)),
    ]
    momentum, schulz = ("--tiny", "--filter", "muon (tiny 5"), ("--tiny", "--filter", "newton_schulz (tiny")
    muon = [
        Fault(SUMS, "Muon: a lane's squares for those of a chunk", MUON, "GROUP_SUM(VEC_SUM(total), scratch)", "VEC_SUM(total)", "sm_80", momentum),
        Fault(SUMS, "Muon: all lanes write a chunk's squares", MUON, "if (LANE == 0) {", "{", "sm_80", momentum),
        Fault(STRIDES, "Muon: squares of later matrices replace those of the first", MUON, "sums[sums_at + ", "sums[", "sm_80", momentum),
        Fault(STRIDES, "Muon: a batch's polynomials have one diagonal", MUON, "(uint)get_group_id(0) % (uint)side", "(int)get_group_id(0)", "sm_80", schulz),
    ]
    muon = [fault._replace(program="test_operations") for fault in muon]
    return left_out() + [[fault] for fault in single + operations + muon]


def kernel_text(file):
    with open(os.path.join(KERNELS, file), encoding="utf-8") as source:
        return source.read()


def context(fault):
    """The text to look for. One of several is made longer until it stands in the kernels once: a program has several files."""
    text = kernel_text(fault.file)
    starts = [match.start() for match in re.finditer(re.escape(fault.text), text)]
    if not starts or (fault.nth is not None and fault.nth >= len(starts)):
        sys.exit(f"{fault.file} has no '{fault.text}' any more: {fault.what}")
    if fault.nth is None:
        return fault.text, fault.change
    start, end = starts[fault.nth], starts[fault.nth] + len(fault.text)
    kernels = "".join(kernel_text(file) for file in os.listdir(KERNELS) if file.endswith(".cl"))
    while kernels.count(text[start:end]) > 1:
        start = max(0, start - 40)
    return text[start:end], text[start:starts[fault.nth]] + fault.change


def try_fault(build, fault):
    """(found, by what): the test with the fault."""
    before, after = context(fault)
    with tempfile.TemporaryDirectory() as folder:
        change = os.path.join(folder, "change")
        with open(change, "w", encoding="utf-8") as file:
            file.write(f"{before}\n----\n{after}\n----\n")
        environment = {**os.environ, "OCL_ICD_VENDORS": os.path.join(build, "tests", "emulator", "vendors") + "/",
                       "EMULATED_GPU_CHANGE": change, "XDG_CACHE_HOME": folder, "HC_TEST_DEVICE": fault.device}
        if fault.lanes:
            environment["EMULATED_GPU_SEED"] = SEED
        device = {"test_emulated_gpu": [fault.device], "test_operations": ["--device", fault.device]}.get(fault.program, [])
        result = subprocess.run([os.path.join(build, "tests", fault.program), *device, *fault.tests], env=environment,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False, timeout=600)
        with open(change, encoding="utf-8") as file:
            planted = file.read().endswith("found\n")
    if not planted:
        return None, "the text was not compiled"
    lines = [line for line in result.stdout.splitlines() if re.search(r"emulated GPU:|ERROR|FAILED|wrong|is .* not", line)]
    return result.returncode != 0, lines[0].strip() if lines else ""


def table(groups, checks):
    """Rows in Markdown: kinds of faults, how many there are, how many were found, and by what."""
    for kind in KINDS:
        counts = collections.Counter(check for group, check in zip(groups, checks) if group[0].kind == kind)
        yield (f"| {kind} | {sum(counts.values())} | {sum(counts.values()) - counts[None]} | " +
               ", ".join(f"{check}: {counts[check]}" for check in CHECKS if counts[check]) + " |")


def check_of(words):
    return next(check for check, pattern in CHECKS.items() if re.search(pattern, words))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    if not os.path.exists(os.path.join(arguments.build, "tests", "emulator", "vendors")):
        return 77
    every = faults()
    groups = [group for group in every if arguments.only in group[0].what and (arguments.all or group[0].daily or arguments.only)]
    checks = []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for group, results in zip(groups, pool.map(lambda group: [try_fault(arguments.build, fault) for fault in group], groups)):
            found = [(fault, words) for fault, (is_found, words) in zip(group, results) if is_found]
            missed = [fault.device for fault, (is_found, _) in zip(group, results) if is_found is False]
            word = "found " if found else "MISSED"
            print(f"{word} {group[0].what}: " + "; ".join(f"{fault.device}: {words[:110]}" for fault, words in found)
                  + (f" (not on {', '.join(missed)})" if found and missed else ""), flush=True)
            checks.append(check_of(found[0][1]) if found else None)
    print(f"{len(groups)} faults, {'not all' if None in checks else 'all'} found")
    if groups == every:
        print(*table(every, checks), sep="\n")
    return None in checks


if __name__ == "__main__":
    sys.exit(main())
