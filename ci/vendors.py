"""The vendors' own compilers, for ci/portability.py: AMD's comgr, called as ROCm's OpenCL driver calls it, and Intel's ocloc.

As a program it is the process in which comgr runs:

    vendors.py                  prints comgr's version and the GPUs that it compiles for, as JSON
    vendors.py GPU OPTION...    compiles standard input and prints, as JSON, its kernels: {name: Numbers}
"""
import collections
import ctypes
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

# Of a kernel: registers (AMD: vector registers), bytes of scratch memory of a work-item, registers that are spilled there, the work-items
# that share an instruction, and on Intel's GPUs bytes of local memory.
Numbers = collections.namedtuple("Numbers", "registers scratch spills width local", defaults=(0,))

LIBRARIES = [os.environ["COMGR_LIBRARY"]] if "COMGR_LIBRARY" in os.environ else ["libamd_comgr.so.3", "libamd_comgr.so.2"]
ARCHITECTURE = "amdgcn-amd-amdhsa--"
# Numbers of amd_comgr.h: a language, kinds of data, and by version the actions of ROCm's chain, which are to add the precompiled header,
# to compile with the device libraries, to link bitcode, to generate code, and to link the code object.
OPENCL_1_2 = 1
SOURCE, LOG, EXECUTABLE = 1, 5, 8
ACTIONS = {2: (0x1, 0xF, 0x4, 0x6, 0x9), 3: (0x1, 0xC, 0x3, 0x4, 0x7)}
# What ROCm's driver adds to a program's options. With OpenCL C 1.2, too, it defines version 2.0.
FRONT_END = ["-O3", "-D__OPENCL_VERSION__=200", "-D__IMAGE_SUPPORT__=1", "-Xclang", "-cl-ext=+cl_khr_fp64,+cl_khr_fp16,+cl_khr_subgroups",
             "-mllvm", "-amdgpu-prelink"]
BACK_END = ["-O3", "-mllvm", "-amdgpu-internalize-symbols"]


OCLOC_SECONDS = 600


class Failure(Exception):
    """A compiler refused a program, or is not there."""


def run(command, text=None, seconds=None, folder=None):
    """Runs a compiler and returns (standard output, standard error)."""
    name = os.path.basename(command[0])
    try:
        result = subprocess.run(command, input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, timeout=seconds, cwd=folder)
    except subprocess.TimeoutExpired as late:
        raise Failure(f"{name}: no end after {seconds} seconds") from late
    if result.returncode:
        words = (result.stderr or result.stdout).decode(errors="replace").strip().splitlines() or [f"exit status {result.returncode}"]
        raise Failure(f"{name}: " + "\n    ".join(words[:12]))
    return result.stdout, result.stderr.decode(errors="replace")


# ---- AMD's comgr


class Comgr:
    """The library in a process of its own: it ends the process over an instruction that the GPU lacks."""

    def __init__(self):
        known = json.loads(run([sys.executable, __file__])[0])
        self.version, self.gpus = known["version"], known["gpus"]

    def knows(self, gpu):
        return gpu in self.gpus

    def compile(self, gpu, options, text):
        kernels = json.loads(run([sys.executable, __file__, gpu, *options], text.encode())[0])
        return {name: Numbers(*numbers) for name, numbers in kernels.items()}


def open_library(name):
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


