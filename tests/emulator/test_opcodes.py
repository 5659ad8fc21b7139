"""Each instruction of the PTX interpreter against numpy, and each fault that it must find.

    test_opcodes.py PTX_LAUNCH

Work-item t of a kernel has 256 bytes of input, of which operand i is at 8 i, and 64 bytes of output. Exit status: 0, or 1 with what is wrong."""
import os
import subprocess
import sys
import tempfile

import numpy as np

ITEMS, GROUPS = 32, 16
COUNT = ITEMS * GROUPS
U16, U32, U64, S16, S32, S64, F16, F32, F64 = np.uint16, np.uint32, np.uint64, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64
random = np.random.default_rng(1)
failures = []


def check(what, fine, words=""):
    if not fine:
        failures.append(what)
        print(f"FAILED  {what} {words}")


# ---- running a text

HEAD = ".version 7.5\n.target sm_80\n.address_size 64\n"
REGISTERS = """.reg .pred %p<16>;
.reg .b16 %rs<16>;
.reg .b32 %r<64>;
.reg .f32 %f<64>;
.reg .b64 %rd<32>;
mov.u32 %r40, %tid.x;
mov.u32 %r41, %ctaid.x;
mov.u32 %r42, %ntid.x;
mad.lo.s32 %r43, %r41, %r42, %r40;
ld.param.u64 %rd20, [NAME_0];
ld.param.u64 %rd21, [NAME_1];
mul.wide.u32 %rd22, %r43, 256;
add.s64 %rd20, %rd20, %rd22;
mul.wide.u32 %rd23, %r43, 64;
add.s64 %rd21, %rd21, %rd23;
"""


def kernel(name, body, declarations=""):
    return (f".visible .entry {name}(.param .u64 .ptr .global .align 8 {name}_0, .param .u64 .ptr .global .align 8 {name}_1)\n"
            f"{{\n{declarations}{REGISTERS.replace('NAME', name)}{body}ret;\n}}\n")


def launch(tool, text, inputs, lanes=32, items=ITEMS, groups=GROUPS, seed=0):
    """(outputs [kernels, work-items, 64], None), or (None, the fault). `inputs`: [kernels, work-items, 256] bytes."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(HEAD + text)
        file.flush()
        result = subprocess.run([tool, file.name, str(lanes), str(items), str(groups), str(seed)], input=inputs.tobytes(),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if result.returncode:
        return None, result.stderr.decode(errors="replace")
    return np.frombuffer(result.stdout, np.uint8).reshape(len(inputs), items * groups, 64), None


# ---- opcodes that compute registers from registers

def saturate(x, kind):
    info = np.iinfo(kind)
    x = np.nan_to_num(np.trunc(x.astype(F64)), nan=0.0, posinf=1e30, neginf=-1e30)
    result = np.zeros(x.shape, kind)
    low, high = x <= float(info.min), x >= float(info.max)
    result[low], result[high] = info.min, info.max
    result[~(low | high)] = x[~(low | high)].astype(kind)
    return result


def bf16(x):
    """Bits of bf16, rounded to the nearest even."""
    bits = x.view(U32).astype(U64)
    rounded = ((bits + 0x7fff + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(U32)
    return np.where(np.isnan(x), x.view(U32) >> 16 | 0x40, rounded).astype(U32)


def fp16(x):
    return x.astype(F16).view(U16).astype(U32)


def shifted(x, by, bits, left):
    count = np.minimum(by.astype(U64), bits - 1)
    value = (x << count.astype(x.dtype)) if left else (x >> count.astype(x.dtype))
    signed = np.issubdtype(x.dtype, np.signedinteger)
    return np.where(by < bits, value, (x >> x.dtype.type(bits - 1)) if signed and not left else x.dtype.type(0)).astype(x.dtype)


def field(x, at, size):
    value = shifted(x, at & U32(255), 8 * x.itemsize, False)
    size = (size & U32(255)).astype(U64)
    mask = np.where(size < 64, (np.uint64(1) << np.minimum(size, 63)) - np.uint64(1), np.uint64(2**64 - 1))
    return (value.astype(U64) & mask).astype(x.dtype)


def high(a, b, kind):
    """The upper half of a product, by Python's integers."""
    bits = 8 * np.dtype(kind).itemsize
    return np.array([(int(x) * int(y) >> bits) & (2**bits - 1) for x, y in zip(a, b)], np.dtype(f"u{bits // 8}")).view(kind)


