#!/bin/sh
# The demo: sets up, builds, prepares tiny Shakespeare, trains two GPTs with spectral-sphere hyper-connections on the CPU by nanoGPT's recipe (three
# minutes), one with GPT-2's block and one with a block of today, and writes a text. Running it again starts new trainings.
set -eu
cd "$(dirname "$0")/.."
gpt2=out/demo
modern=out/demo-modern

say() { printf '\n== %s\n' "$*"; }

say "1/6 set-up (Debian packages)"
sh ci/setup.sh
say "2/6 build"
sh ci/build.sh
say "3/6 corpus: tiny Shakespeare, characters as tokens"
data/shakespeare/prepare.sh
rm -rf "$gpt2" "$modern"
say "4/6 training shc with 4 streams on PoCL; results go to $gpt2 (Ctrl-C saves and stops)"
build/hc_train --config configs/shakespeare_char_cpu.conf --residual shc --device pocl --out-dir "$gpt2"
say "5/6 the same with a block of today: RMSNorm, rotary positions, SwiGLU, grouped heads; results go to $modern"
build/hc_train --config configs/modern_char_cpu.conf --residual shc --device pocl --out-dir "$modern"
say "6/6 a text of the second model, from the prompt \"ROMEO:\""
build/hc_sample --checkpoint "$modern/ckpt-best" --device pocl --prompt "ROMEO:" --max-new-tokens 300 --temperature 0.8

say "for comparison"
echo "nanoGPT's README says 1.88 for this recipe, which has GPT-2's block and plain residual connections (here: --residual rc)."
for run in "$gpt2" "$modern"; do
    printf '%s: ' "$run"
    sed -n 's/.*"iter":\([0-9]*\).*"val_loss":\([0-9.]*\).*/validation loss after \1 iterations: \2/p' "$run/metrics.jsonl" | tail -n 1
done
printf '\nMore of the same run: build/hc_train --init-from resume --out-dir %s --max-iters 3000\n' "$modern"