class ComgrLibrary:
    """The library, for the child. Its handles are numbers of 64 bits."""

    def __init__(self):
        self.library = next((library for library in map(open_library, LIBRARIES) if library), None)
        if not self.library:
            raise Failure("there is none of " + ", ".join(LIBRARIES))
        major, minor = ctypes.c_size_t(), ctypes.c_size_t()
        self.library.amd_comgr_get_version(ctypes.byref(major), ctypes.byref(minor))
        self.major, self.version = major.value, f"{major.value}.{minor.value}"

    def call(self, function, *arguments):
        status = getattr(self.library, "amd_comgr_" + function)(*arguments)
        if status:
            raise Failure(f"amd_comgr_{function}: status {status}")

    def get(self, function, *arguments, kind=ctypes.c_uint64):
        """Calls a function that writes its result behind its last argument."""
        result = kind()
        self.call(function, *arguments, ctypes.byref(result))
        return result

    def bytes(self, function, handle):
        """Calls a function that reports the size without a place to write to."""
        size = ctypes.c_size_t()
        self.call(function, handle, ctypes.byref(size), None)
        text = ctypes.create_string_buffer(size.value)
        self.call(function, handle, ctypes.byref(size), text)
        return text.raw

    def gpus(self):
        count = self.get("get_isa_count", kind=ctypes.c_size_t).value
        names = [self.get("get_isa_name", ctypes.c_size_t(i), kind=ctypes.c_char_p).value.decode() for i in range(count)]
        return [name[len(ARCHITECTURE):] for name in names if name.startswith(ARCHITECTURE)]

    def results(self, data_set, kind):
        count = self.get("action_data_count", data_set, kind, kind=ctypes.c_size_t).value
        return [self.get("action_data_get_data", data_set, kind, ctypes.c_size_t(i)) for i in range(count)]

    def source(self, text):
        """A set of data that has the text."""
        data, data_set = self.get("create_data", SOURCE), self.get("create_data_set")
        self.call("set_data", data, ctypes.c_size_t(len(text)), text)
        self.call("set_data_name", data, b"program.cl")
        self.call("data_set_add", data_set, data)
        return data_set

    def act(self, action, gpu, options, data_set, language=None):
        info, output = self.get("create_action_info"), self.get("create_data_set")
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if language:
            self.call("action_info_set_language", info, language)
        self.call("action_info_set_isa_name", info, (ARCHITECTURE + gpu).encode())
        self.call("action_info_set_option_list", info, words, ctypes.c_size_t(len(options)))
        self.call("action_info_set_logging", info, ctypes.c_bool(True))
        try:
            self.call("do_action", action, info, data_set, output)
        except Failure as failure:
            logs = [self.bytes("get_data", log).decode(errors="replace") for log in self.results(output, LOG)]
            raise Failure(f"{failure} of action {action}\n" + "\n".join(logs)) from failure
        return output

    def compile(self, gpu, options, text):
        """Returns the code object's handle."""
        header, front, link, back, executable = ACTIONS[self.major]
        wave = ["-mwavefrontsize64"] if gpu.startswith("gfx9") else []
        units = [] if gpu.startswith("gfx9") else ["-mcumode"]
        compiled = [*FRONT_END, *options, *units, *wave]
        data_set = self.act(header, gpu, compiled, self.source(text), OPENCL_1_2)
        data_set = self.act(front, gpu, compiled, data_set, OPENCL_1_2)
        data_set = self.act(link, gpu, ["wavefrontsize64"] if wave else [], data_set, OPENCL_1_2)
        data_set = self.act(back, gpu, [*BACK_END, *options, *units, *wave], data_set)
        return self.results(self.act(executable, gpu, [], data_set), EXECUTABLE)[0]

    def kernels(self, code):
        """The kernels of a code object, from its metadata."""
        listed = self.get("metadata_lookup", self.get("get_data_metadata", code), b"amdhsa.kernels")
        count = self.get("get_metadata_list_size", listed, kind=ctypes.c_size_t).value
        found = {}
        for i in range(count):
            kernel = self.get("index_list_metadata", listed, ctypes.c_size_t(i))
            value = {key: self.bytes("get_metadata_string", self.get("metadata_lookup", kernel, key)).rstrip(b"\0").decode()
                     for key in (b".name", b".vgpr_count", b".private_segment_fixed_size", b".vgpr_spill_count", b".wavefront_size")}
            name, *numbers = value.values()
            found[name] = [int(number) for number in numbers]
        return found


# ---- Intel's ocloc


class Ocloc:
    """The program."""

    def __init__(self):
        self.path = shutil.which(os.environ.get("OCLOC", "ocloc"))
        if not self.path:
            raise Failure("there is no ocloc")
        with tempfile.TemporaryDirectory() as folder: # it writes the version to a file of the question's name, or prints it
            printed = run([self.path, "query", "OCL_DRIVER_VERSION"], folder=folder)[0].decode()
            written = "".join(path.read_text() for path in pathlib.Path(folder).iterdir())
        self.version = (re.search(r"\d+\.\d+", written or printed) or ["of-no-known-release"])[0]

    def knows(self, gpu):
        return subprocess.run([self.path, "ids", gpu], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0

    def build(self, gpu, options, text):
        """The device binary, and what the compiler prints."""
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "program.cl")
            source.write_text(text, encoding="utf-8")
            printed = run([self.path, "compile", "-file", source, "-device", gpu, "-options", " ".join(options), "--format", "zebin",
                           "-out_dir", folder], seconds=OCLOC_SECONDS)[0]
            binary, = pathlib.Path(folder).glob("*.bin")
            return binary.read_bytes(), printed.decode(errors="replace")

    def compile(self, gpu, options, text):
        return intel_kernels(*self.build(gpu, options, text))


def elf_section(elf, name):
    """The bytes of a section of a file for 64 bits, or b"" if it has none of that name."""
    table, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    for header in headers:
        start = headers[names][4] + header[0]
        if elf[start:elf.index(b"\0", start)].decode() == name:
            return elf[header[4]:header[4] + header[5]]
    return b""


def intel_kernels(elf, printed):
    """The kernels of a device binary, from its section .ze_info, which is YAML, and from ocloc's warnings of spills."""
    text = elf_section(elf, ".ze_info").decode()
    listed = re.split(r"^(?=\S)", text.partition("\nkernels:")[2], flags=re.M)[0]
    spilled = dict(re.findall(r"^warning: (?:in )?kernel '?(\w+).*spilled around (\d+)", printed, re.M))
    found = {}
    for kernel in re.split(r"^  - name: +", listed, flags=re.M)[1:]:
        name, value = kernel.split()[0], dict(re.findall(r"^      (\w+): +(\d+)$", kernel, re.M))
        width, buffers = int(value["simd_size"]), kernel.partition("per_thread_memory_buffers:")[2]
        # a buffer is a work-item's or that of a thread, which is `width` of them
        scratch = sum(int(size) if of_item else -(-int(size) // width)
                      for size, of_item in re.findall(r"^ +size: +(\d+)$(\n +is_simt_thread: +true$)?", buffers, re.M))
        if not name.startswith("Intel_Symbol_Table"):
            found[name] = Numbers(int(value["grf_count"]), scratch, int(spilled.get(name, 0)), width, int(value.get("slm_size", 0)))
    return found


def main():
    comgr = ComgrLibrary()
    if len(sys.argv) == 1:
        print(json.dumps({"version": comgr.version, "gpus": comgr.gpus()}))
    else:
        print(json.dumps(comgr.kernels(comgr.compile(sys.argv[1], sys.argv[2:], sys.stdin.buffer.read()))))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(str(failure))