def divided(a, b):
    return np.array([(abs(int(x)) // abs(int(y))) * (1 if (x < 0) == (y < 0) else -1) if y else -1 for x, y in zip(a, b)], dtype=object)


def quotient(a, b, kind):
    bits = 8 * np.dtype(kind).itemsize
    return np.array([int(x) & (2**bits - 1) for x in divided(a, b)], np.dtype(f"u{bits // 8}")).view(kind)


def remainder(a, b, kind):
    bits = 8 * np.dtype(kind).itemsize
    quotients = divided(a, b)
    return np.array([(int(x) - int(y) * int(q) if y else int(x)) & (2**bits - 1) for x, y, q in zip(a, b, quotients)],
                    np.dtype(f"u{bits // 8}")).view(kind)


def fused(a, b, c):
    """a b + c rounded once: by exact integers, where doubles would round twice."""
    exact = [np.longdouble(x) * np.longdouble(y) + np.longdouble(z) for x, y, z in zip(a.astype(F64), b.astype(F64), c.astype(F64))]
    return np.array(exact, np.longdouble).astype(F32)


def binary(operation):
    return lambda a, b: operation(a, b)


def larger(a, b):
    return np.fmax(a, b) if a.dtype == F32 else np.maximum(a, b)


def smaller(a, b):
    return np.fmin(a, b) if a.dtype == F32 else np.minimum(a, b)


def nan_or(operation):
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), F32(np.nan), operation(a, b))


KINDS = {"u16": U16, "s16": S16, "b16": U16, "f16": F16, "u32": U32, "s32": S32, "b32": U32, "f32": F32, "u64": U64, "s64": S64, "b64": U64}
ARITHMETIC = {"add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "max": larger, "min": smaller}
UNARY = {"not": np.invert, "neg": np.negative, "abs": np.abs, "mov": np.copy}
APPROXIMATE = {"ex2.approx.f32": np.exp2, "ex2.approx.ftz.f32": np.exp2, "lg2.approx.f32": np.log2, "sin.approx.f32": np.sin,
               "cos.approx.f32": np.cos, "rsqrt.approx.f32": lambda x: 1.0 / np.sqrt(x)}
CONVERSIONS = {
    "cvt.f32.f16": lambda a: a.astype(F32), "cvt.rn.f16.f32": lambda a: a.astype(F16), "cvt.rn.f32.s16": lambda a: a.astype(F32),
    "cvt.rn.f32.s32": lambda a: a.astype(F32), "cvt.rn.f32.s64": lambda a: a.astype(F32), "cvt.rn.f32.u16": lambda a: a.astype(F32),
    "cvt.rn.f32.u32": lambda a: a.astype(F32), "cvt.rn.f32.u64": lambda a: a.astype(F32), "cvt.rni.f32.f32": np.rint,
    "cvt.rmi.f32.f32": np.floor, "cvt.rpi.f32.f32": np.ceil, "cvt.rzi.f32.f32": np.trunc,
    "cvt.rzi.s16.f32": lambda a: saturate(a, S16), "cvt.rzi.u16.f32": lambda a: saturate(a, U16), "cvt.rzi.s32.f32": lambda a: saturate(a, S32),
    "cvt.rzi.u32.f32": lambda a: saturate(a, U32), "cvt.rzi.u64.f32": None,
}


def model_of(opcode):
    """(types of the operands with the destination first, the function of the sources), or None if it is tested below."""
    parts = opcode.split(".")
    first, last = parts[0], parts[-1]
    if opcode in ("mov.b32", "mov.b64") or first == "cvta" or last == "pred":
        return None
    if opcode in APPROXIMATE:
        return [F32, F32], lambda a: APPROXIMATE[opcode](a.astype(F64)).astype(F32)
    if first == "cvt":
        if "bf16x2" in parts or "f16x2" in parts:
            half = bf16 if "bf16x2" in parts else fp16
            return [U32, F32, F32], lambda a, b: half(a) << 16 | half(b)
        to, source = KINDS.get(parts[-2]), KINDS.get(last)
        if last in ("s8", "u8"):
            return [to, U32 if to().itemsize == 4 else U16], lambda a: a.astype(np.int8 if last == "s8" else np.uint8).astype(to)
        if opcode == "cvt.rzi.u64.f32":
            return [U64, F32], lambda a: np.array([min(max(int(x), 0), 2**63) if np.isfinite(x) else 2**63 if x > 0 else 0 for x in a], U64)
        return [to, source], CONVERSIONS.get(opcode) or (lambda a: a.astype(to))
    kind = KINDS[last]
    if first in UNARY:
        return [kind, kind], UNARY[first]
    if first == "selp":
        return [kind, kind, kind, bool], lambda a, b, c: np.where(c, a, b)
    if "NaN" in parts:
        return [kind] * 3, nan_or(np.maximum if first == "max" else np.minimum)
    if first in ARITHMETIC:
        return [kind] * 3, ARITHMETIC[first]
    if first in ("mul", "mad"):
        wide = {U16: U32, U32: U64, S32: S64}.get(kind)
        if "wide" in parts:
            product = lambda a, b: a.astype(wide) * b.astype(wide)
            return ([wide, kind, kind], product) if first == "mul" else ([wide, kind, kind, wide], lambda a, b, c: product(a, b) + c)
        if "hi" in parts:
            return [kind] * 3, lambda a, b: high(a, b, kind)
        return ([kind] * 3, np.multiply) if first == "mul" else ([kind] * 4, lambda a, b, c: a * b + c)
    if first == "fma":
        return [F32] * 4, fused
    if first == "div":
        return [kind] * 3, np.divide if kind == F32 else lambda a, b: quotient(a, b, kind)
    if first == "rem":
        return [kind] * 3, lambda a, b: remainder(a, b, kind)
    if first in ("rcp", "sqrt"):
        return [F32, F32], (lambda a: F32(1) / a) if first == "rcp" else np.sqrt
    if first in ("shl", "shr"):
        return [kind, kind, U32], lambda a, b: shifted(a, b, 8 * a.itemsize, first == "shl")
    if first == "bfe":
        return [kind, kind, U32, U32], field
    if first == "popc":
        return [U32, U32], lambda a: np.array([bin(int(x)).count("1") for x in a], U32)
    if first == "clz":
        return [U32, U32], lambda a: np.array([32 - int(x).bit_length() for x in a], U32)
    raise KeyError(opcode)


REGISTER = {1: "%p", 2: "%rs", 4: "%r", 8: "%rd"}
SPECIAL = {F32: [0.0, -0.0, 1.0, -1.5, 0.5, 2.5, 1e30, -1e30, 3e9, 70000.0, np.inf, -np.inf, np.nan, 1e-40]}


def values(kind):
    """COUNT numbers of a type: random ones, small ones, and special ones."""
    if kind is bool:
        return random.integers(0, 2, COUNT).astype(bool)
    if kind in (F32, F16):
        x = (random.standard_normal(COUNT) * np.exp(random.uniform(-8, 8, COUNT))).astype(kind)
        with np.errstate(all="ignore"):
            special = np.array(SPECIAL[F32]).astype(kind)
        x[:len(special)], x[-len(special):] = special, special[::-1]
        return x
    info = np.iinfo(kind)
    x = random.integers(info.min, info.max, COUNT, dtype=kind, endpoint=True)
    x[::3] = random.integers(0, 70, len(x[::3])).astype(kind)
    x[:4] = np.array([0, info.max, info.min, 1], kind)
    return x


def register(i, kind):
    if kind is bool:
        return f"%p{i}"
    return f"{REGISTER[np.dtype(kind).itemsize]}{i}"


def load(i, kind):
    if kind is bool:
        return f"ld.global.u32 %r{30 + i}, [%rd20+{8 * i}];\nsetp.ne.u32 %p{i}, %r{30 + i}, 0;\n"
    return f"ld.global.b{8 * np.dtype(kind).itemsize} {register(i, kind)}, [%rd20+{8 * i}];\n"


def same(got, wanted, exact):
    if wanted.dtype in (F32, F16):
        both_nan = np.isnan(got) & np.isnan(wanted)
        if exact:
            return both_nan | (got.view(f"u{got.itemsize}") == wanted.view(f"u{got.itemsize}"))
        with np.errstate(all="ignore"):
            return both_nan | (got == wanted) | (np.abs(got - wanted) <= 2e-7 * np.abs(wanted) + 1e-44)
    return got == wanted


def test_opcodes(tool):
    opcodes = subprocess.run([tool, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    text, inputs, cases = "", [], []
    for opcode in opcodes:
        model = model_of(opcode)
        if model is None:
            continue
        kinds, function = model
        sources = [values(kind) for kind in kinds[1:]]
        if opcode.startswith(("div.s", "div.u", "rem")):
            sources[1][sources[1] == 0] = 3  # hardware has no fixed answer
        memory = np.zeros((COUNT, 256), np.uint8)
        for i, source in enumerate(sources):
            source = source.astype(U32) if source.dtype == bool else source
            memory[:, 8 * i:8 * i + source.itemsize] = source.view(np.uint8).reshape(COUNT, -1)
        body = "".join(load(i, kind) for i, kind in enumerate(kinds[1:]))
        names = ", ".join(register(i, kind) for i, kind in enumerate(kinds[1:]))
        body += f"{opcode} {register(10, kinds[0])}, {names};\nst.global.b{8 * np.dtype(kinds[0]).itemsize} [%rd21], {register(10, kinds[0])};\n"
        text += kernel(f"k{len(cases)}", body)
        inputs.append(memory)
        with np.errstate(all="ignore"):
            cases.append((opcode, sources, np.asarray(function(*sources)).astype(kinds[0])))
    outputs, problem = launch(tool, text, np.array(inputs))
    check("the opcodes run", problem is None, problem)
    for (opcode, sources, wanted), output in zip(cases, outputs if outputs is not None else []):
        got = np.ascontiguousarray(output[:, :wanted.itemsize]).view(wanted.dtype)[:, 0]
        bad = np.nonzero(~same(got, wanted, opcode not in APPROXIMATE))[0]
        check(opcode, len(bad) == 0, f"of {[source[bad[0]] for source in sources]} is {got[bad[0]]}, not {wanted[bad[0]]}" if len(bad) else "")
    return len(cases)


# ---- comparisons

def test_comparisons(tool):
    whole = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
    text, inputs, cases = "", [], []
    for name in ("u16", "s16", "b16", "u32", "s32", "b32", "u64", "s64", "b64", "f32", "f16"):
        kind = KINDS[name]
        floats = kind in (F32, F16)
        for comparison in list(whole) + ([c + "u" for c in whole] + ["num", "nan"] if floats else []):
            a, b = values(kind), values(kind)
            b[::4] = a[::4]
            ordered = ~(np.isnan(a) | np.isnan(b)) if floats else np.ones(COUNT, bool)
            with np.errstate(all="ignore"):
                wanted = (ordered if comparison == "num" else ~ordered if comparison == "nan"
                          else whole[comparison](a, b) & ordered if comparison in whole else whole[comparison[:-1]](a, b) | ~ordered)
            memory = np.zeros((COUNT, 256), np.uint8)
            memory[:, :a.itemsize], memory[:, 8:8 + a.itemsize] = a.view(np.uint8).reshape(COUNT, -1), b.view(np.uint8).reshape(COUNT, -1)
            body = load(0, kind) + load(1, kind) + (f"setp.{comparison}.{name} %p5, {register(0, kind)}, {register(1, kind)};\n"
                                                    "selp.u32 %r10, 1, 0, %p5;\nst.global.u32 [%rd21], %r10;\n")
            text += kernel(f"k{len(cases)}", body)
            inputs.append(memory)
            cases.append((f"setp.{comparison}.{name}", a, b, wanted))
    outputs, problem = launch(tool, text, np.array(inputs))
    check("comparisons run", problem is None, problem)
    for (name, a, b, wanted), output in zip(cases, outputs if outputs is not None else []):
        bad = np.nonzero(output[:, 0].astype(bool) != wanted)[0]
        check(name, len(bad) == 0, f"of {a[bad[0]]} and {b[bad[0]]}" if len(bad) else "")
    return len(cases)


# ---- the rest, by hand: registers that are joined, predicates, memory of all kinds, branches

BY_HAND = {
    "mov.b64 joins and splits": ("ld.global.u32 %r1, [%rd20];\nld.global.u32 %r2, [%rd20+8];\nmov.b64 %rd1, {%r1, %r2};\nst.global.u64 [%rd21], %rd1;\n"
                                 "mov.b64 {%r3, %r4}, %rd1;\nst.global.v2.u32 [%rd21+8], {%r4, %r3};\n",
                                 lambda x: np.stack([x[:, 0], x[:, 2], x[:, 2], x[:, 0]], 1)),
    "mov.b32 joins and splits": ("ld.global.u16 %rs1, [%rd20];\nld.global.u16 %rs2, [%rd20+8];\nmov.b32 %r1, {%rs1, %rs2};\nst.global.u32 [%rd21], %r1;\n"
                                 "mov.b32 {%rs3, %rs4}, %r1;\nmov.b32 %r2, {%rs4, %rs3};\nst.global.u32 [%rd21+4], %r2;\n",
                                 lambda x: np.stack([(x[:, 0] & 0xffff) | x[:, 2] << 16, (x[:, 2] & 0xffff) | x[:, 0] << 16], 1)),
    "predicates": ("ld.global.u32 %r1, [%rd20];\nld.global.u32 %r2, [%rd20+8];\nsetp.lt.u32 %p1, %r1, %r2;\nsetp.gt.s32 %p2, %r1, 5;\n"
                   "and.pred %p3, %p1, %p2;\nor.pred %p4, %p1, %p2;\nxor.pred %p5, %p1, %p2;\nnot.pred %p6, %p1;\nmov.pred %p7, %p6;\n"
                   "selp.u32 %r3, 1, 0, %p3;\nselp.u32 %r4, 1, 0, %p4;\nselp.u32 %r5, 1, 0, %p5;\nselp.u32 %r6, 1, 0, %p7;\n"
                   "st.global.v4.u32 [%rd21], {%r3, %r4, %r5, %r6};\n",
                   lambda x: np.stack([(x[:, 0] < x[:, 2]) & (x[:, 0].view(S32) > 5), (x[:, 0] < x[:, 2]) | (x[:, 0].view(S32) > 5),
                                       (x[:, 0] < x[:, 2]) ^ (x[:, 0].view(S32) > 5), x[:, 0] >= x[:, 2]], 1).astype(U32)),
    "signed and narrow loads": ("ld.global.s16 %r1, [%rd20];\nld.global.u16 %r2, [%rd20];\nld.global.s8 %r3, [%rd20];\nld.global.u8 %r4, [%rd20];\n"
                                "st.global.v4.u32 [%rd21], {%r1, %r2, %r3, %r4};\nld.global.s32 %rd1, [%rd20];\nst.global.u64 [%rd21+16], %rd1;\n",
                                lambda x: np.stack([x[:, 0].astype(S16).astype(S32).view(U32), x[:, 0] & 0xffff,
                                                    x[:, 0].astype(np.int8).astype(S32).view(U32), x[:, 0] & 0xff, x[:, 0],
                                                    np.where(x[:, 0].view(S32) < 0, U32(0xffffffff), U32(0))], 1)),
    "branches": ("ld.global.u32 %r1, [%rd20];\nand.b32 %r2, %r1, 7;\nmov.u32 %r3, 0;\n$LOOP:\nadd.s32 %r3, %r3, 3;\nsetp.ne.s32 %p1, %r2, 0;\n"
                 "add.s32 %r2, %r2, -1;\n@%p1 bra $LOOP;\nand.b32 %r4, %r1, 1;\nsetp.eq.s32 %p2, %r4, 0;\n@!%p2 bra $ODD;\nadd.s32 %r3, %r3, 100;\n"
                 "$ODD:\n@%p2 add.s32 %r3, %r3, 1000;\nst.global.u32 [%rd21], %r3;\n",
                 lambda x: (3 * ((x[:, 0] & 7) + 1) + np.where(x[:, 0] & 1, 0, 1100)).astype(U32)[:, None]),
    "shfl.sync.bfly": ("ld.global.u32 %r1, [%rd20];\nshfl.sync.bfly.b32 %r2, %r1, 5, 31, -1;\nst.global.u32 [%rd21], %r2;\n",
                       lambda x: x[np.arange(COUNT) ^ 5, 0][:, None]),
}


def test_by_hand(tool):
    x = random.integers(0, 2**32, (COUNT, 64), dtype=U32)
    for seed in (0, 3):
        for name, (body, function) in BY_HAND.items():
            outputs, problem = launch(tool, kernel("k", body), x.view(np.uint8)[None], seed=seed)
            wanted = np.ascontiguousarray(function(x).astype(U32))
            check(name, problem is None and np.array_equal(outputs[0, :, :4 * wanted.shape[1]].copy().view(U32), wanted), problem or "")
    return len(BY_HAND)


def test_memory(tool):
    """Local memory between the work-items of a group, private memory by its own and by generic addresses, constant memory, cp.async."""
    x = random.integers(0, 2**32, (COUNT, 64), dtype=U32)
    to_shared = "mov.u64 %rd1, tile;\nmul.wide.u32 %rd2, %r40, 16;\nadd.s64 %rd3, %rd1, %rd2;\n"
    copy = "cvt.u32.u64 %r5, %rd3;\n@%p9 bra $SKIP;\ncp.async.cg.shared.global [%r5], [%rd20], 16, %r6;\n$SKIP:\ncp.async.commit_group;\n"
    other = "xor.b32 %r7, %r40, 9;\nmul.wide.u32 %rd4, %r7, 16;\nadd.s64 %rd5, %rd1, %rd4;\n"
    tile = ".shared .align 16 .b8 tile[512];\n"
    neighbour = (np.arange(COUNT) ^ 9)
    cases = {
        "local memory": (tile, to_shared + other + "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd20];\nst.shared.v4.u32 [%rd3], {%r1, %r2, %r3, %r4};\n"
                         "bar.sync 0;\nld.shared.v2.u32 {%r8, %r9}, [%rd5+8];\ncvta.shared.u64 %rd6, %rd5;\nld.u32 %r10, [%rd6+4];\n"
                         "st.global.v2.u32 [%rd21], {%r8, %r9};\nst.global.u32 [%rd21+8], %r10;\n", x[neighbour][:, [2, 3, 1]]),
        "cp.async": (tile, to_shared + other + "setp.ne.u32 %p9, 0, 0;\nmov.u32 %r6, 12;\n" + copy + "cp.async.wait_group 0;\nbar.sync 0;\n"
                     "ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%rd5];\nst.global.v4.u32 [%rd21], {%r1, %r2, %r3, %r4};\n",
                     np.concatenate([x[neighbour][:, :3], np.zeros((COUNT, 1), U32)], 1)),
        "private memory": (".local .align 16 .b8 depot[32];\n.reg .b64 %SP;\n.reg .b64 %SPL;\n",
                           "mov.u64 %SPL, depot;\ncvta.local.u64 %SP, %SPL;\nld.global.u32 %r1, [%rd20];\nst.local.u32 [%SPL+4], %r1;\n"
                           "ld.u32 %r2, [%SP+4];\nst.u32 [%SP+16], %r2;\nld.local.u32 %r3, [%SPL+16];\nst.global.u32 [%rd21], %r3;\n", x[:, :1]),
    }
    for name, (declarations, body, wanted) in cases.items():
        outputs, problem = launch(tool, kernel("k", body, declarations), x.view(np.uint8)[None])
        check(name, problem is None and np.array_equal(outputs[0, :, :4 * wanted.shape[1]].copy().view(U32), wanted), problem or "")
    table = ".const .align 4 .b8 table[8] = {1, 2, 3, 4, 5, 6, 7, 8};\n"
    outputs, problem = launch(tool, table + kernel("k", "mov.u64 %rd1, table;\nld.const.u32 %r1, [%rd1+4];\nst.global.u32 [%rd21], %r1;\n"),
                              x.view(np.uint8)[None])
    check("constant memory", problem is None and (outputs[0, :, :4] == [5, 6, 7, 8]).all(), problem or "")
    return len(cases) + 1


# ---- matrix cores

def halves(x, fp16_type):
    return x.astype(F16).view(U16) if fp16_type else bf16(x.astype(F32)).astype(U16)


def rounded(x, fp16_type):
    bits = halves(x, fp16_type)
    return bits.view(F16).astype(F64) if fp16_type else (bits.astype(U32) << 16).view(F32).astype(F64)


def test_mma(tool):
    for fp16_type, word in ((False, "bf16"), (True, "f16")):
        a, b, c = random.standard_normal((16, 16)), random.standard_normal((16, 8)), random.standard_normal((16, 8)).astype(F32)
        memory = np.zeros((32, 256), np.uint8)
        wanted = np.zeros((32, 4), F32)
        product = rounded(a, fp16_type) @ rounded(b, fp16_type) + c
        for lane in range(32):
            group, member = lane // 4, lane % 4
            share_a = [a[group + 8 * (r % 2), 2 * member + h + 8 * (r // 2)] for r in range(4) for h in range(2)]
            share_b = [b[2 * member + h + 8 * r, group] for r in range(2) for h in range(2)]
            places = [(group + 8 * (r // 2), 2 * member + r % 2) for r in range(4)]
            memory[lane, :16] = halves(np.array(share_a), fp16_type).view(np.uint8)
            memory[lane, 16:24] = halves(np.array(share_b), fp16_type).view(np.uint8)
            memory[lane, 32:48] = np.array([c[at] for at in places], F32).view(np.uint8)
            wanted[lane] = [product[at] for at in places]
        body = ("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd20];\nld.global.v2.u32 {%r5, %r6}, [%rd20+16];\nld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd20+32];\n"
                f"mma.sync.aligned.m16n8k16.row.col.f32.{word}.{word}.f32 {{%f5, %f6, %f7, %f8}}, {{%r1, %r2, %r3, %r4}}, {{%r5, %r6}}, {{%f1, %f2, %f3, %f4}};\n"
                "st.global.v4.f32 [%rd21], {%f5, %f6, %f7, %f8};\n")
        outputs, problem = launch(tool, kernel("k", body), memory[None], groups=1)
        check(f"mma.sync {word}", problem is None and np.allclose(outputs[0, :, :16].copy().view(F32), wanted, rtol=1e-6, atol=1e-6), problem or "")
    matrices = random.integers(0, 2**16, (4, 8, 8), dtype=U16)
    memory = np.zeros((32, 256), np.uint8)
    memory[:, :16] = matrices.reshape(32, 8).view(np.uint8)
    for word in ("", "trans."):
        body = ("mov.u64 %rd1, tile;\nmul.wide.u32 %rd2, %r40, 16;\nadd.s64 %rd3, %rd1, %rd2;\nld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd20];\n"
                "st.shared.v4.u32 [%rd3], {%r1, %r2, %r3, %r4};\nbar.warp.sync -1;\ncvt.u32.u64 %r5, %rd3;\n"
                f"ldmatrix.sync.aligned.m8n8.x4.{word}shared.b16 {{%r6, %r7, %r8, %r9}}, [%r5];\nst.global.v4.u32 [%rd21], {{%r6, %r7, %r8, %r9}};\n")
        outputs, problem = launch(tool, kernel("k", body, ".shared .align 16 .b8 tile[512];\n"), memory[None], groups=1, seed=7)
        shown = matrices.transpose(0, 2, 1) if word else matrices
        wanted = np.array([[shown[m, lane // 4, lane % 4 * 2 + h] for m in range(4) for h in range(2)] for lane in range(32)], U16)
        check(f"ldmatrix {word}", problem is None and np.array_equal(outputs[0, :, :16].copy().view(U16), wanted), problem or "")
    return 4


# name, lanes, m, n, k, elements of a lane: of A, of B, of C; places of element i of a lane in A, B, C (documents: ptx_matrix.c)
FUNCTIONS = [
    ("emulated_wmma_{}", 32, 16, 16, 16, 16, 16, 8, lambda l, i: (l % 16, i), lambda l, i: (i, l % 16), lambda l, i: (2 * i + l // 16, l % 16)),
    ("emulated_wmma12_{}", 32, 16, 16, 16, 8, 8, 8, lambda l, i: (l % 16, 8 * (l // 16) + i), lambda l, i: (8 * (l // 16) + i, l % 16),
     lambda l, i: (8 * (l // 16) + i, l % 16)),
    ("emulated_mfma_{}", 64, 16, 16, 16, 4, 4, 4, lambda l, i: (l % 16, 4 * (l // 16) + i), lambda l, i: (4 * (l // 16) + i, l % 16),
     lambda l, i: (4 * (l // 16) + i, l % 16)),
    ("emulated_mfma8_{}", 64, 16, 16, 8, 2, 2, 4, lambda l, i: (l % 16, 2 * (l // 16) + i), lambda l, i: (2 * (l // 16) + i, l % 16),
     lambda l, i: (4 * (l // 16) + i, l % 16)),
    ("intel_sub_group_{}_matrix_mad_k16", 16, 8, 16, 16, 8, 16, 8, lambda l, i: (i, l), lambda l, i: (i, l), lambda l, i: (i, l)),
    ("intel_sub_group_{}_matrix_mad_k16", 8, 8, 8, 16, 16, 16, 8, lambda l, i: (i // 2, 2 * l + i % 2), lambda l, i: (i, l), lambda l, i: (i, l)),
]


def call(name, shares):
    """Loads the arguments from input (A at 0, B at 32, C at 64), calls, and stores the result."""
    text, arguments = "{\n", []
    for argument, (at, bytes_) in enumerate(zip((0, 32, 64), shares)):
        text += f".param .align 16 .b8 param{argument}[{bytes_}];\n"
        for word in range(bytes_ // 4):
            text += f"ld.global.b32 %r1, [%rd20+{at + 4 * word}];\nst.param.b32 [param{argument}+{4 * word}], %r1;\n"
        arguments.append(f"param{argument}")
    text += f".param .align 16 .b8 retval0[{shares[2]}];\ncall.uni (retval0), {name}, ({', '.join(arguments)});\n"
    for word in range(shares[2] // 4):
        text += f"ld.param.b32 %r2, [retval0+{4 * word}];\nst.global.b32 [%rd21+{4 * word}], %r2;\n"
    return text + "}\n"


def test_functions(tool):
    count = 0
    for name, lanes, m, n, k, of_a, of_b, of_c, place_a, place_b, place_c in FUNCTIONS:
        for fp16_type in (False, True):
            word = ("f16_f16" if fp16_type else "bf16_bf16") if name.startswith("intel") else "fp16" if fp16_type else "bf16"
            if name == "emulated_mfma8_{}" and fp16_type:
                continue
            a, b, c = random.standard_normal((m, k)), random.standard_normal((k, n)), random.standard_normal((m, n)).astype(F32)
            product = rounded(a, fp16_type) @ rounded(b, fp16_type) + c
            memory = np.zeros((lanes, 256), np.uint8)
            for lane in range(lanes):
                for at, matrix, elements, place in ((0, a, of_a, place_a), (32, b, of_b, place_b)):
                    memory[lane, at:at + 2 * elements] = halves(np.array([matrix[place(lane, i)] for i in range(elements)]), fp16_type).view(np.uint8)
                memory[lane, 64:64 + 4 * of_c] = np.array([c[place_c(lane, i)] for i in range(of_c)], F32).view(np.uint8)
            outputs, problem = launch(tool, kernel("k", call(name.format(word), (2 * of_a, 2 * of_b, 4 * of_c))), memory[None], lanes, lanes, 1)
            wanted = np.array([[product[place_c(lane, i)] for i in range(of_c)] for lane in range(lanes)])
            check(f"{name.format(word)}, {lanes} lanes", problem is None
                  and np.allclose(outputs[0, :, :4 * of_c].copy().view(F32), wanted, rtol=1e-6, atol=1e-6), problem or "")
            count += 1
    x = random.integers(0, 2**32, (64, 64), dtype=U32)
    for name, lanes, how, source in (("emulated_swizzle", 64, 0x1f | 4 << 10, lambda l: l ^ 4), ("intel_sub_group_shuffle_xor", 16, 3, lambda l: l ^ 3)):
        x[:, 8] = how
        body = call(name, (4, 4, 4)).replace(", param2", "")
        outputs, problem = launch(tool, kernel("k", body), x[:lanes].view(np.uint8)[None], lanes, lanes, 1)
        check(name, problem is None and np.array_equal(outputs[0, :, :4].copy().view(U32)[:, 0], x[[source(l) for l in range(lanes)], 0]), problem or "")
    return count + 2


# ---- faults: what must be found, and the same without the fault

TILE = ".shared .align 16 .b8 tile[256];\n"
AT = "mov.u64 %rd1, tile;\nmul.wide.u32 %rd2, %r40, 4;\nadd.s64 %rd3, %rd1, %rd2;\nxor.b32 %r7, %r40, 1;\nmul.wide.u32 %rd4, %r7, 4;\nadd.s64 %rd5, %rd1, %rd4;\n"
PAIR = AT + "st.shared.u32 [%rd3], %r40;\n{}ld.shared.u32 %r1, [%rd5];\n"
BUFFER_PAIR = ("mul.wide.u32 %rd1, %r43, 64;\nsub.s64 %rd1, %rd21, %rd1;\nxor.b32 %r7, %r40, 1;\nmul.wide.u32 %rd2, %r7, 64;\nadd.s64 %rd3, %rd1, %rd2;\n"
               "{}st.global.u32 [%rd21], %r40;\n{}ld.global.u32 %r1, [%rd3];\n")
FAULTS = [
    ("a barrier is missing", PAIR, "bar.sync 0;\n", "", "races: reads", 64),
    ("a fence within a warp is missing", PAIR, "bar.warp.sync -1;\n", "", "races: reads", 32),
    ("a fence within a warp is not enough for two", AT.replace("%r40, 1;", "%r40, 32;") + "st.shared.u32 [%rd3], %r40;\n{}ld.shared.u32 %r1, [%rd5];\n",
     "bar.sync 0;\n", "bar.warp.sync -1;\n", "races: ", 64),
    ("written after it was read", AT + "ld.shared.u32 %r1, [%rd5];\n{}st.shared.u32 [%rd3], %r40;\n", "bar.sync 0;\n", "", "races: writes", 32),
    ("a barrier for local memory is one for global memory", PAIR, "bar.sync 1;\n", "bar.sync 2;\n", "races: reads local", 64),
    ("a barrier for global memory is missing", BUFFER_PAIR.format("", "{}"), "bar.sync 2;\n", "", "where another work-item writes", 64),
    ("a barrier for global memory is one for local memory", BUFFER_PAIR.format("", "{}"), "bar.sync 3;\n", "bar.sync 1;\n", "where another work-item writes", 64),
    ("written where another one has read", BUFFER_PAIR.format("ld.global.u32 %r2, [%rd3];\n{}", "bar.sync 0;\n"), "bar.sync 0;\n", "", "where another work-item reads", 64),
    ("outside of local memory", AT + "st.shared.u32 [%rd3{}], %r40;\n", "", "+256", "local memory at", 32),
    ("outside of a buffer", "st.global.u32 [%rd21{}], %r40;\n", "", "+4096", "outside of all buffers", 32),
    ("before a buffer", "ld.global.u32 %r1, [%rd20{}];\n", "", "+-4", "outside of all buffers", 32),
    ("not aligned", "ld.global.v2.u32 {{%r1, %r2}}, [%rd20{}];\n", "", "+4", "not aligned", 32),
    ("outside of private memory", "mov.u64 %rd1, depot;\nst.local.u32 [%rd1{}], %r40;\n", "", "+16", "private memory", 32),
    ("not all come to a barrier", "setp.lt.u32 %p1, %r40, 40;\n{}bra $END;\n$END:\nbar.sync 0;\n", "", "@%p1 ret;\n", "returned", 64),
    ("lanes of a warp at two barriers", "setp.lt.u32 %p1, %r40, 7;\n{}$NEXT:\nbar.sync 0;\n", "", "@%p1 bra $OTHER;\nbar.sync 0;\n$OTHER:\n", "different places", 32),
    ("read before the copy is waited for", AT.replace(", 4;", ", 16;") + "cvt.u32.u64 %r5, %rd3;\nmov.u32 %r6, 16;\ncp.async.cg.shared.global [%r5], [%rd20], 16, %r6;\n"
     "cp.async.commit_group;\n{}ld.shared.u32 %r1, [%rd3];\n", "cp.async.wait_group 0;\n", "cp.async.wait_group 1;\n", "still copies", 16),
    ("an instruction that is not known", "{}", "", "tanh.approx.f32 %f1, %f2;\n", "not known", 32),
]


def test_faults(tool):
    memory = np.zeros((1, 64, 256), np.uint8)
    shared_place = "mul.wide.u32 %rd23, %r43, 64;\nsub.s64 %rd21, %rd21, %rd23;\n"  # the output of the first work-item
    for name, body in (("two groups write to one place", "st.global.u32 [%rd21], %r1;\n"),
                       ("a group reads what another writes", "setp.eq.s32 %p1, %r41, 0;\n@%p1 st.global.u32 [%rd21], %r1;\n@!%p1 ld.global.u32 %r2, [%rd21];\n")):
        _, problem = launch(tool, kernel("k", shared_place + body), memory[:, :4], 32, 1, 4)
        check(name, problem is not None and "races" in problem, repr(problem))
    for name, text, right, wrong, words, items in FAULTS:
        declarations = TILE + ".local .align 16 .b8 depot[16];\n"
        for change, expected in ((right, None), (wrong, words)):
            _, problem = launch(tool, kernel("k", text.format(change), declarations), memory[:, :items], 32, items, 1)
            fine = problem is None if expected is None else problem is not None and expected in problem
            check(f"{name}: {'with' if expected else 'without'} the fault", fine, repr(problem))
    return len(FAULTS) + 2


def main():
    tool = os.path.abspath(sys.argv[1])
    counts = [test(tool) for test in (test_opcodes, test_comparisons, test_by_hand, test_memory, test_mma, test_functions, test_faults)]
    print(f"{counts[0]} opcodes, {counts[1]} comparisons, {sum(counts[2:6])} other instructions and functions, {counts[6]} faults; {len(failures)} failed")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
