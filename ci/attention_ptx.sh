#!/bin/sh
# Compiles attention on matrix units (cl/attention_matrix_cores.cl) for GPUs that need not be there. A line per kernel:
#
#   ci/attention_ptx.sh [nvidia|amd|intel]...        default: all three
#
# NVIDIA: ptxas assembles the PTX for sm_80, sm_86 and sm_90, and the script fails where registers spill or arrays are left in memory.
# AMD: fails where registers spill in heads of up to 64 channels; wider ones are reported. Intel: to LLVM's form of SPIR-V. What it
# needs is as for ci/ptx.sh. The sizes of blocks are those that src/operations/attention_matrix_cores.c chooses.
# shellcheck disable=SC2046,SC2086  # lists of numbers are to become words
set -eu
cd "$(dirname "$0")/.."
script=attention_ptx.sh
. ci/ptx_common.sh
cat cl/common.cl cl/element.cl cl/matrix_unit.cl cl/matrix_unit_rows.cl cl/attention_matrix_cores.cl >"$work/all.cl"

# Options of unit $1 with warps of $2, KEYS $3, BLOCK $4, KEEP $5, for heads of $6 channels in bf16 ($7 = 0) or fp16 (1).
options() {
    echo "-w -x cl -cl-std=CL1.2 -cl-mad-enable -cl-no-signed-zeros -O3 -Xclang -finclude-default-header -DLANES=64 -DVEC_MAX=4" \
        "-DVEC=1 -DUNIT=$1 -DUNIT_WARP=$2 -DUNIT_TURN_LOCAL=0 -DWARPS=4 -DSTRIP=16 -DKEYS=$3 -DBLOCK=$4 -DKEEP=$5" \
        "-DHEAD_SIZE=$6 -DUNIT_FP16=$7"
}

keys_of() {
    [ "$1" -le 64 ] && echo 64 || echo 32
}

nvidia() {
    for variant in "32 0" "64 0" "64 1" "80 0" "96 0" "128 0" "128 1"; do
        if ! "$clang" $(options 1 32 "$(keys_of ${variant% *})" 32 1 $variant) -target nvptx64-nvidia-nvcl -Xclang -target-cpu \
            -Xclang sm_80 -Xclang -target-feature -Xclang +ptx75 -Xclang -mlink-builtin-bitcode \
            -Xclang "$libclc/nvptx64--nvidiacl.bc" -S -o "$work/a.ptx" "$work/all.cl"; then
            fail "nvidia: heads of $variant do not compile"
            continue
        fi
        [ -n "$ptxas" ] || continue
        for arch in sm_80 sm_86 sm_90; do
            if ! "$ptxas" -v --gpu-name "$arch" "$work/a.ptx" -o "$work/a.cubin" >"$work/log" 2>&1; then
                fail "nvidia $arch: heads of $variant: $(cat "$work/log")"
                continue
            fi
            awk -v what="nvidia $arch: ${variant% *} channels, $([ "${variant#* }" = 1 ] && echo fp16 || echo bf16)" -v failures="$work/failures" '
                /Compiling entry function/ { split($0, quoted, "\047"); name = quoted[2] }
                /stack frame/ && name ~ /^attention_/ { memory = $1 + $5 + $9 }
                /Used [0-9]+ registers/ && name ~ /^attention_/ {
                    match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
                    match($0, /[0-9]+ bytes smem/); shared = substr($0, RSTART, RLENGTH - 11)
                    line = what ": " name ": " registers " registers, " shared " bytes of local memory, " memory " bytes spilt"
                    print line
                    if (memory) print line >> failures
                    name = ""
                    count++
                }
                END { if (count != 4) print what ": " count + 0 " kernels of 4 found in what ptxas says" | "tee -a " failures " >&2" }' "$work/log"
        done
    done
}

amd() {
    for gpu in gfx1100 gfx1201 gfx908 gfx90a gfx942; do
        if ! echo 'kernel void nothing(void) {}' | "$clang_amd" -w -x cl -target amdgcn-amd-amdhsa -mcpu=$gpu -nogpulib -S \
            -o "$work/a.s" - 2>/dev/null; then
            echo "amd $gpu: this clang does not know it"
            continue
        fi
        for size in 64 128; do
            case $gpu-$size in
            gfx908*) unit="7 64 $(keys_of $size) 32 1" ;;
            gfx9*) unit="3 64 $(keys_of $size) 32 1" ;;
            gfx12*) unit="6 32 $(keys_of $size) 32 1" ;;
            *-64) unit="2 32 32 16 1" ;;
            *) unit="2 32 32 16 0" ;;
            esac
            if ! "$clang_amd" $(options $unit $size 0) $amd_lost -target amdgcn-amd-amdhsa -mcpu=$gpu -nogpulib \
                -Xclang -mlink-builtin-bitcode -Xclang "$libclc/amdgcn--amdhsa.bc" -S -o "$work/a.s" "$work/all.cl"; then
                fail "amd $gpu: heads of $size do not compile"
                continue
            fi
            awk -v what="amd $gpu: $size channels, bf16" -v strict="$([ $size = 64 ] && echo 1 || echo 0)" -v failures="$work/failures" '
                /\.group_segment_fixed_size:/ { shared = $2 } /^ *\.name: *attention_/ { name = $2 }
                /\.private_segment_fixed_size:/ { scratch = $2 } /\.vgpr_count:/ { registers = $2 }
                /\.vgpr_spill_count:/ && name != "" {
                    line = what ": " name ": " registers " registers, " shared " bytes of local memory, " scratch " bytes of scratch"
                    print line
                    if (strict && scratch) print line >> failures
                    name = ""
                    count++
                }
                END { if (count != 4) print what ": " count + 0 " kernels of 4 found in the assembly" | "tee -a " failures " >&2" }' "$work/a.s"
        done
    done
}

intel() {
    declare_intel
    cat >>"$work/extension.h" <<'DECLARATIONS'
float intel_sub_group_shuffle_xor(float x, uint bit);
DECLARATIONS
    for warp in 16 8; do
        for variant in "64 0" "128 1"; do
            if "$clang" $(options 4 $warp "$(keys_of ${variant% *})" 32 1 $variant) -target spir64-unknown-unknown \
                -include "$work/extension.h" -emit-llvm -c -o "$work/a.bc" "$work/all.cl"; then
                echo "intel sub-groups of $warp: ${variant% *} channels: compiles"
            else
                fail "intel sub-groups of $warp: heads of $variant do not compile"
            fi
        done
    done
}

run_vendors "$@"
