"""Compiles every OpenCL program of hctrain for AMD, NVIDIA, SPIR-V and Vulkan, and reports registers, spills and scratch memory.

The programs come from tests/programs/list_programs.c. A kernel that spills, or needs more scratch memory than ci/portability.txt
says, fails; so does a call of a function that no program or library defines, and for Vulkan what ci/spirv.py finds, and a
capability or local memory that ci/portability.txt does not have. Exit status: 0 all well, 1 something failed,
2 wrong usage, 3 a compiler that ci/setup.sh installs is missing.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import spirv

HERE = os.path.dirname(os.path.abspath(__file__))
BASELINE = os.path.join(HERE, "portability.txt")
DOCUMENT = os.path.join(HERE, "..", "docs", "portability.md")
CLC = ("/usr/lib/clc", "/usr/share/clc")
NEWEST_CLANG = 40
CLSPV_SECONDS = 120 # it takes less than one, or does not come to an end
SWITCHES = r" (?:BIAS|NORM_SUM|GELU_TANH|FREEZE_GAMMA|SCALED)=\d"  # in a program's label

# A target; `clang` is the oldest that knows it, None where the compiler is another. `addresses`: clspv's kernels get buffers so.
Target = collections.namedtuple("Target", "name vendor clang addresses", defaults=(False,))
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
    Target("vulkan", "Vulkan", None),         # clspv, as runtime/vulkan calls it,
    Target("vulkan64", "Vulkan", None, True), # and for devices where kernels get addresses of buffers
]

# Registers, bytes of scratch (private memory of a work-item), and spilled registers or bytes of spills. Of AMD's registers the vector
# ones: scalar ones go to a vector register's lanes, which takes an instruction each and no memory.
# Of Vulkan's modules bytes of local memory, and the capabilities that a device must have.
Figures = collections.namedtuple("Figures", "registers scratch spills local capabilities", defaults=(0, frozenset()))


class Failure(Exception):
    pass


# ---- what to compile


class Program:
    """One text with the options that it mentions; `clspv`: that compiler's own, and what it reads before the text. `label` tells it
    from others of the same files."""

    def __init__(self, files, text, options, clspv):
        self.files, self.text, self.options, self.clspv = files, text, options, clspv
        own = [name for name in files.split(", ") if name not in ("common.cl", "hc_gates.cl", "hc_token.cl", "hc_map.cl")]
        shape = [option[2:] for option in options
                 if re.match(r"-D(?!P_|LANES=|VEC_MAX=|VEC=|THETA=|SINKHORN_ITERATIONS=|VOCABULARY=)\w+=", option)]
        self.file = "frame.cl" if "frame.cl" in own else own[0]
        self.label = " ".join(own + sorted(shape))


def mentioned(text, options):
    """The options but for definitions of what the text does not name. ACT, the type of activations, counts only where one
    of common.cl's names for them is used behind it."""
    names = set(re.findall(r"\w+", text))
    common, _, rest = text.partition('#line 1 "common.cl"')[2].partition("#line 1 ")
    if common and not re.search(r"\b(act_t|ACT_\w+)\b", rest):
        names.discard("ACT")
    return tuple(option for option in options.split()
                 if not option.startswith("-D") or option[2:].split("=")[0] in names)


def read_programs(path, everything, lanes=64):
    """All programs, or those of model M without rare combinations of switches; each once, sorted by label."""
    listed = json.loads(subprocess.run([path, str(lanes)], check=True, stdout=subprocess.PIPE).stdout)
    found, cache = {}, {}
    for entry in listed["programs"]:
        if not everything and (entry["rare"] or entry["model"] != "M"):
            continue
        key = (entry["files"], entry["options"])
        if key not in cache:
            cache[key] = mentioned(listed["texts"][key[0]], key[1])
            found.setdefault((key[0], cache[key]), Program(key[0], listed["texts"][key[0]], cache[key], listed["clspv"]))
    return sorted(found.values(), key=lambda program: program.label)


