"""Reads SPIR-V modules that clspv has made for Vulkan, and finds in them what spirv-val does not see.

clspv mixes up the indices of a private array of arrays in which one dimension is 1: v[i][0] of a `float v[4][1]` is written at
[0][i], which lies outside, and read there or at [i][0]. On a `float v[1][1]` it may crash. So no kernel may have such a variable, and no
constant index may lie outside its array. Arrays that become registers before clspv indexes them do no harm.

    ci/spirv.py FILE...     prints the faults of modules; exit status 1 if there are any
"""
import collections
import struct
import sys

MAGIC = 0x07230203
STORAGE = {4: "Workgroup", 6: "Private", 7: "Function"}  # where a program's own variables lie
CAPABILITIES = {1: "Shader", 9: "Float16", 10: "Float64", 11: "Int64", 22: "Int16", 39: "Int8",
                4433: "StorageBuffer16BitAccess", 4434: "UniformAndStorageBuffer16BitAccess", 4435: "StoragePushConstant16",
                4441: "VariablePointersStorageBuffer", 4442: "VariablePointers", 4448: "StorageBuffer8BitAccess",
                4449: "UniformAndStorageBuffer8BitAccess", 4450: "StoragePushConstant8", 5347: "PhysicalStorageBufferAddresses"}

# Instructions by number: https://registry.khronos.org/SPIR-V/
ENTRY_POINT, CAPABILITY, TYPE_BOOL, TYPE_INT, TYPE_FLOAT, TYPE_VECTOR = 15, 17, 20, 21, 22, 23
TYPE_ARRAY, TYPE_RUNTIME_ARRAY, TYPE_STRUCT, TYPE_POINTER = 28, 29, 30, 32
CONSTANT, FUNCTION, FUNCTION_CALL, VARIABLE, LOAD, STORE = 43, 54, 57, 59, 61, 62
DECORATE, PARAMETER_ATTRIBUTE, BY_VALUE = 71, 38, (2, 3)  # the last two: ByVal, Sret
ACCESS_CHAIN, IN_BOUNDS_ACCESS_CHAIN, POINTER_ACCESS_CHAIN, IN_BOUNDS_POINTER_ACCESS_CHAIN = 65, 66, 67, 70
CHAINS = {ACCESS_CHAIN: 3, IN_BOUNDS_ACCESS_CHAIN: 3, POINTER_ACCESS_CHAIN: 4, IN_BOUNDS_POINTER_ACCESS_CHAIN: 4}  # first index

# A module with both faults, for a test of this check: as clspv makes it of FAULTY, cut to what matters.
FAULTY_MODULE = """
OpCapability Shader
OpMemoryModel Logical GLSL450
OpEntryPoint GLCompute %kernel "faulty"
OpExecutionMode %kernel LocalSize 1 1 1
%void = OpTypeVoid
%function = OpTypeFunction %void
%uint = OpTypeInt 32 0
%float = OpTypeFloat 32
%uint_0 = OpConstant %uint 0
%uint_1 = OpConstant %uint 1
%uint_4 = OpConstant %uint 4
%inner = OpTypeArray %float %uint_1
%outer = OpTypeArray %inner %uint_4
%pointer = OpTypePointer Function %outer
%element = OpTypePointer Function %float
%kernel = OpFunction %void None %function
%begin = OpLabel
%v = OpVariable %pointer Function
%place = OpAccessChain %element %v %uint_0 %uint_1
OpReturn
OpFunctionEnd
"""

# Two kernels for clspv: it makes the fault of the first, as long as it has it, and none of the second, which is the same but for it.
FAULTY = """__kernel void faulty(__global float *out, __global const float *in, int n) {
    float v[4][1];
    for (int i = 0; i < 4; i++) {
        v[i][0] = in[i];
    }
    for (int i = 0; i < n; i++) {
        v[i & 3][0] += v[(i + 1) & 3][0];
    }
    for (int i = 0; i < 4; i++) {
        out[i] = v[i][0];
    }
}
"""
FAULTLESS = FAULTY.replace("[4][1]", "[4]").replace("][0]", "]")

Type = collections.namedtuple("Type", "kind parts")  # parts: words behind the type's own number


