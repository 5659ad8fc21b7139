#!/usr/bin/env python3
"""Checks sizes (CTest's `functions`): a function of src/ and runtime/ has at most 100 lines, without the rows of tables in it, and 8
parameters; OpenCL's own functions in runtime/vulkan may have more. A kernel of cl/ has at most 18 parameters, and no function there the name of one of
OpenCL C's, which some compilers refuse. Lines of kernels and
of C files, tests included, have at most 116 columns.

    ci/functions.py
"""
import glob
import os
import re
import sys

MOST_LINES, MOST_PARAMETERS, MOST_KERNEL_PARAMETERS, MOST_COLUMNS = 100, 8, 18, 116
TEXTS = ["cl/*.cl", "src/*/*.[ch]", "runtime/*/*.[ch]", "tests/*/*.[ch]", "bench/*/*.[ch]"]
# Of functions that OpenCL C 1.2 has for all devices, and that a name of ours might be.
BUILT_IN = set("""abs abs_diff add_sat hadd rhadd clamp clz mad_hi mad_sat max min mul_hi rotate sub_sat upsample popcount mad24 mul24 degrees mix radians step
smoothstep sign cross dot distance length normalize acos asin atan atan2 cbrt ceil copysign cos cosh erf erfc exp exp2 exp10 expm1 fabs fdim floor fma fmax fmin
fmod fract frexp hypot ilogb ldexp lgamma log log2 log10 log1p logb mad maxmag minmag modf nan nextafter pow pown powr remainder remquo rint rootn round rsqrt
sin sincos sinh sqrt tan tanh tgamma trunc isequal isless isfinite isinf isnan isnormal any all bitselect select shuffle shuffle2 barrier mem_fence prefetch
printf""".split())
HEAD = re.compile(r"^(?!typedef|struct \w+ \{|enum|union)[A-Za-z_][\w \*]*?(\w+)\(([^;{}]*?)\)\s*(__attribute__[^;{]*)?([;{])", re.M)


def without_comments(text):
    """The same lines, with nothing in comments and strings."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"'
    return re.sub(pattern, lambda found: "\n" * found.group().count("\n") or '""', text, flags=re.S)


def functions(text):
    """(name, number of parameters, lines without tables or 0 for a prototype, first line) of each."""
    for found in HEAD.finditer(text):
        first = text.count("\n", 0, found.start()) + 1
        parameters = 0 if found.group(2).strip() in ("", "void") else found.group(2).count(",") + 1
        lines = 0
        if found.group(4) == "{":
            end = text.find("\n}", found.end() - 1)
            body = text[found.start():end + 2]
            tables = re.findall(r"\[[^\]\n]*\] = \{\n.*?\n    \};", body, flags=re.S)
            lines = body.count("\n") + 1 - sum(table.count("\n") for table in tables)
        yield found.group(1), parameters, lines, first


def kernels(text):
    """(name, number of parameters, first line) of each kernel; a macro of parameters is counted by its commas."""
    for found in re.finditer(r"^(?:__kernel|[A-Z]+_KERNEL)\b[^;{}]*?void (\w+)\(([^{]*?)\)\s*\{", text, re.M):
        parameters = found.group(2)
        for name, value in re.findall(r"#define (\w+) ((?:.*\\\n)*.*)", text):
            parameters = re.sub(r"\b%s\b" % name, lambda _: value, parameters)
        yield found.group(1), parameters.count(",") + 1, text.count("\n", 0, found.start()) + 1


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    count, wrong = 0, 0
    for path in sorted(glob.glob("src/*/*.[ch]") + glob.glob("runtime/*/*.[ch]")):
        with open(path, encoding="utf-8") as file:
            text = without_comments(file.read())
        for name, parameters, lines, first in functions(text):
            count += lines > 0
            if path.startswith("runtime/vulkan/") and re.match("vulkan_cl[A-Z]", name):
                parameters = 0
            for number, most, what in ((lines, MOST_LINES, "lines"), (parameters, MOST_PARAMETERS, "parameters")):
                if number > most:
                    print("%s:%d: %s has %d %s, more than %d" % (path, first, name, number, what, most))
                    wrong += 1
    for path in sorted(glob.glob("cl/*.cl")):
        with open(path, encoding="utf-8") as file:
            text = without_comments(file.read())
        for name, parameters, first in kernels(text):
            count += 1
            if parameters > MOST_KERNEL_PARAMETERS:
                print("%s:%d: kernel %s has %d parameters, more than %d" % (path, first, name, parameters, MOST_KERNEL_PARAMETERS))
                wrong += 1
        for name, _, _, first in functions(text):
            if name in BUILT_IN and not path.endswith("pocl_builtins.cl"):  # which is to have them
                print("%s:%d: %s is a function of OpenCL C" % (path, first, name))
                wrong += 1
    for path in sorted(sum((glob.glob(each) for each in TEXTS), [])):
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if len(line.rstrip("\n")) > MOST_COLUMNS:
                    print("%s:%d: a line of %d columns, more than %d" % (path, number, len(line) - 1, MOST_COLUMNS))
                    wrong += 1
    print("%d functions and kernels, %d faults" % (count, wrong))
    sys.exit(1 if wrong or count == 0 else 0)


if __name__ == "__main__":
    main()