def deal(programs, targets, everything):
    """Pairs of target and program: all of them; or of the programs that differ in the type of activations only (which is
    the same code but for loads and stores) one, for one of the targets that any compiler here knows. Of those that
    differ in switches, too, it is one in turn, and the others are for SPIR-V, which is quick. Programs of four streams are
    hot_kernels.py's, those of other than 1, 2 or 8 are left to --all. For Vulkan it is every second of them beside that, and every
    fourth with addresses of buffers: clspv has faults of its own."""
    if everything:
        return [(target, program) for program in programs for target in targets]
    # not of `targets`: what is missing here may change no other share
    programs = [program for program in programs if not re.search(r"STREAMS=[3567]", program.label)]
    dealt = [target for target in TARGETS if target.clang == 15]
    quick = next(target for target in dealt if target.vendor == "SPIR-V")
    kinds, switched = {}, {}
    for program in programs:
        kinds.setdefault(re.sub(r" ACT=\d", "", program.label), []).append(program)
    for place, (label, kind) in enumerate(kinds.items()):
        pair = dealt[place % len(dealt)], kind[place % len(kind)]
        switched.setdefault(re.sub(SWITCHES, "", label), []).append(pair)
    pairs = [(target if turn == place % len(alike) else quick, program)
             for place, alike in enumerate(switched.values()) for turn, (target, program) in enumerate(alike)]
    vulkan = [(target, alike[place % len(alike)][1]) for target in targets if target.vendor == "Vulkan"
              for place, alike in enumerate(switched.values())
              if (place % 4 == 1 if target.addresses else place % 2 == 0)]
    return vulkan + [pair for pair in pairs if pair[0] in targets and "STREAMS=4" not in pair[1].label]


# ---- compilers

TRIPLES = {"AMD": "amdgcn-amd-amdhsa", "NVIDIA": "nvptx64-nvidia-nvcl"}


