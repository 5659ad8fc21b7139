#!/bin/sh
# A GPT with spectral-sphere hyper-connections learns English on the CPU: set-up, build, corpus, about two minutes of
# training, a sample of its text. Run it again and it starts afresh.
set -eu
cd "$(dirname "$0")/.."
out=out/demo

say() { printf '\n== %s\n' "$*"; }

say "1/5 set-up (Debian packages)"
sh ci/setup.sh
say "2/5 build"
sh ci/build.sh
say "3/5 corpus: the GNU Collaborative International Dictionary of English, as bytes"
sh data/gcide/prepare.sh data/corpus/gcide build/hc_prepare
say "4/5 training shc with 4 streams on PoCL; results go to $out (Ctrl-C saves and stops)"
rm -rf "$out"
build/hc_train --config configs/tiny.conf --device pocl --data-dir data/corpus/gcide --out-dir "$out"
say "5/5 what it writes now, after the prompt \"Light\""
build/hc_sample --checkpoint "$out/ckpt-best" --device pocl --prompt "Light" --max-new-tokens 300 --temperature 0.5

say "what to compare the loss with"
sed -n 's/.*"unigram_entropy": *\([0-9.]*\).*/entropy of single letters in this corpus: \1 nats a byte/p' \
    data/corpus/gcide/meta.json
grep val_loss "$out/metrics.jsonl" |
    sed 's/.*"iter":\([0-9]*\).*"val_loss":\([0-9.]*\).*/validation loss after \1 iterations: \2 nats a byte/'
printf '\nMore of the same run: build/hc_train --init-from resume --out-dir %s --max-iters 6000\n' "$out"
