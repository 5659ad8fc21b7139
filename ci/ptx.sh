#!/bin/sh
# Compiles the products on matrix units (cl/mma_gemm.cl) for GPUs that need not be there, and fails where registers spill:
#
#   ci/ptx.sh [nvidia|amd|intel]...        default: all three
#
# NVIDIA: to PTX with clang, which ptxas (if there is one) assembles for sm_80, sm_86 and sm_90. AMD: to the ISA of every GPU of the
# list below that clang knows. Intel: to LLVM's form of SPIR-V, with the extension's functions declared. Needs clang 15 or later and
# libclc (Debian: clang-15 libclc-15, and clang-19 for gfx12 and gfx942); CLANG, CLANG_AMD, PTXAS and LIBCLC in the environment say
# where. Registers are bounded as runtime/gemm/mma.c does it on NVIDIA. A line per variant: constants as in cl/mma_gemm.cl and
# cl/mma_finish.cl, registers, local memory.
# shellcheck disable=SC2046,SC2086  # lists of numbers are to become words
set -eu
cd "$(dirname "$0")/.."
script=ptx.sh
. ci/ptx_common.sh

for kernel in mma_gemm mma_parts; do
    cat cl/element.cl cl/matrix_unit.cl cl/mma_finish.cl cl/$kernel.cl >"$work/$kernel-0.cl"
    cat cl/common.cl cl/elementwise.cl "$work/$kernel-0.cl" >"$work/$kernel-gelu.cl"
done

# Variants, one a line: kernel, tiles, fp16, A and B transposed, LOAD, C's type, RUN, ADDS, BIAS, SIDE, GELU by tanh, PARTS. What a
# layer needs of each kind of tiles (large, medium, small, narrow and flat), then the rest.
variants() {
    large=$1
    for tiles in "$@"; do
        echo "mma_gemm $tiles 0 0 1 2 1 8 0 0 0 0 0"
        echo "mma_gemm $tiles 0 0 0 1 1 8 0 0 0 0 0"
        echo "mma_gemm $tiles 0 1 0 2 0 8 1 0 0 0 1"
        echo "mma_gemm $tiles 0 1 1 0 0 1 0 0 0 0 0"
    done
    for transposed in "0 0" "0 1" "1 0" "1 1"; do
        for load in 0 1 2; do
            echo "mma_gemm $large 0 $transposed $load 0 8 0 0 0 0 0"
        done
    done
    for parts in 0 1; do
        echo "mma_gemm $large 0 0 1 2 1 8 0 1 0 0 $parts"
        for tanh in 0 1; do
            echo "mma_gemm $large 0 0 1 2 1 8 0 1 1 $tanh $parts"
            echo "mma_gemm $large 0 0 0 2 1 8 0 0 2 $tanh $parts"
        done
    done
    echo "mma_gemm $large 0 0 0 2 1 8 1 0 0 0 0"
    echo "mma_gemm $large 1 0 1 1 1 1 0 0 0 0 0"
    echo "mma_gemm $large 1 1 0 1 2 1 1 1 1 1 0"
    echo "mma_parts $large 0 1 0 2 0 8 1 0 0 0 1"
    echo "mma_parts $large 0 0 1 2 1 8 0 1 1 0 1"
    echo "mma_parts $large 0 0 0 1 2 1 0 0 2 1 1"
}

# The options of a variant of unit $1 with warps of $2; $3 and so on: as above.
options() {
    echo "-DUNIT=$1 -DUNIT_WARP=$2 -DBLOCK_M=$4 -DBLOCK_N=$5 -DBLOCK_K=$6 -DWARP_M=$7 -DWARP_N=$8 -DSTAGES=$9" \
        "-DUNIT_FP16=${10} -DTRANSPOSE_A=${11} -DTRANSPOSE_B=${12} -DLOAD=${13} -DTYPE_C=${14} -DRUN=${15} -DADDS=${16}" \
        "-DBIAS=${17} -DSIDE=${18} -DGELU_TANH=${19} -DPARTS=${20} -DTURNS=$(($1 > 1)) -DTYPE_BIAS=0 -DTYPE_SIDE=$((1 + ${10}))" \
        "-DVEC=1 -DVEC_MAX=4 -DLANES=64"
}

source_of() {
    [ "${16}" = 0 ] && echo "$work/$1-0.cl" || echo "$work/$1-gelu.cl"
}