class Tools:
    """The compilers that are here; `missing` lists in words what is not."""

    def __init__(self, ptxas):
        self.clangs = [version for version in range(15, NEWEST_CLANG) if shutil.which(f"clang-{version}")]
        self.ptxas = ptxas or shutil.which("ptxas")
        release = subprocess.run([self.ptxas, "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout if self.ptxas else ""
        self.ptxas_release = (re.search(r"release ([\d.]+)", release) or ["", "of no known release"])[1]
        self.validator = shutil.which("spirv-val")
        self.clspv = shutil.which("clspv")
        self.translators = [version for version in self.clangs if shutil.which(f"llvm-spirv-{version}")]
        self.libraries = {vendor: next((os.path.join(folder, name) for folder in CLC
                                        if os.path.exists(os.path.join(folder, name))), None)
                          for vendor, name in (("AMD", "amdgcn--amdhsa.bc"), ("NVIDIA", "nvptx64--nvidiacl.bc"))}
        self.readers = {vendor: [version for version in self.clangs if library and self.reads(version, vendor, library)]
                        for vendor, library in self.libraries.items()}

    @staticmethod
    def reads(version, vendor, library):
        """Whether that clang reads the library: it may be a newer one's, since Mesa brings that of its own version."""
        command = [f"clang-{version}", "-x", "cl", "-target", TRIPLES[vendor], "-nogpulib", "-Xclang", "-mlink-builtin-bitcode", "-Xclang", library, "-S",
                   "-", "-o", os.devnull]
        return subprocess.run(command, input=b"kernel void nothing(void) {}", stderr=subprocess.DEVNULL, check=False).returncode == 0

    def clang(self, target):
        """The oldest version that will do; None if there is none."""
        versions = self.readers.get(target.vendor, self.clangs)
        if target.vendor == "SPIR-V":
            # clang emits SPIR-V itself since 22
            versions = [version for version in versions if version in self.translators or version >= 22]
        return next((version for version in versions if version >= target.clang), None)

    def lacks(self, target):
        """Why the target cannot be compiled for, or None."""
        if target.vendor == "Vulkan":
            return "no clspv: ci/setup.sh vulkan installs it" if not self.clspv else None if self.validator else "no spirv-val"
        if not self.libraries.get(target.vendor, True):
            return f"no libclc for {target.vendor} in " + " or ".join(CLC)
        if self.clang(target) is None:
            also = " with llvm-spirv of the same version" if target.vendor == "SPIR-V" else " that reads libclc"
            return f"no clang-{target.clang} or later{also}"
        return "no spirv-val" if target.vendor == "SPIR-V" and not self.validator else None


def run(command, text=None, seconds=None):
    """(what it wrote, what it said); with a limit in seconds."""
    try:
        result = subprocess.run(command, input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        raise Failure(f"{os.path.basename(command[0])}: no end after {seconds} seconds") from late
    if result.returncode:
        words = result.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {result.returncode}"]
        raise Failure(f"{os.path.basename(command[0])}: " + "\n    ".join(words[:12]))
    return result.stdout, result.stderr.decode(errors="replace")


def clang_command(tools, target, *arguments):
    return [f"clang-{tools.clang(target)}", "-x", "cl", "-Wno-linker-warnings", "-Wno-pass-failed", "-O3",
            *arguments, "-", "-o", "-"]


def with_library(tools, target):
    """libclc's built-in functions, as the vendor's compiler would link its own: without them registers are guesses."""
    return ["-S", "-Xclang", "-mlink-builtin-bitcode", "-Xclang", tools.libraries[target.vendor]]


def compile_amd(tools, target, program):
    command = clang_command(tools, target, "-target", TRIPLES["AMD"], f"-mcpu={target.name}", "-nogpulib",
                            *with_library(tools, target), *program.options)
    assembly = run(command, program.text.encode())[0].decode()
    defined = set(re.findall(r"^([\w.$]+):", assembly, re.M))
    called = set(re.findall(r"([\w.$]+)@(?:rel32|gotpcrel32)@lo", assembly))
    require_defined(called - defined)
    figures = {}
    kernels = assembly.split("\namdhsa.kernels:")[1].split("\namdhsa.")[0]
    for kernel in re.split(r"^  - ", kernels, flags=re.M)[1:]:
        value = dict(re.findall(r"\.(\w+):\s+(\w+)$", kernel, re.M))
        figures[re.search(r"^    \.name:\s+(\w+)$", kernel, re.M)[1]] = Figures(
            int(value["vgpr_count"]), int(value["private_segment_fixed_size"]), int(value["vgpr_spill_count"]))
    return figures


def require_defined(undefined):
    if undefined:
        raise Failure("calls what is defined nowhere: " + ", ".join(sorted(undefined)))


def compile_nvidia(tools, target, program):
    command = clang_command(tools, target, "-target", TRIPLES["NVIDIA"], "-Xclang", "-target-cpu", "-Xclang",
                            "sm_86", *with_library(tools, target), *program.options)
    assembly = run(command, program.text.encode())[0]
    require_defined(set(re.findall(r"^\.extern \.func.*?(\w+)$", assembly.decode(), re.M)))
    if not tools.ptxas:
        return {name: Figures(None, 0, 0) for name in re.findall(r"\.entry (\w+)", assembly.decode())}
    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        file.write(assembly)
        file.flush()
        report = run([tools.ptxas, "-v", f"-arch={target.name}", file.name, "-o", "/dev/null"])[1]
    figures = {}
    for part in report.split("Compiling entry function")[1:]:
        figures[re.search(r"'(\w+)'", part)[1]] = Figures(*(
            int(re.search(pattern, part)[1])
            for pattern in (r"Used (\d+) registers", r"(\d+) bytes stack frame", r"(\d+) bytes spill stores")))
    return figures


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
    return {name: Figures(None, 0, 0) for name in re.findall(r"__kernel\s+void\s+(\w+)", program.text)}


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
    addresses = program.clspv["addresses"] if target.addresses else []
    module = vulkan_module(tools, program.clspv, [*addresses, *program.options], program.text)
    faults = spirv.faults(module)
    if faults:
        raise Failure("\n    ".join(faults))
    capabilities = frozenset(module.capabilities)
    return {name: Figures(None, 0, 0, local, capabilities) for name, local in module.local_bytes().items()}


def vulkan_test(tools, programs):
    """Texts of what is wrong with the check itself: in a module with clspv's fault it must find it, and nothing in what clspv makes of a
    kernel without. And texts of what is no failure, but should be known: that this clspv does not have the fault."""
    assembled = spirv.faults(spirv.Module(run(["spirv-as", "--target-env", "spv1.5", "-", "-o", "-"], spirv.FAULTY_MODULE.encode())[0]))
    made, faultless = (spirv.faults(vulkan_module(tools, programs[0].clspv, ["-cl-std=CL1.2"], text)) for text in (spirv.FAULTY, spirv.FAULTLESS))
    wrong = [f"vulkan: ci/spirv.py finds in a kernel without a fault: {fault}" for fault in faultless]
    for part in ("float[4][1]: an array of arrays", "constant index 1 of 1"):
        if not any(part in fault for fault in assembled):
            wrong.append(f'vulkan: ci/spirv.py does not find "{part}" in a module with the fault: the check is broken')
    return wrong, [] if any("constant index" in fault for fault in made) else [MENDED]


MENDED = ("vulkan: this clspv no longer mixes up the indices of arrays of arrays: once it is the oldest that is used, ci/spirv.py, the rule in "
          "docs/portability.md and the way round it in cl/frame.cl can go")

COMPILE = {"AMD": compile_amd, "NVIDIA": compile_nvidia, "SPIR-V": compile_spirv, "Vulkan": compile_vulkan}


def compile_all(tools, pairs, jobs):
    """({(target, program): {kernel: figures}}, [texts of failures])"""
    results, failures = {}, []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        # what takes long begins first
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
    """{(target's name, family): figures}: the highest of all programs of a family."""
    found = {}
    for (target, program), kernels in results.items():
        for kernel, figures in kernels.items():
            key = target.name, family(program, kernel)
            old = found.get(key, figures)
            found[key] = Figures(max(old.registers or 0, figures.registers or 0) or None,
                                 max(old.scratch, figures.scratch), max(old.spills, figures.spills))
    return found


def needs_of(results):
    """{file: (most bytes of local memory that a kernel has, capabilities)} of Vulkan's modules."""
    found = {}
    for (target, program), kernels in results.items():
        for figures in kernels.values() if target.vendor == "Vulkan" and not target.addresses else ():
            local, capabilities = found.get(program.file, (0, frozenset()))
            found[program.file] = max(local, figures.local), capabilities | figures.capabilities
    return found


def baseline_read():
    """({(target's name, family): (scratch, spills)}, {target's name: cells of its row in the table, compiler first},
    {file: what needs_of has of it})"""
    known, rows, needs = {}, {}, {}
    with open(BASELINE, encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if line.startswith("target "):
                rows[words[1]] = words[2:]
            elif line.startswith("needs "):
                needs[words[1]] = int(words[2]), frozenset(words[3:])
            elif words and not line.startswith("#"):
                known[words[0], " ".join(words[3:])] = int(words[1]), int(words[2])
    return known, rows, needs


def compiler_name(tools, target):
    """As the baseline names it: figures of different compilers are not comparable."""
    if target.vendor == "Vulkan":
        return "clspv"
    ptxas = f"+ptxas-{tools.ptxas_release}" if target.vendor == "NVIDIA" and tools.ptxas else ""
    return f"clang-{tools.clang(target)}{ptxas}"


def baseline_write(tools, targets, results, found):
    """Replaces what was compiled now; what was not stays."""
    known, rows, needs = baseline_read()
    needs.update(needs_of(results))
    rows.update({target.name: summary(tools, target, results) for target in targets})
    known.update({key: (figures.scratch, figures.spills) for key, figures in found.items()})
    with open(BASELINE, "w", encoding="utf-8") as file:
        file.write("# Kernels that use scratch memory on GPUs, the worst of all widths and switches compiled; written by\n"
                   "# `ci/portability.sh --update`. A line: target, bytes of scratch, spilled registers (AMD) or bytes\n"
                   "# (NVIDIA), file, kernel. Before them, after the word target, the rows of the table in the document, and after\n"
                   "# the word needs what Vulkan's modules do: file, most bytes of local memory of a kernel, capabilities.\n")
        for target, cells in rows.items():
            file.write(f"target {target} {' '.join(cells)}\n")
        for name, (local, capabilities) in sorted(needs.items()):
            file.write(f"needs {name} {local} {' '.join(sorted(capabilities))}\n")
        for (target, name), (scratch, spills) in sorted(known.items()):
            if scratch or spills:
                file.write(f"{target} {scratch} {spills} {name}\n")


def is_new_variant(name, names):
    """Whether a kernel's name, or a file's, is of a residual variant that no name of the baseline's is of."""
    file = name.split()[0]
    return file.startswith("hc_") and not any(known.split()[0] == file for known in names)


def allowed(target, name, figures, known):
    """The most (scratch, spills): what the baseline has. A variant that it has nothing of for this target may not spill with up to four streams; the
    matrices of more do not fit registers."""
    old = known.get((target, name), (0, 0))
    if not is_new_variant(name, [line for of, line in known if of == target]):
        return old
    return figures.scratch, 0 if int(name.rpartition("STREAMS=")[2] or 1) <= 4 else figures.spills


def compare(tools, targets, found):
    """Texts of what is worse than the baseline."""
    known, rows, _ = baseline_read()
    compilers = {target: cells[0] for target, cells in rows.items()}
    same = {target.name for target in targets if compilers.get(target.name) == compiler_name(tools, target)}
    for target in targets:
        if target.vendor not in ("SPIR-V", "Vulkan") and target.name not in same:
            print(f"{target.name}: scratch not compared: the baseline is of "
                  f"{compilers.get(target.name, 'no compiler')}, this is {compiler_name(tools, target)}")
    worse = []
    for (target, name), figures in sorted(found.items()):
        scratch, spills = allowed(target, name, figures, known)
        if target in same and (figures.scratch > scratch or figures.spills > spills):
            worse.append(f"{target}: {name}: {figures.scratch} bytes of scratch and {figures.spills} spilled, "
                         f"the baseline has {scratch} and {spills}")
    return worse


def compare_needs(results):
    """Texts of what Vulkan's modules need more than the baseline says."""
    known, wrong = baseline_read()[2], []
    of_variants = frozenset().union(*(capabilities for name, (_, capabilities) in known.items() if name.startswith("hc_")))
    for name, (local, capabilities) in sorted(needs_of(results).items()):
        least, before = known.get(name, (0, of_variants if is_new_variant(name, known) else frozenset()))
        if local > least:
            wrong.append(f"vulkan: {name}: a kernel has {local} bytes of local memory, the baseline has {least}")
        if capabilities - before:
            wrong.append(f"vulkan: {name}: needs {', '.join(sorted(capabilities - before))}, which the baseline has not")
    return wrong


# ---- tables


def summary(tools, target, results):
    """The cells of a target's row: what `table` heads its columns with."""
    own = [kernels for (of, _), kernels in results.items() if of is target]
    figures = [one for kernels in own for one in kernels.values()]
    known = [one.registers for one in figures if one.registers]
    counts = [max(known), sum(one.scratch > 0 for one in figures), sum(one.spills > 0 for one in figures)] if known else []
    return [compiler_name(tools, target)] + [str(count) for count in [len(own), len(figures)] + counts]


def table(rows):
    lines = ["| target | compiler | programs | kernels | most registers | kernels with scratch | with spills |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for target in TARGETS:
        if target.name in rows:
            cells = [target.name] + rows[target.name]
            lines.append("| " + " | ".join(cells + [""] * (7 - len(cells))) + " |")
    return "\n".join(lines)


def needs_table():
    """What Vulkan's modules need, as the baseline has it: a column for each capability that not all need."""
    needs = baseline_read()[2]
    every = frozenset.intersection(*(capabilities for _, capabilities in needs.values())) if needs else frozenset()
    some = sorted(frozenset().union(*(capabilities for _, capabilities in needs.values())) - every)
    lines = ["| file | most local memory, bytes | " + " | ".join(some) + " |", "| --- |" + " --- |" * (len(some) + 1)]
    for name, (local, capabilities) in sorted(needs.items()):
        marks = " | ".join("yes" if one in capabilities else "" for one in some)
        lines.append(f"| `{name}` | {local} | {marks} |")
    return f"Vulkan, beside {', '.join(sorted(every))}:\n\n" + "\n".join(lines)


def scratch_table():
    """The baseline as a row per kernel that uses scratch, a column per target: bytes, over all numbers of streams."""
    rows, targets = {}, []
    for (target, name), (scratch, _) in sorted(baseline_read()[0].items()):
        if scratch:
            streams = re.search(r" STREAMS=(\d+)$", name)
            cell = rows.setdefault(re.sub(r" STREAMS=\d+$", "", name), {}).setdefault(target, [])
            cell.append((int(streams[1]) if streams else 0, scratch))
            targets += [target] if target not in targets else []
    lines = ["| kernel | " + " | ".join(targets) + " |", "| --- |" + " --- |" * len(targets)]
    for name, cells in sorted(rows.items()):
        texts = []
        for target in targets:
            cell = sorted(cells.get(target, []))
            sizes = sorted(size for _, size in cell)
            text = (f"{sizes[0]}..{sizes[-1]}" if len(sizes) > 1 else str(sizes[0])) if sizes else ""
            text += f" (n {cell[0][0]}..{cell[-1][0]})" if cell and cell[0][0] else ""
            texts.append(text)
        lines.append(f"| `{name}` | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def document_write(text):
    """Puts the tables between the markers of docs/portability.md."""
    with open(DOCUMENT, encoding="utf-8") as file:
        before, rest = file.read().split("<!-- tables -->\n", 1)
        after = rest.split("<!-- end of tables -->\n", 1)[1]
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(f"{before}<!-- tables -->\n{text}\n<!-- end of tables -->\n{after}")


def print_kernels(results):
    print(f"{'target':8} {'registers':>9} {'scratch':>8} {'spills':>7}  kernel of program")
    for (target, program), kernels in sorted(results.items(), key=lambda item: (item[0][0].name, item[0][1].label)):
        for kernel, figures in sorted(kernels.items()):
            registers = "-" if figures.registers is None else figures.registers
            print(f"{target.name:8} {registers:>9} {figures.scratch:>8} {figures.spills:>7}  {kernel} of {program.label}")


# ---- main


def parse():
    parser = argparse.ArgumentParser(prog="ci/portability.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every program for every target (many minutes)")
    parser.add_argument("--widths", action="store_true", help="other widths than model M's, too, and all combinations of switches")
    parser.add_argument("--target", action="append", metavar="NAME", choices=[target.name for target in TARGETS],
                        help="only this target; may be repeated")
    parser.add_argument("--lanes", type=int, default=64, help="work-items that share a row (64; tests have 8, too)")
    parser.add_argument("--kernels", action="store_true", help="print the figures of every kernel")
    parser.add_argument("--update", action="store_true",
                        help="rewrite the baseline and the tables of docs/portability.md; implies --all")
    parser.add_argument("--programs", metavar="FILE", default="build/tests/list_programs", help="the built list_programs")
    parser.add_argument("--ptxas", metavar="FILE", help="NVIDIA's assembler (default: the one in PATH)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at a time")
    return parser.parse_args()


def usable(tools, wanted):
    """Targets that can be compiled for. What ci/setup.sh should have installed may not be missing."""
    targets, status = [], 0
    for target in wanted:
        reason = tools.lacks(target)
        if not reason:
            targets.append(target)
            continue
        print(f"{target.name}: SKIPPED: {reason}")
        status = 3 if target.clang == 15 else status
    if not tools.ptxas and any(target.vendor == "NVIDIA" for target in targets):
        print("NVIDIA: no ptxas: PTX is made, registers and spills are not known")
    return targets, status


def main():
    options = parse()
    tools = Tools(options.ptxas)
    wanted = [target for target in TARGETS if not options.target or target.name in options.target]
    targets, status = usable(tools, wanted)
    programs = read_programs(options.programs, options.widths, options.lanes)
    pairs = deal(programs, targets, options.all or options.update)
    targets = [target for target in targets if any(target is pair[0] for pair in pairs)]
    results, failures = compile_all(tools, pairs, options.jobs)
    if any(target.vendor == "Vulkan" for target in targets):
        wrong, notes = vulkan_test(tools, programs)
        failures += wrong
        print(*notes, sep="\n", end="\n" if notes else "")
    found = worst(results)
    if options.kernels:
        print_kernels(results)
    print(table({target.name: summary(tools, target, results) for target in targets}))
    if options.update and not failures and not status:
        baseline_write(tools, targets, results, found)
        document_write(table(baseline_read()[1]) + "\n\nBytes of scratch:\n\n" + scratch_table() + "\n\n" + needs_table())
    failures += compare(tools, targets, found) + compare_needs(results)
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{len(programs)} programs, {len(pairs)} compilations, {len(failures)} failures")
    return 1 if failures else status


if __name__ == "__main__":
    sys.exit(main())
