#!/bin/sh
# Compiles the products on matrix units (cl/mma_gemm.cl) for GPUs that need not be there, and fails where registers spill:
#
#   ci/ptx.sh [nvidia|amd|intel]...        default: all three
#
# NVIDIA: to PTX with clang, which ptxas (if there is one) assembles for sm_80, sm_86 and sm_90. AMD: to the ISA of every GPU of the
# list below that clang knows. Intel: to LLVM's form of SPIR-V, with the extension's functions declared. Needs clang 15 or later and
# libclc (Debian: clang-15 libclc-15, and clang-19 for gfx12 and gfx942); CLANG, CLANG_AMD, PTXAS and LIBCLC in the environment say
# where. Registers are bounded as runtime/gemm/mma.c does it on NVIDIA. A line per variant: transpositions, LOAD and C's type as in cl/mma_gemm.cl, registers, local memory.
set -eu
cd "$(dirname "$0")/.."
script=ptx.sh
. ci/ptx_common.sh

cat cl/element.cl cl/matrix_unit.cl cl/mma_gemm.cl >"$work/plain.cl"
cat cl/common.cl cl/elementwise.cl cl/element.cl cl/matrix_unit.cl cl/mma_gemm.cl >"$work/full.cl"

# Variants, one a line: tiles, fp16, A and B transposed, LOAD, C's type and evenness, epilogue, GELU by tanh.
variants() {
    tiles=$1
    small=$2
    for transposed in "0 0" "0 1" "1 0" "1 1"; do
        for load in 0 1 2; do
            echo "$tiles 0 $transposed $load 0 1 0 0"
        done
        echo "$small 0 $transposed 1 0 1 0 0"
    done
    echo "$tiles 1 0 1 2 0 1 0 0"
    echo "$tiles 0 0 1 1 1 0 0 0"
    echo "$tiles 0 0 1 2 1 1 1 0"
    echo "$tiles 1 0 1 1 2 1 1 1"
}

# The options of a variant of unit $1 with warps of $2; $3 and so on: as above.
options() {
    echo "-DUNIT=$1 -DUNIT_WARP=$2 -DBLOCK_M=$3 -DBLOCK_N=$4 -DBLOCK_K=$5 -DWARP_M=$6 -DWARP_N=$7 -DSTAGES=$8 -DUNIT_FP16=$9" \
        "-DTRANSPOSE_A=${10} -DTRANSPOSE_B=${11} -DLOAD=${12} -DTYPE_C=${13} -DEVEN_C=${14} -DEPILOGUE=${15}" \
        "-DGELU_TANH=${16} -DVEC=1 -DVEC_MAX=4 -DLANES=64"
}

source_of() {
    [ "${13}" = 1 ] && echo "$work/full.cl" || echo "$work/plain.cl"
}

# Options of every compilation, as runtime/device/program.c has them.
common="-w -x cl -cl-std=CL1.2 -cl-mad-enable -cl-no-signed-zeros -O3 -Xclang -finclude-default-header"

label() {
    echo "$3x$4x$5 warps $6x$7 stages $8 $([ "$9" = 1 ] && echo fp16 || echo bf16)" \
        "$(echo "${10}${11}" | tr 01 nt) load ${12} C ${13} epilogue ${15}${16}"
}

nvidia() {
    variants "128 128 32 64 32 3" "64 64 32 32 32 4" | while read -r variant; do
        # shellcheck disable=SC2086  # words are wanted, here and below
        if ! "$clang" $common -target nvptx64-nvidia-nvcl -Xclang -target-cpu -Xclang sm_80 -Xclang -target-feature \
            -Xclang +ptx75 -Xclang -mlink-builtin-bitcode -Xclang "$libclc/nvptx64--nvidiacl.bc" $(options 1 32 $variant) \
            -S -o "$work/a.ptx" "$(source_of $variant)"; then
            fail "nvidia: $(label 1 32 $variant) does not compile"
            continue
        fi
        [ -n "$ptxas" ] || continue
        for arch in sm_80 sm_86 sm_90; do
            if ! "$ptxas" -v --maxrregcount 128 --gpu-name "$arch" "$work/a.ptx" -o "$work/a.cubin" >"$work/log" 2>&1; then
                fail "nvidia $arch: $(label 1 32 $variant): $(cat "$work/log")"
                continue
            fi
            # of the kernel mma_gemm alone
            figures=$(awk '/Compiling entry function/ { ours = /mma_gemm/ }
                ours && /spill/ { spills = $5 + $9 }
                ours && /Used/ { match($0, /Used [0-9]+/); r = substr($0, RSTART + 5, RLENGTH - 5)
                                 match($0, /[0-9]+ bytes smem/); s = substr($0, RSTART, RLENGTH - 11) }
                END { print r, s, spills }' "$work/log")
            # shellcheck disable=SC2086
            set -- $figures
            echo "nvidia $arch: $(label 1 32 $variant): $1 registers, $2 bytes of local memory, $3 bytes spilt"
            [ "$3" = 0 ] || fail "nvidia $arch: $(label 1 32 $variant): registers are spilt"
        done
    done
}

amd() {
    for gpu in gfx1100 gfx1201 gfx90a gfx942; do
        unit="2 32"
        tiles="128 128 32 64 32 2"
        case $gpu in
        gfx9*)
            unit="3 64"
            tiles="128 128 32 64 64 2"
            ;;
        esac
        if ! echo 'kernel void nothing(void) {}' | "$clang_amd" -w -x cl -target amdgcn-amd-amdhsa -mcpu=$gpu -nogpulib -S \
            -o "$work/a.s" - 2>/dev/null; then
            echo "amd $gpu: this clang does not know it"
            continue
        fi
        variants "$tiles" "64 64 32 32 32 2" | while read -r variant; do
            # shellcheck disable=SC2086
            if ! "$clang_amd" $common -target amdgcn-amd-amdhsa -mcpu=$gpu -nogpulib -Xclang -mlink-builtin-bitcode \
                -Xclang "$libclc/amdgcn--amdhsa.bc" $(options $unit $variant) -S -o "$work/a.s" "$(source_of $variant)"; then
                fail "amd $gpu: $(label $unit $variant) does not compile"
                continue
            fi
            figures=$(awk '/^ *\.name: *mma_gemm$/ { ours = 1 } /\.group_segment_fixed_size:/ { local = $2 } /\.vgpr_count:/ { registers = $2 }
                /\.sgpr_spill_count:/ { scalar = $2 }
                /\.vgpr_spill_count:/ { if (ours) { print registers, local, $2 + scalar; ours = 0 } }' "$work/a.s")
            # shellcheck disable=SC2086
            set -- $figures
            echo "amd $gpu: $(label $unit $variant): $1 registers, $2 bytes of local memory, $3 spilt"
            [ "$3" = 0 ] || fail "amd $gpu: $(label $unit $variant): registers are spilt"
        done
    done
}

intel() {
    declare_intel
    for warp in 16 8; do
        variants "128 128 32 32 32 2" "64 64 32 16 32 2" | while read -r variant; do
            # shellcheck disable=SC2086
            if "$clang" $common -target spir64-unknown-unknown -include "$work/extension.h" $(options 4 $warp $variant) \
                -emit-llvm -c -o "$work/a.bc" "$(source_of $variant)"; then
                echo "intel sub-groups of $warp: $(label 4 $warp $variant): compiles"
            else
                fail "intel sub-groups of $warp: $(label 4 $warp $variant) does not compile"
            fi
        done
    done
}

run_vendors "$@"
