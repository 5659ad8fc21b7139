"""Compiles every OpenCL program of hctrain for GPUs that need not be there: AMD, NVIDIA, Intel, SPIR-V and Vulkan.

The programs come from tests/programs/list_programs.c, in three sets: the programs of model M; `hot`, the kernels that training spends its
time in, with 4 streams; and those for matrix cores. A kernel fails that spills, or needs more scratch memory than ci/portability.txt says;
so does a call of a function that is defined nowhere, and for Vulkan a fault that ci/spirv.py finds, and a capability or local memory that
ci/portability.txt does not have. Hot kernels also fail if they load more numbers one by one than ci/hot_kernels.txt allows.

Compilers: clang 15 or later (16 for gfx1100, 17 for gfx942, 19 for gfx1201) and libclc; ptxas for NVIDIA's registers; llvm-spirv and
spirv-val; clspv; and the vendors' own, AMD's comgr and Intel's ocloc (ci/vendors.py), whose targets are COMPILER:GPU. Environment: OCLOC
is the program ocloc, COMGR_LIBRARY the library, where another version than the system's is wanted.

A target is skipped if `ci/setup.sh tests` does not install its compiler, or if the compiler does not know the GPU. Exit status: 0 all well,
1 something failed, 2 wrong usage, 3 a compiler that ci/setup.sh installs is missing.
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import spirv
import vendors
from vendors import Failure, run

HERE = os.path.dirname(os.path.abspath(__file__))
BASELINE = os.path.join(HERE, "portability.txt")
LIMITS = os.path.join(HERE, "hot_kernels.txt")
SETS = ("programs", "hot", "matrix_cores")
# For every day a hot program is compiled for one target of each of these groups, whose members are near relatives, in turn.
HOT_TARGETS = (("sm_86",), ("gfx90a", "gfx942", "comgr:gfx90a"), ("gfx1100",), ("comgr:gfx1100",), ("ocloc:dg2-g10", "ocloc:pvc"))
MATRIX_TARGETS = ("sm_86", "gfx90a", "gfx1100", "gfx1201", "intel16")  # for every day
MATRIX_ALONE = ("gfx908", "comgr:gfx908", "intel16", "intel8")  # these get only programs for matrix cores
HOT_CLANG = 15  # the counts of loads in ci/hot_kernels.txt are of this version: clang 19 divides some vectors of 16 bits
# Programs over which a version of clang aborts: 19 takes a load of three words into scalar registers, which only gfx12 has.
ABORTS = {19: r"frame\.cl .*STREAMS=3"}
NOT_HOT = ("attention_gpu.cl", "attention_step.cl", "gemm_blocks.cl", "gemm_parts.cl", "loops.cl")
# Files that others include, which do not distinguish programs.
INCLUDED = ("types.cl", "group.cl", "random.cl", "workarounds.cl", "gemm_c.cl", "hc_gates.cl", "hc_token.cl", "hc_map.cl", "mix_math.cl", "norm.cl",
            "rounding.cl")
CLC = ("/usr/lib/clc", "/usr/share/clc")
NEWEST_CLANG = 40
CLSPV_SECONDS = 120 # it takes less than one, or does not come to an end
SWITCHES = r" (?:BIAS|NORM_SUM|FREEZE_GAMMA|SCALED|CAPPED|GAINED|POSITIONS|EMBED_NORM)=\d| (?:HC_EPS|NORM_EPSILON|SOFTCAP|SCALE|EMBED_EPSILON)=\S+"  # in a program's label

# A target; `clang` is the oldest that knows it, None where the compiler is another. `addresses`: clspv's kernels get buffers so. `matrix`:
# whose programs for matrix cores it gets, None: those that are for a target of its own name.
Target = collections.namedtuple("Target", "name vendor clang addresses matrix", defaults=(False, None))
TARGETS = [
    Target("gfx906", "AMD", 15),
    Target("sm_86", "NVIDIA", 15),
    Target("gfx90a", "AMD", 15),
    Target("spirv64", "SPIR-V", 15),
    Target("gfx1030", "AMD", 15),
    Target("sm_90", "NVIDIA", 15),
    Target("gfx1100", "AMD", 16), # clang 15 gives gfx11 half of its registers
    Target("gfx942", "AMD", 17),
    Target("gfx1201", "AMD", 19),
    Target("gfx908", "AMD", 15),      # matrix cores alone
    Target("intel16", "Intel", 15),   # by the width of sub-groups; matrix cores alone
    Target("intel8", "Intel", 15),
    Target("vulkan", "Vulkan", None),         # clspv, as runtime/vulkan calls it,
    Target("vulkan64", "Vulkan", None, True), # and for devices where kernels get addresses of buffers
    *(Target(f"comgr:{gpu}", "comgr", None, matrix=gpu)
      for gpu in ("gfx906", "gfx908", "gfx90a", "gfx1030", "gfx1100", "gfx942", "gfx1201")),
    Target("ocloc:dg2-g10", "ocloc", None, matrix="intel8"),
    Target("ocloc:bmg", "ocloc", None, matrix="intel16"),
    Target("ocloc:pvc", "ocloc", None, matrix="intel16"),
]
# The vendors' own compilers, and the packages in which ci/setup.sh finds them. They get programs of four streams in fp32 and bf16, for
# every day one of OWN_SHARES.
OWN_COMPILERS = {"comgr": ("libamd-comgr3", "libamd-comgr2"), "ocloc": ("intel-ocloc", "intel-opencl-icd")}
NOT_FOR_OWN_COMPILERS = r"STREAMS=[^4]|LENGTH=(?!768\b|3072\b)| ACT=2"
OWN_SHARES = 32

# Of a kernel: registers (AMD: vector registers), bytes of scratch (private memory of a work-item), spills (NVIDIA: bytes; others:
# registers); for Vulkan bytes of local memory and the capabilities that the device must have; for NVIDIA loads of 16 and of 32 bits from
# global memory; for the vendors' own compilers the work-items that share an instruction.
Usage = collections.namedtuple("Usage", "registers scratch spills local capabilities halves scalars width",
                               defaults=(0, frozenset(), 0, 0, None))


# ---- what to compile


class Program:
    """One text with the options that it mentions. `target`: the GPU whose matrix cores it is for, or "". `listed`: what list_programs prints
    for some compilers. `intel`: options that only Intel's driver gets. `label` distinguishes programs of the same files."""

    def __init__(self, files, text, options, target, listed):
        self.files, self.text, self.target, self.listed = files, text, target, listed
        self.intel = tuple(option for option in options if option.startswith("-cl-intel-"))
        self.options = tuple(option for option in options if option not in self.intel)
        own = [name for name in files.split(", ") if name not in INCLUDED and not name.startswith(("norm_", "activation_"))]
        shape = [option[2:] for option in options
                 if re.match(r"-D(?!P_|LANES=|VEC_MAX=|VEC=|THETA=|SINKHORN_ITERATIONS=|VOCABULARY=)\w+=", option)]
        self.file = own[0]
        self.label = " ".join(own + sorted(shape))


