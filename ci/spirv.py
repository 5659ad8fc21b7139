"""Reads SPIR-V modules that clspv has made for Vulkan, and finds faults in them that spirv-val does not see.

clspv mixes up the indices of a private array of arrays in which one dimension is 1: it writes v[i][0] of a `float v[4][1]` to [0][i],
which lies outside. On a `float v[1][1]` it may crash. So no kernel may have such a variable, and no constant index may lie outside its
array. Arrays that clspv turns into registers before it indexes them do no harm.

    ci/spirv.py FILE...     prints the faults of modules; exit status 1 if there are any
"""
import collections
import struct
import sys

MAGIC = 0x07230203
STORAGE = {4: "Workgroup", 6: "Private", 7: "Function"}  # storage classes of a program's own variables
CAPABILITIES = {1: "Shader", 9: "Float16", 10: "Float64", 11: "Int64", 22: "Int16", 39: "Int8",
                4433: "StorageBuffer16BitAccess", 4434: "UniformAndStorageBuffer16BitAccess", 4435: "StoragePushConstant16",
                4441: "VariablePointersStorageBuffer", 4442: "VariablePointers", 4448: "StorageBuffer8BitAccess",
                4449: "UniformAndStorageBuffer8BitAccess", 4450: "StoragePushConstant8", 5347: "PhysicalStorageBufferAddresses"}

# Instructions by number: https://registry.khronos.org/SPIR-V/
ENTRY_POINT, CAPABILITY, TYPE_BOOL, TYPE_INT, TYPE_FLOAT, TYPE_VECTOR = 15, 17, 20, 21, 22, 23
TYPE_ARRAY, TYPE_RUNTIME_ARRAY, TYPE_STRUCT, TYPE_POINTER = 28, 29, 30, 32
CONSTANT, FUNCTION, FUNCTION_CALL, VARIABLE, LOAD, STORE = 43, 54, 57, 59, 61, 62
DECORATE, PARAMETER_ATTRIBUTE, BY_VALUE = 71, 38, (2, 3)  # the last two: ByVal, Sret
CHAINS = {65: 3, 66: 3, 67: 4, 70: 4}  # access chains, and the word of their first index

Type = collections.namedtuple("Type", "kind words")  # words: those behind the type's own number


class Module:
    """The parts of a module that the checks need, by the numbers of results."""

    def __init__(self, data):
        words = struct.unpack(f"<{len(data) // 4}I", data[:len(data) // 4 * 4])
        if len(words) < 5 or words[0] != MAGIC:
            raise ValueError("this is no SPIR-V")
        self.capabilities, self.types, self.constants, self.type_of = set(), {}, {}, {}
        self.by_value = 0  # structures that functions take or return as copies
        self.entries = {}  # function: name of the kernel
        self.variables = []  # (result, storage class)
        self.chains = []  # (base, indices)
        self.calls = collections.defaultdict(set)  # function: functions
        self.uses = collections.defaultdict(set)  # function: pointers that it loads from, stores to, or passes on
        self.function, at = None, 5
        while at < len(words):
            length, code = words[at] >> 16, words[at] & 0xffff
            if length == 0 or at + length > len(words):
                raise ValueError("a broken instruction")
            self._read(code, words[at + 1:at + length])
            at += length

    def _read(self, code, words):
        if code == CAPABILITY:
            self.capabilities.add(CAPABILITIES.get(words[0], str(words[0])))
        elif code == DECORATE and words[1] == PARAMETER_ATTRIBUTE and words[2] in BY_VALUE:
            self.by_value += 1
        elif code == ENTRY_POINT:
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
            self.variables.append((words[1], words[2]))
        elif code in CHAINS:
            self.type_of[words[1]] = words[0]
            self.chains.append((words[2], words[CHAINS[code]:]))
            self.uses[self.function].add(words[2])

    def length(self, number):
        """The length of an array or a vector; None where it is not known before the program runs."""
        kind, words = self.types[number]
        return words[1] if kind == TYPE_VECTOR else self.constants.get(words[1]) if kind == TYPE_ARRAY else None

    def bytes(self, number):
        """The packed size of a type."""
        kind, words = self.types[number]
        if kind in (TYPE_ARRAY, TYPE_VECTOR):
            return self.bytes(words[0]) * (self.length(number) or 0)
        if kind == TYPE_STRUCT:
            return sum(self.bytes(member) for member in words)
        return words[0] // 8 if kind in (TYPE_INT, TYPE_FLOAT) else 4

    def pointee(self, result):
        """The type that a pointer points to; None where this class does not read the instruction that makes the pointer."""
        pointer = self.types.get(self.type_of.get(result))
        return pointer.words[1] if pointer and pointer.kind == TYPE_POINTER else None

    def reached(self, entry):
        """The functions that a kernel runs."""
        found, left = set(), [entry]
        while left:
            one = left.pop()
            if one not in found:
                found.add(one)
                left += self.calls[one]
        return found

    def kernels(self, variable):
        """Names of the kernels that use a variable."""
        names = [name for entry, name in self.entries.items() if any(variable in self.uses[one] for one in self.reached(entry))]
        return ", ".join(sorted(names)) or "no kernel"

    def local_bytes(self):
        """{kernel: bytes of Workgroup storage}"""
        found = {}
        for entry, name in self.entries.items():
            used = set().union(*(self.uses[one] for one in self.reached(entry)))
            found[name] = sum(self.bytes(self.pointee(variable)) for variable, storage in self.variables
                              if STORAGE.get(storage) == "Workgroup" and variable in used)
        return found


def has_single(module, number):
    """Whether the type contains an array of arrays of which one has one element."""
    kind, words = module.types[number]
    if kind == TYPE_STRUCT:
        return any(has_single(module, member) for member in words)
    if kind not in (TYPE_ARRAY, TYPE_RUNTIME_ARRAY):
        return False
    inner = module.types[words[0]].kind == TYPE_ARRAY
    return (inner and 1 in (module.length(number), module.length(words[0]))) or has_single(module, words[0])


def outside(module, base, indices):
    """The first index of a chain that is constant and lies outside, in words; None if there is none."""
    number = module.pointee(base)
    for index in indices:
        if number is None:
            return None
        kind, words = module.types[number]
        value = module.constants.get(index)
        if kind == TYPE_STRUCT:
            number = words[value]
            continue
        length = module.length(number) if kind in (TYPE_ARRAY, TYPE_VECTOR) else None
        if value is not None and length is not None and value >= length:
            return f"index {value} of {length}"
        number = words[0]
    return None


def faults(module):
    """Each fault once, in words."""
    found = {f"{module.kernels(variable)}: {STORAGE[storage]} variable: an array of arrays, of which one has one element: clspv mixes "
             "up its indices" for variable, storage in module.variables
             if storage in STORAGE and has_single(module, module.pointee(variable))}
    wrong = ((base, outside(module, base, indices)) for base, indices in module.chains)
    return sorted(found | {f"{module.kernels(base)}: constant {text}" for base, text in wrong if text})


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
