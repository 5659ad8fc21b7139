"""Every function that the programs import can be made to fail (functions.h), or cannot fail in a way that matters."""
import re
import subprocess
import sys
from pathlib import Path

# What has no failure, or none that a caller could mend: numbers, text in memory, what is asked of objects that are there, and releases.
NO_FAILURE = r"""
    _ITM_.*|__(cxa_finalize|gmon_start__|libc_start_main|errno_location|ctype_b_loc|isoc99_v?sscanf|isoc23_(v?sscanf|strto(l|ll|ul|ull))|sched_cpucount|xpg_basename|environ)|environ
    |abort|exit|on_exit|raise|mem(chr|cmp|cpy|mem|move|set)|str(casecmp|casestr|chr|cmp|cpy|cspn|error|error_r|len|ncasecmp|ncmp|ncpy|nlen|pbrk|rchr|sep|signal|spn|str|tok_r|verscmp)
    |dirname|strto(d|l|ll|ul|ull)|v?s?n?printf|vsnprintf|sprintf|qsort(_r)?|versionsort|free|feof|ferror|fileno|rewind|closedir|fts_(set|close)|reg(error|exec|free)|fnmatch|getenv|unsetenv
    |getpid|getppid|geteuid|kill|signal|sigemptyset|time|clock_gettime|nanosleep|sched_yield|munmap|dladdr|dlerror
    |cos|sin|sincos|tan|exp2?|erf|f(max|min)f?|frexpf|ldexpf|nearbyintf|round|hypotf?|log|log10|log2|pow|sqrtf?|tanhf?
    |pthread_(once|join|mutex_(lock|unlock|destroy)|cond_(broadcast|destroy|signal|wait))|sem_(destroy|init|post|wait)|posix_spawn_file_actions_destroy
    |json_\w+
    |EVP_(EncodeBlock|MD_CTX_free|sha256)|ZSTD_(freeDStream|getErrorCode|getErrorName|isError)|inflateEnd|crc32_z
    |uc_(canonical_decomposition|combining_class|composition|is_general_category_withtable)
    |pcre2_(code_free|get_error_message|get_ovector_pointer|match_context_free|match_data_free|set_match_limit)_8
    |cl(Release(CommandQueue|Context|Event|Kernel|MemObject|Program))|MPI_(Abort|Error_string|Finalized|Initialized)|ompi_.*
    |__(asan|ubsan)_.*"""


def main():
    listed = set(re.findall(r"^FAULT\((\w+),", (Path(__file__).parent / "functions.h").read_text(), re.MULTILINE))
    harmless = re.compile(re.sub(r"\s", "", NO_FAILURE))
    imported = set()
    for program in sys.argv[1:]:
        names = subprocess.run(["nm", "-D", "--undefined-only", program], check=True, capture_output=True, text=True).stdout
        imported |= {line.split()[-1].split("@")[0] for line in names.splitlines() if line.split()[-2] == "U"}
    missing = sorted(name for name in imported - listed if not harmless.fullmatch(name))
    unused = sorted(listed - imported)
    print(*(f"{name} can be called, but functions.h does not say how it fails" for name in missing), sep="\n")
    print(*(f"{name} is in functions.h, but no program calls it" for name in unused), sep="\n")
    print(f"{len(imported)} functions are imported; {len(listed)} of them are made to fail")
    return 1 if missing or unused else 0


if __name__ == "__main__":
    sys.exit(main())