def mentioned(text, options):
    """The options but for definitions of what the text does not name. ACT, the type of activations, counts only where one
    of the names that types.cl has for them is used elsewhere."""
    names = set(re.findall(r"\w+", text))
    pieces = re.split(r'#line \d+ "([^"]+)"\n', text)[1:]
    if not re.search(r"\b(act_t|ACT_\w+|ACT)\b", "".join(piece for file, piece in zip(pieces[::2], pieces[1::2])
                                                        if file not in ("types.cl", "workarounds.cl"))):
        names.discard("ACT")
    return tuple(option for option in options.split()
                 if not option.startswith("-D") or option[2:].split("=")[0] in names)


def read_programs(path, everything, lanes):
    """All programs, each once, sorted by label; `everything`: in all widths and combinations of switches."""
    listed = json.loads(subprocess.run([path, str(lanes)] + ["all"] * everything, check=True, stdout=subprocess.PIPE).stdout)
    found = {}
    for entry in listed["programs"]:
        text = listed["texts"][entry["files"]]
        options = mentioned(text, entry["options"])
        found.setdefault((entry["files"], options, entry["target"]), Program(entry["files"], text, options, entry["target"], listed))
    return sorted(found.values(), key=lambda program: program.label)


def pairs_of(name, programs, targets, everything):
    """The pairs of target and program of a set."""
    if name == "matrix_cores":
        pairs = [(target, program) for target in targets for program in programs if program.target == (target.matrix or target.name)]
        return [(target, program) for place, (target, program) in enumerate(pairs)
                if everything or (target.name in MATRIX_TARGETS and place % 2 == 0)
                or (target.vendor in OWN_COMPILERS and place % OWN_SHARES == 0 and "attention" not in program.file)]
    programs = [program for program in programs if not program.target]
    targets = [target for target in targets if target.name not in MATRIX_ALONE]
    if name == "hot":
        hot = hot_programs(programs, everything)
        if everything:
            names = {name for group in HOT_TARGETS for name in group}
            return [(target, program) for program in hot for target in targets if target.name in names or target.vendor in OWN_COMPILERS]
        return [(target, program) for place, program in enumerate(hot) for target in targets
                if target.name in (group[place % len(group)] for group in HOT_TARGETS)]
    return deal(programs, targets, everything)


def hot_programs(programs, everything):
    """Model M's programs in bf16, and with `everything` in fp32, too, with 4 streams where they depend on them; of two that differ in a
    switch the one that has it on."""
    found = {}
    for program in programs:
        options = " ".join(program.options)
        other_width = program.file == "projections.cl" and "-DLENGTH=3072" not in options
        if not (program.file in NOT_HOT or "-DACT=2" in options or ("-DACT=0" in options and not everything) or "-DPLAIN=1" in options
                or other_width or ("-DSTREAMS=" in options and "-DSTREAMS=4" not in options)):
            found[re.sub(SWITCHES, "", program.label)] = program
    return list(found.values())


