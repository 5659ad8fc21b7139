# shellcheck shell=sh disable=SC2034,SC2154  # the script that reads this sets $script and uses $clang_amd
# What ci/ptx.sh and ci/attention_ptx.sh share; $script is the name of the one that reads this. Their own are the functions nvidia,
# amd and intel, which compile for a vendor, and call `fail` where something is wrong.
first_of() {
    for program in "$@"; do
        command -v "$program" && return
    done
    echo "ci/$script: there is none of: $*" >&2
    exit 1
}
ptxas=${PTXAS:-$(command -v ptxas || true)}
libclc=${LIBCLC:-/usr/lib/clc}
# The first that is there and reads the library of OpenCL's functions, which may be a newer clang's.
first_reader() {
    for program; do
        if echo 'kernel void nothing(void) {}' | "$program" -x cl -target nvptx64-nvidia-nvcl -Xclang -mlink-builtin-bitcode \
            -Xclang "$libclc/nvptx64--nvidiacl.bc" -S - -o /dev/null 2>/dev/null; then
            echo "$program"
            return
        fi
    done
    first_of "$@"
}
clang=${CLANG:-$(first_reader clang-15 clang-16 clang-17 clang-18 clang-19 /usr/lib/llvm-15/bin/clang clang)}
clang_amd=${CLANG_AMD:-$(first_of clang-20 clang-19 "$clang")}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What went wrong is kept in a file, since loops behind a pipe have variables of their own.
fail() {
    echo "ci/$script: $*" >&2
    echo "$*" >>"$work/failures"
}

# For AMD: macros that name the target, which ROCm's OpenCL loses, so that kernels may not depend on them.
amd_lost="-U__GFX9__ -U__GFX11__ -U__GFX12__"

# For Intel: the extension's functions, in $work/extension.h.
declare_intel() {
    cat >"$work/extension.h" <<'DECLARATIONS'
#define MAD(name, a_type) float8 __attribute__((overloadable)) name(a_type a, int8 b, float8 c);
MAD(intel_sub_group_bf16_bf16_matrix_mad_k16, short8)
MAD(intel_sub_group_bf16_bf16_matrix_mad_k16, int8)
MAD(intel_sub_group_f16_f16_matrix_mad_k16, short8)
MAD(intel_sub_group_f16_f16_matrix_mad_k16, int8)
DECLARATIONS
}

# The work of the script, with its arguments.
run_vendors() {
    [ $# -gt 0 ] || set -- nvidia amd intel
    [ -n "$ptxas" ] || echo "ci/$script: there is no ptxas: PTX is made, but not assembled"
    for vendor in "$@"; do
        case $vendor in
        nvidia | amd | intel) "$vendor" ;;
        *)
            echo "ci/$script: nvidia, amd or intel, not $vendor" >&2
            exit 2
            ;;
        esac
    done
    [ ! -e "$work/failures" ]
}