# Options of every compilation, as runtime/device/program.c has them.
common="-w -x cl -cl-std=CL1.2 -cl-mad-enable -cl-no-signed-zeros -O3 -Xclang -finclude-default-header"

label() {
    echo "$3 $4x$5x$6 warps $7x$8 stages $9 $([ "${10}" = 1 ] && echo fp16 || echo bf16)" \
        "$(echo "${11}${12}" | tr 01 nt) load ${13} C ${14} run ${15} adds ${16} bias ${17} side ${18} tanh ${19} parts ${20}"
}

nvidia() {
    variants "128 128 32 64 32 3" "128 64 32 32 32 3" "64 64 32 32 32 4" "128 32 32 32 32 4" "32 128 32 32 32 4" | while read -r variant; do
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
            # of the kernel alone: elementwise.cl has others
            figures=$(awk -v kernel="'${variant%% *}'" '/Compiling entry function/ { ours = index($0, kernel) }
                ours && /spill/ { spills = $5 + $9 }
                ours && /Used/ { match($0, /Used [0-9]+/); r = substr($0, RSTART + 5, RLENGTH - 5)
                                 match($0, /[0-9]+ bytes smem/); s = substr($0, RSTART, RLENGTH - 11) }
                END { print r, s + 0, spills + 0 }' "$work/log")
            set -- $figures
            echo "nvidia $arch: $(label 1 32 $variant): $1 registers, $2 bytes of local memory, $3 bytes spilt"
            [ "$3" = 0 ] || fail "nvidia $arch: $(label 1 32 $variant): registers are spilt"
        done
    done
}

amd() {
    for gpu in gfx1100 gfx1201 gfx908 gfx90a gfx942; do
        unit="2 32"
        [ $gpu != gfx1201 ] || unit="6 32"
        tiles="128 128 32 64 32 2"
        medium="128 64 32 32 32 2"
        narrow="128 32 32 32 32 2"
        flat="32 128 32 32 32 2"
        case $gpu in
        gfx9*)
            unit="3 64"
            [ $gpu != gfx908 ] || unit="7 64"
            tiles="128 128 32 64 64 2"
            medium="128 64 32 64 32 2"
            narrow="128 32 32 64 32 2"
            flat="32 128 32 32 64 2"
            ;;
        esac
        if ! echo 'kernel void nothing(void) {}' | "$clang_amd" -w -x cl -target amdgcn-amd-amdhsa -mcpu=$gpu -nogpulib -S \
            -o "$work/a.s" - 2>/dev/null; then
            echo "amd $gpu: this clang does not know it"
            continue
        fi
        variants "$tiles" "$medium" "64 64 32 32 32 2" "$narrow" "$flat" | while read -r variant; do
            if ! "$clang_amd" $common $amd_lost -target amdgcn-amd-amdhsa -mcpu=$gpu -nogpulib -Xclang -mlink-builtin-bitcode \
                -Xclang "$libclc/amdgcn--amdhsa.bc" $(options $unit $variant) -S -o "$work/a.s" "$(source_of $variant)"; then
                fail "amd $gpu: $(label $unit $variant) does not compile"
                continue
            fi
            figures=$(awk -v kernel="${variant%% *}" '/^ *\.name:/ && $2 == kernel { ours = 1 } /\.group_segment_fixed_size:/ { local = $2 } /\.vgpr_count:/ { registers = $2 }
                /\.vgpr_spill_count:/ { if (ours) { print registers, local, $2; ours = 0 } }' "$work/a.s")
            set -- $figures
            echo "amd $gpu: $(label $unit $variant): $1 registers, $2 bytes of local memory, $3 spilt"
            [ "$3" = 0 ] || fail "amd $gpu: $(label $unit $variant): registers are spilt"
        done
    done
}

intel() {
    declare_intel
    for warp in 16 8; do
        tiles="128 128 32 32 32 2"
        medium="128 64 32 32 32 2"
        small="64 64 32 32 32 2"
        narrow="128 32 32 32 32 2"
        flat="32 128 32 32 32 2"
        if [ $warp = 8 ]; then
            tiles="128 128 32 32 16 2"
            medium="128 64 32 32 16 2"
            small="64 64 32 16 32 2"
            narrow="128 32 32 16 32 2"
            flat="32 128 32 32 16 2"
        fi
        variants "$tiles" "$medium" "$small" "$narrow" "$flat" | while read -r variant; do
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