def deal(programs, targets, everything):
    """Pairs of target and program: all of them, or few enough for every day. Of programs that differ in the type of activations and in
    switches only, one in turn is compiled for one of the targets that clang 15 knows, and of every second kind of them the others for
    SPIR-V, which is quick. Programs of four streams are in the set `hot`; those of 3 and 5 to 7 are left out. For Vulkan it is every
    third kind, and every sixth with addresses of buffers, because clspv has faults of its own. Each of the vendors' own targets gets
    another share of the programs that they get at all."""
    ours = [program for program in programs if not re.search(NOT_FOR_OWN_COMPILERS, program.label)]
    if everything:
        return [(target, program) for target in targets for program in (ours if target.vendor in OWN_COMPILERS else programs)]
    # from all targets, so that a compiler that is missing here does not change the shares of others
    programs = [program for program in programs if not re.search(r"STREAMS=[3567]", program.label)]
    dealt = [target for target in TARGETS[:6] if target.clang == 15]
    quick = next(target for target in dealt if target.vendor == "SPIR-V")
    kinds, switched = {}, {}
    for program in programs:
        kinds.setdefault(re.sub(r" ACT=\d", "", program.label), []).append(program)
    for place, (label, kind) in enumerate(kinds.items()):
        pair = dealt[place % len(dealt)], kind[place % len(kind)]
        switched.setdefault(re.sub(SWITCHES, "", label), []).append(pair)
    pairs = [(target if turn == place % len(alike) else quick, program)
             for place, alike in enumerate(switched.values()) for turn, (target, program) in enumerate(alike)
             if turn == place % len(alike) or place % 2 == 0]
    vulkan = [(target, alike[place % len(alike)][1]) for target in targets if target.vendor == "Vulkan"
              for place, alike in enumerate(switched.values())
              if (place % 6 == 1 if target.addresses else place % 3 == 0)]
    own = [target for target in TARGETS if target.vendor in OWN_COMPILERS and target.name not in MATRIX_ALONE]
    others = [(target, program) for turn, target in enumerate(own) if target in targets for program in ours[turn % OWN_SHARES::OWN_SHARES]]
    return vulkan + others + [pair for pair in pairs if pair[0] in targets and "STREAMS=4" not in pair[1].label]


# ---- compilers

SETUP_INSTALLS = "ci/setup.sh tests installs it"
TRIPLES = {"AMD": "amdgcn-amd-amdhsa", "NVIDIA": "nvptx64-nvidia-nvcl"}
# ROCm's OpenCL does not define these macros of the target, nor that of its name, so kernels may not depend on them.
NOT_IN_ROCM = ["-U__GFX9__", "-U__GFX11__", "-U__GFX12__"]
# Of Intel's extensions for matrix cores: the macros, which the driver defines and ocloc 22.43 does not, and the functions that kernels call.
INTEL_MATRIX = tuple(f"-Dcl_intel_{name}=1" for name in ("subgroup_matrix_multiply_accumulate", "subgroup_local_block_io", "bfloat16_conversions"))
INTEL_FUNCTIONS = "".join(
    f"float8 __attribute__((overloadable)) intel_sub_group_{name}_matrix_mad_k16({a} a, int8 b, float8 c);\n"
    for name in ("bf16_bf16", "f16_f16") for a in ("short8", "int8")) + """float intel_sub_group_shuffle_xor(float x, uint bit);
uint8 intel_sub_group_block_read8(const __local uint *from);
ushort8 intel_sub_group_block_read_us8(const __local ushort *from);
void sub_group_barrier(uint flags);
"""


