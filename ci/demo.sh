#!/bin/sh
# The demo: sets up, builds, prepares tiny Shakespeare, trains a GPT with spectral-sphere hyper-connections on the CPU by nanoGPT's recipe (two
# minutes), and writes a text. Running it again starts a new training.
set -eu
cd "$(dirname "$0")/.."
out=out/demo

say() { printf '\n== %s\n' "$*"; }

say "1/5 set-up (Debian packages)"
sh ci/setup.sh
say "2/5 build"
sh ci/build.sh
say "3/5 corpus: tiny Shakespeare, characters as tokens"
data/shakespeare/prepare.sh
say "4/5 training shc with 4 streams on PoCL; results go to $out (Ctrl-C saves and stops)"
rm -rf "$out"
build/hc_train --config configs/shakespeare_char_cpu.conf --residual shc --device pocl --out-dir "$out"
say "5/5 a text of the model, from the prompt \"ROMEO:\""
build/hc_sample --checkpoint "$out/ckpt-best" --device pocl --prompt "ROMEO:" --max-new-tokens 300 --temperature 0.8

say "for comparison"
echo "nanoGPT's README says 1.88 for this recipe, which has plain residual connections (here: --residual rc)."
grep val_loss "$out/metrics.jsonl" |
    sed 's/.*"iter":\([0-9]*\).*"val_loss":\([0-9.]*\).*/validation loss after \1 iterations: \2/'
printf '\nMore of the same run: build/hc_train --init-from resume --out-dir %s --max-iters 3000\n' "$out"