class Module:
    """What of a module the checks need, by the numbers of results."""

    def __init__(self, data):
        words = struct.unpack(f"<{len(data) // 4}I", data[:len(data) // 4 * 4])
        if len(words) < 5 or words[0] != MAGIC:
            raise ValueError("this is no SPIR-V")
        self.capabilities, self.types, self.constants, self.type_of = set(), {}, {}, {}
        self.by_value = 0  # structures that functions take or return as copies
        self.entries = {}  # function: its name
        self.variables = []  # (result, storage class, function that it lies in or None)
        self.chains = []  # (base, indices, function)
        self.calls = collections.defaultdict(set)  # function: functions
        self.uses = collections.defaultdict(set)  # function: what it loads from, stores to, or hands over, variables among that
        self.function, at = None, 5
        while at < len(words):
            length, code = words[at] >> 16, words[at] & 0xffff
            if length == 0 or at + length > len(words):
                raise ValueError("a broken instruction")
            self._take(code, words[at + 1:at + length])
            at += length

    def _take(self, code, words):
        if code == CAPABILITY:
            self.capabilities.add(CAPABILITIES.get(words[0], str(words[0])))
        elif code == DECORATE and words[1] == PARAMETER_ATTRIBUTE and words[2] in BY_VALUE:
            self.by_value += 1
        elif code == ENTRY_POINT:
            # behind the name stand all variables of the module, whether used or not
            self.entries[words[1]] = struct.pack(f"<{len(words) - 2}I", *words[2:]).split(b"\0")[0].decode()
        elif TYPE_BOOL <= code <= TYPE_POINTER:
            self.types[words[0]] = Type(code, words[1:])
        elif code == CONSTANT and self.types[words[0]].kind == TYPE_INT:
            self.constants[words[1]] = sum(word << 32 * i for i, word in enumerate(words[2:]))
        elif code == FUNCTION:
            self.function = words[1]
        elif code == FUNCTION_CALL:
            self.calls[self.function].add(words[2])
            self.uses[self.function].update(words[3:])
        elif code in (LOAD, STORE):
            self.uses[self.function].add(words[2] if code == LOAD else words[0])
        elif code == VARIABLE:
            self.type_of[words[1]] = words[0]
            self.variables.append((words[1], words[2], self.function if STORAGE.get(words[2]) == "Function" else None))
        elif code in CHAINS:
            self.type_of[words[1]] = words[0]
            self.chains.append((words[2], words[CHAINS[code]:], self.function))
            self.uses[self.function].add(words[2])

    def length(self, number):
        """Of an array or a vector; None where it is not known before the program runs."""
        kind, parts = self.types[number]
        return parts[1] if kind == TYPE_VECTOR else self.constants.get(parts[1]) if kind == TYPE_ARRAY else None

    def name(self, number):
        """A type as C would write it: float4[3][2]."""
        kind, parts = self.types[number]
        if kind == TYPE_ARRAY or kind == TYPE_RUNTIME_ARRAY:
            element, lengths = self.name(parts[0]).partition("[")[::2]
            length = self.length(number)
            return f"{element}[{'' if length is None else length}]" + (f"[{lengths}" if lengths else "")
        if kind == TYPE_VECTOR:
            return f"{self.name(parts[0])}{parts[1]}"
        if kind == TYPE_STRUCT:
            return "struct {" + "; ".join(self.name(part) for part in parts) + "}"
        if kind == TYPE_POINTER:
            return self.name(parts[1]) + " *"
        return {TYPE_BOOL: "bool", TYPE_INT: f"int{parts[0]}_t" if parts else "", TYPE_FLOAT:
                {16: "half", 32: "float", 64: "double"}.get(parts[0] if parts else 0, "float")}.get(kind, f"type {kind}")

    def bytes(self, number):
        """As a variable of Workgroup storage takes it, packed."""
        kind, parts = self.types[number]
        if kind in (TYPE_ARRAY, TYPE_VECTOR):
            return self.bytes(parts[0]) * (self.length(number) or 0)
        if kind == TYPE_STRUCT:
            return sum(self.bytes(part) for part in parts)
        return parts[0] // 8 if kind in (TYPE_INT, TYPE_FLOAT) else 4

    def pointee(self, result):
        """The type that a pointer points to; None where this has not read the instruction that makes the pointer."""
        pointer = self.types.get(self.type_of.get(result))
        return pointer.parts[1] if pointer and pointer.kind == TYPE_POINTER else None

    def reached(self, entry):
        """The functions that a kernel runs."""
        found, left = set(), [entry]
        while left:
            one = left.pop()
            if one not in found:
                found.add(one)
                left += self.calls[one]
        return found

    def kernels(self, variable, function):
        """Names of the kernels that run a function, or, where that is None, use a variable."""
        names = [name for entry, name in self.entries.items()
                 if any(one == function or (function is None and variable in self.uses[one]) for one in self.reached(entry))]
        return ", ".join(sorted(names)) or "no kernel"

    def local_bytes(self):
        """{kernel: bytes of Workgroup storage}"""
        found = {}
        for entry, name in self.entries.items():
            used = set().union(*(self.uses[one] for one in self.reached(entry)))
            found[name] = sum(self.bytes(self.pointee(variable)) for variable, storage, _ in self.variables
                              if STORAGE.get(storage) == "Workgroup" and variable in used)
        return found


def has_single(module, number):
    """Whether in the type there is an array of arrays of which one has one element."""
    kind, parts = module.types[number]
    if kind == TYPE_STRUCT:
        return any(has_single(module, part) for part in parts)
    if kind not in (TYPE_ARRAY, TYPE_RUNTIME_ARRAY):
        return False
    inner = module.types[parts[0]].kind == TYPE_ARRAY
    return (inner and 1 in (module.length(number), module.length(parts[0]))) or has_single(module, parts[0])


def outside(module, base, indices):
    """In words, the first index of a chain that is constant and lies outside; None if there is none."""
    number = module.pointee(base)
    for index in indices:
        if number is None:
            return None
        kind, parts = module.types[number]
        value = module.constants.get(index)
        if kind == TYPE_STRUCT:
            number = parts[value]
            continue
        length = module.length(number) if kind in (TYPE_ARRAY, TYPE_VECTOR) else None
        if value is not None and length is not None and value >= length:
            return f"index {value} of {length}"
        number = parts[0]
    return None


def faults(module):
    """In words, each once: kernels, type, and what is wrong."""
    found = {}
    for variable, storage, function in module.variables:
        number = module.pointee(variable)
        if storage in STORAGE and has_single(module, number):
            found[f"{module.kernels(variable, function)}: {STORAGE[storage]} variable {module.name(number)}: "
                  "an array of arrays, of which one has one element: clspv mixes up its indices"] = None
    for base, indices, function in module.chains:
        wrong = outside(module, base, indices)
        if wrong:
            found[f"{module.kernels(base, function)}: {module.name(module.pointee(base))}: constant {wrong}"] = None
    return list(found)


def main():
    wrong = 0
    for path in sys.argv[1:]:
        with open(path, "rb") as file:
            for fault in faults(Module(file.read())):
                print(f"{path}: {fault}")
                wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