class Tools:
    """The compilers that are here; `missing` lists in words what is not."""

    def __init__(self, ptxas):
        self.clangs = [version for version in range(15, NEWEST_CLANG) if shutil.which(f"clang-{version}")]
        self.ptxas = ptxas or shutil.which("ptxas")
        release = subprocess.run([self.ptxas, "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout if self.ptxas else ""
        self.ptxas_release = (re.search(r"release ([\d.]+)", release) or ["", "of no known release"])[1]
        self.validator = shutil.which("spirv-val")
        self.clspv = shutil.which("clspv")
        self.own = {name: find(compiler) for name, compiler in (("comgr", vendors.Comgr), ("ocloc", vendors.Ocloc))}
        self.translators = [version for version in self.clangs if shutil.which(f"llvm-spirv-{version}")]
        self.libraries = {vendor: next((os.path.join(folder, name) for folder in CLC
                                        if os.path.exists(os.path.join(folder, name))), None)
                          for vendor, name in (("AMD", "amdgcn--amdhsa.bc"), ("NVIDIA", "nvptx64--nvidiacl.bc"))}
        self.readers = {vendor: [version for version in self.clangs if library and self.reads(version, vendor, library)]
                        for vendor, library in self.libraries.items()}

    @staticmethod
    def reads(version, vendor, library):
        """Whether that clang reads the library: it may be a newer one's, since Mesa brings that of its own version."""
        command = [f"clang-{version}", "-x", "cl", "-target", TRIPLES[vendor], "-nogpulib", "-Xclang", "-mlink-builtin-bitcode",
                   "-Xclang", library, "-S", "-", "-o", os.devnull]
        return subprocess.run(command, input=b"kernel void nothing(void) {}", stderr=subprocess.DEVNULL, check=False).returncode == 0

    def clang(self, target):
        """The oldest version that will do; None if there is none."""
        versions = self.readers.get(target.vendor, self.clangs)
        if target.vendor == "SPIR-V":
            # clang emits SPIR-V itself since 22
            versions = [version for version in versions if version in self.translators or version >= 22]
        return next((version for version in versions if version >= target.clang), None)

    def aborts(self, target, program):
        """Whether the compiler is known to end over a program."""
        expression = ABORTS.get(self.clang(target)) if target.vendor == "AMD" and target.name != "gfx1201" else None
        return expression is not None and re.search(expression, program.label) is not None

    def lacks(self, target):
        """Why the target cannot be compiled for, or None."""
        if target.vendor == "Vulkan":
            return "no clspv: ci/setup.sh vulkan installs it" if not self.clspv else None if self.validator else "no spirv-val"
        if target.vendor in OWN_COMPILERS:
            return self.own_compiler_lacks(target)
        if not self.libraries.get(target.vendor, True):
            return f"no libclc for {target.vendor} in " + " or ".join(CLC)
        if self.clang(target) is None:
            also = " with llvm-spirv of the same version" if target.vendor == "SPIR-V" else " that reads libclc"
            return f"no clang-{target.clang} or later{also}"
        return "no spirv-val" if target.vendor == "SPIR-V" and not self.validator else None

    def own_compiler_lacks(self, target):
        own = self.own[target.vendor]
        if not own:
            return f"no {target.vendor}" + (f": {SETUP_INSTALLS}" if release_has(OWN_COMPILERS[target.vendor]) else "")
        return None if own.knows(gpu_of(target)) else f"{target.vendor} {own.version} does not know {gpu_of(target)}"


def find(compiler):
    """One of the vendors' own compilers, or None."""
    try:
        return compiler()
    except Failure:
        return None


def release_has(packages):
    """Whether apt knows one of the packages, so that ci/setup.sh installs it."""
    return shutil.which("apt-cache") is not None and any(
        subprocess.run(["apt-cache", "show", package], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0
        for package in packages)


def gpu_of(target):
    """What a vendor's own compiler calls the GPU."""
    return target.name.partition(":")[2]


def clang_command(tools, target, *arguments):
    return [f"clang-{tools.clang(target)}", "-x", "cl", "-Werror", "-Wno-linker-warnings", "-Wno-pass-failed", "-O3",
            *arguments, "-", "-o", "-"]


def with_library(tools, target):
    """libclc's built-in functions, as the vendor's compiler would link its own: without them registers are guesses."""
    return ["-S", "-Xclang", "-mlink-builtin-bitcode", "-Xclang", tools.libraries[target.vendor]]


def amd_assembly(tools, target, program):
    command = clang_command(tools, target, "-target", TRIPLES["AMD"], f"-mcpu={target.name}", "-nogpulib",
                            *([*NOT_IN_ROCM, f"-U__{target.name}__"] if program.target else []), *with_library(tools, target), *program.options)
    return run(command, program.text.encode())[0].decode()


def amd_metadata(assembly):
    """{kernel: {key: value}}, as the text says at its end."""
    found = {}
    kernels = assembly.split("\namdhsa.kernels:")[1].split("\namdhsa.")[0]
    for kernel in re.split(r"^  - ", kernels, flags=re.M)[1:]:
        found[re.search(r"^    \.name:\s+(\w+)$", kernel, re.M)[1]] = dict(re.findall(r"\.(\w+):\s+(\w+)$", kernel, re.M))
    return found


def compile_amd(tools, target, program):
    assembly = amd_assembly(tools, target, program)
    defined = set(re.findall(r"^([\w.$]+):", assembly, re.M))
    called = set(re.findall(r"([\w.$]+)@(?:rel32|gotpcrel32)@lo", assembly))
    require_defined(called - defined)
    return {name: Usage(int(value["vgpr_count"]), int(value["private_segment_fixed_size"]), int(value["vgpr_spill_count"]))
            for name, value in amd_metadata(assembly).items()}


def require_defined(undefined):
    if undefined:
        raise Failure("calls functions that are defined nowhere: " + ", ".join(sorted(undefined)))


def ptx_loads(assembly):
    """{kernel: (loads of 16 bits or less, loads of 32 bits)} from global memory."""
    counts = {}
    for part in re.split(r"\.entry ", assembly)[1:]:
        bits = [int(bits) for bits in re.findall(r"\bld\.global(?:\.nc)?\.[usfb](\d+)\b", part.split("\n}\n")[0])]
        counts[re.match(r"\w+", part)[0]] = sum(one < 32 for one in bits), sum(one == 32 for one in bits)
    return counts


def nvidia_assembly(tools, target, program):
    options = [option for option in program.options if not option.startswith("-cl-nv-")]
    features = ["-Xclang", "-target-feature", "-Xclang", "+ptx75"] if program.target else []
    command = clang_command(tools, target, "-target", TRIPLES["NVIDIA"], "-Xclang", "-target-cpu", "-Xclang", "sm_86", *features,
                            *with_library(tools, target), *options)
    return run(command, program.text.encode())[0]


def assemble(tools, target, program, assembly, output):
    """ptxas's report on the kernels of PTX, which it assembles to a file."""
    bounds = ["--maxrregcount=" + option.split("=")[1] for option in program.options if option.startswith("-cl-nv-maxrregcount")]
    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        file.write(assembly)
        file.flush()
        report = run([tools.ptxas, "-v", *bounds, f"-arch={target.name}", file.name, "-o", output])[1]
    return report.split("Compiling entry function")[1:]


def compile_nvidia(tools, target, program):
    assembly = nvidia_assembly(tools, target, program)
    require_defined(set(re.findall(r"^\.extern \.func.*?(\w+)$", assembly.decode(), re.M)))
    loads = ptx_loads(assembly.decode())
    if not tools.ptxas:
        return {name: Usage(None, 0, 0, halves=halves, scalars=scalars) for name, (halves, scalars) in loads.items()}
    usage = {}
    for part in assemble(tools, target, program, assembly, os.devnull):
        name = re.search(r"'(\w+)'", part)[1]
        registers, stack, spills = (int(re.search(pattern, part)[1])
                                    for pattern in (r"Used (\d+) registers", r"(\d+) bytes stack frame", r"(\d+) bytes spill stores"))
        usage[name] = Usage(registers, stack, spills, halves=loads[name][0], scalars=loads[name][1])
    return usage


def compile_intel(tools, target, program):
    """To LLVM's form of SPIR-V: whether Intel's compiler spills is not known."""
    run(clang_command(tools, target, "-target", "spir64-unknown-unknown", "-emit-llvm", "-c", *program.options),
        (INTEL_FUNCTIONS + program.text).encode())
    return {name: Usage(None, 0, 0) for name in re.findall(r"(?:__)?kernel\s+void\s+(\w+)", program.text)}


def compile_spirv(tools, target, program):
    version = tools.clang(target)
    if version in tools.translators:
        pointers = ["-Xclang", "-no-opaque-pointers"] if version == 15 else []
        # llvm-spirv takes what the front end gives: optimised code has instructions that SPIR-V lacks
        command = clang_command(tools, target, "-target", "spir64", "-O1", "-Xclang", "-disable-llvm-passes",
                                "-emit-llvm", "-c", *pointers)
        bitcode = run(command + list(program.options), program.text.encode())[0]
        module = run([f"llvm-spirv-{version}", "--spirv-max-version=1.2", "-", "-o", "-"], bitcode)[0]
    else:
        command = clang_command(tools, target, "-target", "spirv64", "-O1", "-c")
        module = run(command + list(program.options), program.text.encode())[0]
    run([tools.validator, "--target-env", "opencl2.1", "-"], module)
    if spirv.Module(module).by_value:
        raise Failure("a function takes or returns a structure by value, copies of which Mesa's compiler keeps in memory: hand over a pointer")
    return {name: Usage(None, 0, 0) for name in re.findall(r"__kernel\s+void\s+(\w+)", program.text)}


def vulkan_module(tools, clspv, options, text):
    """What clspv makes of a text for the driver."""
    with tempfile.TemporaryDirectory() as folder:
        source, code = os.path.join(folder, "program.cl"), os.path.join(folder, "program.spv")
        with open(source, "w", encoding="utf-8") as file:
            file.write(clspv["before"] + text)
        run([tools.clspv, *clspv["options"], *options, source, "-o", code], seconds=CLSPV_SECONDS)
        run([tools.validator, "--target-env", "vulkan1.2", code])
        with open(code, "rb") as file:
            return spirv.Module(file.read())


def compile_vulkan(tools, target, program):
    clspv = program.listed["clspv"]
    addresses = clspv["addresses"] if target.addresses else []
    module = vulkan_module(tools, clspv, [*addresses, *program.options], program.text)
    faults = spirv.faults(module)
    if faults:
        raise Failure("\n    ".join(faults))
    capabilities = frozenset(module.capabilities)
    return {name: Usage(None, 0, 0, local, capabilities) for name, local in module.local_bytes().items()}


def own_options(target, program):
    if target.vendor != "ocloc":
        return list(program.options)
    return [*program.options, *program.intel, *(INTEL_MATRIX if program.target else program.listed["intel"][target.matrix].split())]


def compile_own(tools, target, program):
    kernels = tools.own[target.vendor].compile(gpu_of(target), own_options(target, program), program.text)
    return {name: Usage(numbers.registers, numbers.scratch, numbers.spills, width=numbers.width) for name, numbers in kernels.items()}


COMPILE = {"AMD": compile_amd, "NVIDIA": compile_nvidia, "Intel": compile_intel, "SPIR-V": compile_spirv, "Vulkan": compile_vulkan,
           "comgr": compile_own, "ocloc": compile_own}


def compile_all(tools, pairs, jobs):
    """Returns ({(target, program): {kernel: usage}}, [texts of failures])."""
    results, failures = {}, []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        # the slowest begin first
        slow = sorted(pairs, key=lambda pair: ("attention" not in pair[1].file, pair[0].vendor))
        futures = {pool.submit(COMPILE[pair[0].vendor], tools, *pair): pair for pair in slow}
        for future in concurrent.futures.as_completed(futures):
            target, program = futures[future]
            try:
                results[target, program] = future.result()
            except Failure as failure:
                failures.append(f"{target.name}: {program.label}: {failure}")
    return results, sorted(failures)


# ---- the baseline: kernels that use scratch memory


def family(program, kernel):
    """What a line of the baseline is about: widths and switches are left out, the worst of them counts."""
    streams = re.search(r"STREAMS=\d+", program.label)
    return " ".join([program.file, kernel] + ([streams[0]] if streams else []))


def worst(results):
    """{(target's name, family): usage}: the highest of all programs of a family."""
    found = {}
    for (target, program), kernels in results.items():
        for kernel, usage in kernels.items():
            key = target.name, family(program, kernel)
            old = found.get(key, usage)
            found[key] = Usage(max(old.registers or 0, usage.registers or 0) or None, max(old.scratch, usage.scratch),
                                 max(old.spills, usage.spills))
    return found


def needs_of(results):
    """{file: (most bytes of local memory that a kernel has, capabilities)} of Vulkan's modules."""
    found = {}
    for (target, program), kernels in results.items():
        for usage in kernels.values() if target.vendor == "Vulkan" and not target.addresses else ():
            local, capabilities = found.get(program.file, (0, frozenset()))
            found[program.file] = max(local, usage.local), capabilities | usage.capabilities
    return found


def baseline_read():
    """Returns ({(target's name, family): (scratch, spills)}, {target's name: compiler}, {file: as needs_of})."""
    known, compilers, needs = {}, {}, {}
    with open(BASELINE, encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if line.startswith("target "):
                compilers[words[1]] = words[2]
            elif line.startswith("needs "):
                needs[words[1]] = int(words[2]), frozenset(words[3:])
            elif words and not line.startswith("#"):
                known[words[0], " ".join(words[3:])] = int(words[1]), int(words[2])
    return known, compilers, needs


def compiler_name(tools, target):
    """The name of the compiler in the baseline: numbers of different compilers cannot be compared."""
    if target.vendor == "Vulkan":
        return "clspv"
    if target.vendor in OWN_COMPILERS:
        return f"{target.vendor}-{tools.own[target.vendor].version}"
    ptxas = f"+ptxas-{tools.ptxas_release}" if target.vendor == "NVIDIA" and tools.ptxas else ""
    return f"clang-{tools.clang(target)}{ptxas}"


def baseline_write(tools, targets, results, found):
    """Replaces the lines of what was compiled now; others stay."""
    known, compilers, needs = baseline_read()
    needs.update(needs_of(results))
    compilers.update({target.name: compiler_name(tools, target) for target in targets})
    known.update({key: (usage.scratch, usage.spills) for key, usage in found.items()})
    with open(BASELINE, "w", encoding="utf-8") as file:
        file.write("# Written by `ci/portability.py --update`. A line `target`: the compiler that the target's other lines are of. A line\n"
                   "# `needs`: a file, the most bytes of local memory of a kernel, capabilities that Vulkan must have. Other lines: kernels\n"
                   "# that use scratch memory, the worst of all widths and switches: target, bytes of scratch of a work-item, spills\n"
                   "# (NVIDIA: bytes, others: registers), file, kernel.\n")
        for target, compiler in compilers.items():
            file.write(f"target {target} {compiler}\n")
        for name, (local, capabilities) in sorted(needs.items()):
            file.write(f"needs {name} {local} {' '.join(sorted(capabilities))}\n")
        for (target, name), (scratch, spills) in sorted(known.items()):
            if scratch or spills:
                file.write(f"{target} {scratch} {spills} {name}\n")


def is_new_variant(name, names):
    """Whether the name of a kernel or file belongs to a residual variant that the baseline does not know."""
    file = name.split()[0]
    return file.startswith("hc_") and not any(known.split()[0] == file for known in names)


def allowed(target, name, usage, known):
    """The most (scratch, spills). A variant that is not in the baseline may not spill with up to four streams; the matrices of more do not fit
    into registers."""
    old = known.get((target, name), (0, 0))
    if not is_new_variant(name, [line for of, line in known if of == target]):
        return old
    return usage.scratch, 0 if int(name.rpartition("STREAMS=")[2] or 1) <= 4 else usage.spills


def compare(tools, targets, found):
    """Returns texts of kernels that are worse than the baseline."""
    known, compilers, _ = baseline_read()
    same = {target.name for target in targets if compilers.get(target.name) == compiler_name(tools, target)}
    for target in targets:
        if target.vendor in ("AMD", "NVIDIA", *OWN_COMPILERS) and target.name not in same:
            print(f"{target.name}: scratch not compared: the baseline is of "
                  f"{compilers.get(target.name, 'no compiler')}, this is {compiler_name(tools, target)}")
    worse = []
    for (target, name), usage in sorted(found.items()):
        scratch, spills = allowed(target, name, usage, known)
        if target in same and (usage.scratch > scratch or usage.spills > spills):
            worse.append(f"{target}: {name}: {usage.scratch} bytes of scratch and {usage.spills} spilled, "
                         f"the baseline has {scratch} and {spills}")
    return worse


def compare_needs(results):
    """Returns texts of modules for Vulkan that need more than the baseline says."""
    known, wrong = baseline_read()[2], []
    of_variants = frozenset().union(*(capabilities for name, (_, capabilities) in known.items() if name.startswith("hc_")))
    for name, (local, capabilities) in sorted(needs_of(results).items()):
        least, before = known.get(name, (0, of_variants if is_new_variant(name, known) else frozenset()))
        if local > least:
            wrong.append(f"vulkan: {name}: a kernel has {local} bytes of local memory, the baseline has {least}")
        if capabilities - before:
            wrong.append(f"vulkan: {name}: needs {', '.join(sorted(capabilities - before))}, which the baseline has not")
    return wrong


# ---- hot kernels

# The most loads of 16 and of 32 bits (None: any number), and bytes of scratch or of NVIDIA's stack, and on Intel's GPUs.
Limit = collections.namedtuple("Limit", "halves scalars scratch intel")


def limits_read():
    """{"file kernel": Limit}"""
    limits = {}
    with open(LIMITS, encoding="utf-8") as file:
        for line in file:
            words = line.split(None, 6)
            if words and not line.startswith("#"):
                limits[f"{words[0]} {words[1]}"] = Limit(int(words[2]), None if words[3] == "any" else int(words[3]), *map(int, words[4:6]))
    return limits


def limit_of(name, limits):
    """The limit of "file kernel": a line of its own, or else the first whose file is a pattern that fits; None without one."""
    return limits.get(name) or next((limits[line] for line in limits if fnmatch.fnmatchcase(name, line)), None)


def judge_one(target, name, usage, limit):
    scratch = limit.intel if target.vendor == "ocloc" else limit.scratch
    checks = [(usage.halves, limit.halves, "loads of 16 bits"), (usage.scratch, scratch, "bytes of stack or scratch"),
              (usage.spills, usage.spills if scratch else 0, "spills")]
    if limit.scalars is not None:
        checks.append((usage.scalars, limit.scalars, "loads of 32 bits"))
    return [f"{target.name}: {name}: {value} {what}, {most} are allowed" for value, most, what in checks if value > most]


def judge_hot(tools, results):
    """Returns texts of hot kernels that ci/hot_kernels.txt does not allow, or does not know."""
    limits, names, wrong = limits_read(), set(), []
    for (target, program), kernels in results.items():
        for kernel, usage in kernels.items():
            name = f"{program.file} {kernel}"
            names.add(name)
            if target.vendor == "NVIDIA" and tools.clang(target) != HOT_CLANG:
                usage = usage._replace(halves=0, scalars=0)
            wrong += judge_one(target, name, usage, limit_of(name, limits) or Limit(0, None, 0, 0))
    wrong += [f"{name}: no line in ci/hot_kernels.txt" for name in names if not limit_of(name, limits)]
    wrong += [f"{line}: in ci/hot_kernels.txt, but not compiled" for line in limits if names and not fnmatch.filter(names, line)]
    return sorted(set(wrong))


def fp16_failures(tools, target, programs, jobs):
    """Returns texts of programs that convert vectors of fp16 in global memory: NVIDIA's own compiler makes 16-bit loads and stores of
    vloada_half4 and the like. Of the programs of the same files one in fp16 is compiled."""
    chosen = {}
    for program in programs:
        if not program.target and (program.files not in chosen or "-DACT=2" in program.options):
            chosen[program.files] = program

    def one(program):
        command = clang_command(tools, target, "-target", TRIPLES["NVIDIA"], "-S", "-emit-llvm", "-Xclang", "-disable-llvm-passes",
                                *program.options)
        code = run(command, program.text.encode())[0]
        called = re.findall(rb"call .*@_Z\d+(v(?:load|store)a?_half\d\w*)PU3AS1", code)
        return [f"{program.label}: {name.decode()} of global memory" for name in sorted(set(called))]

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return [text for texts in pool.map(one, chosen.values()) for text in texts]


# ---- output


def print_targets(tools, targets, results):
    for target in targets:
        own = [usage for (of, _), kernels in results.items() if of is target for usage in kernels.values()]
        registers = max((usage.registers or 0 for usage in own), default=0)
        print(f"{target.name}: {compiler_name(tools, target)}: {sum(of is target for of, _ in results)} programs, {len(own)} kernels, "
              f"{registers or 'unknown'} registers at most, {sum(usage.scratch > 0 for usage in own)} kernels with scratch, "
              f"{sum(usage.spills > 0 for usage in own)} with spills")


def print_kernels(results):
    print(f"{'target':13} {'registers':>9} {'width':>5} {'scratch':>8} {'spills':>7}  kernel of program")
    for (target, program), kernels in sorted(results.items(), key=lambda item: (item[0][0].name, item[0][1].label)):
        for kernel, usage in sorted(kernels.items()):
            registers = "-" if usage.registers is None else usage.registers
            print(f"{target.name:13} {registers:>9} {usage.width or '-':>5} {usage.scratch:>8} {usage.spills:>7}  "
                  f"{kernel} of {program.label}")


# ---- main


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=SETS, help="only this set of programs (default: all three)")
    parser.add_argument("--all", action="store_true", help="every program for every target, and hot kernels in fp32, too; the "
                        "vendors' own compilers get those of 4 streams in fp32 and bf16 (many minutes)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of the pairs of target and program every Nth")
    parser.add_argument("--widths", action="store_true", help="other widths than model M's, too, and all combinations of switches")
    parser.add_argument("--target", action="append", metavar="NAME", choices=[target.name for target in TARGETS],
                        help="only this target; may be repeated: " + " ".join(target.name for target in TARGETS))
    parser.add_argument("--lanes", type=int, default=64, help="work-items that share a row (64; tests use 8, too)")
    parser.add_argument("--kernels", action="store_true", help="print registers, scratch and spills of every kernel")
    parser.add_argument("--update", action="store_true", help="rewrite ci/portability.txt; implies --all")
    parser.add_argument("--programs", metavar="FILE", default="build/tests/list_programs", help="the built list_programs")
    parser.add_argument("--ptxas", metavar="FILE", help="NVIDIA's assembler (default: the one in PATH)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at a time")
    return parser.parse_args()


def usable(tools, wanted):
    """Returns the targets whose compilers are there, and the exit status: 3 if one is missing that ci/setup.sh installs."""
    targets, status = [], 0
    for target in wanted:
        reason = tools.lacks(target)
        if not reason:
            targets.append(target)
            continue
        print(f"{target.name}: SKIPPED: {reason}")
        status = 3 if target.clang == 15 or reason.endswith(SETUP_INSTALLS) else status
    if not tools.ptxas and any(target.vendor == "NVIDIA" for target in targets):
        print("NVIDIA: no ptxas: PTX is made, registers and spills are not known")
    return targets, status


def main():
    options = parse()
    tools = Tools(options.ptxas)
    if not os.access(options.programs, os.X_OK):
        sys.exit(f"ci/portability.py: there is no {options.programs}: ci/build.sh builds it")
    programs = read_programs(options.programs, options.widths, options.lanes)
    wanted = [target for target in TARGETS if not options.target or target.name in options.target]
    everything = options.all or options.update
    pairs = {name: pairs_of(name, programs, wanted, everything)[::options.every] for name in SETS if options.set in (None, name)}
    needed = {target.name for own in pairs.values() for target, _ in own}
    targets, status = usable(tools, [target for target in wanted if target.name in needed])
    results, failures = {}, []
    for name, own in pairs.items():
        fresh = [pair for pair in own if pair[0] in targets and pair not in results and not tools.aborts(*pair)]
        compiled, wrong = compile_all(tools, fresh, options.jobs)
        results.update(compiled)
        hot = {pair: results[pair] for pair in own if pair in results} if name == "hot" else {}
        failures += wrong + judge_hot(tools, hot)
    if "hot" in pairs and any(target.name == "sm_86" for target in targets):
        failures += fp16_failures(tools, next(target for target in targets if target.name == "sm_86"), programs, options.jobs)
    found = worst(results)
    if options.kernels:
        print_kernels(results)
    print_targets(tools, targets, results)
    if options.update and not failures and not status:
        baseline_write(tools, targets, results, found)
    failures += compare(tools, targets, found) + compare_needs(results)
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{len(programs)} programs, {len(results)} compilations, {len(failures)} failures")
    return 1 if failures else status


if __name__ == "__main__":
    sys.exit(main())
