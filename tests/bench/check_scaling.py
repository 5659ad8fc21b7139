#!/usr/bin/env python3
"""hc_scaling against what can be said without it: bytes on wires, and times where one link is all that counts.

  tests/bench/check_scaling.py HC_SCALING
"""
import json
import subprocess
import sys

ELEMENTS, BUCKETS = 1 << 20, 16
BYTES = 4 * ELEMENTS * BUCKETS
FAST = dict(pcie=1e13, memory=1e15, rank_memory=1e13, wire=1e13, latency=0, overhead=0, nap=1e-6, long_nap=1e-6, jitter=0, straggler=0,
            steps=2, cpu=0, bf16=0, rows=0, computing=1.0)


def simulate(lead=0.0, **facts):
    """All buckets complete `lead` seconds before the end of the backward pass, the token embedding's among them at the end."""
    schedule = [[ELEMENTS, lead, index == 0] for index in range(BUCKETS)]
    text = json.dumps(dict(FAST, schedule=schedule, **facts))
    return json.loads(subprocess.run([sys.argv[1]], input=text, text=True, check=True, stdout=subprocess.PIPE).stdout)


def within(what, value, low, high):
    if not low <= value <= high:
        sys.exit("%s: %.6g is not within %.6g and %.6g" % (what, value, low, high))


def main():
    one = simulate(ranks=8, per_host=8)
    within("bytes between hosts of one host", one["sent_by_host"], 0, 0)
    within("exposed where all is fast", one["exposed"], 0, 2e-3)
    for per_host in (1, 2, 4):
        for bf16 in (0, 1):
            hosts = 8 // per_host
            least = 2 * (hosts - 1) / hosts * BYTES / (1 + bf16)
            many = simulate(ranks=8, per_host=per_host, bf16=bf16, wire=1e9)
            within("bytes of %d hosts" % hosts, many["sent_by_host"], 0.999 * least, 1.001 * least)
            within("exposed over a slow wire", many["exposed"], 0.99 * least / 1e9, 1.2 * least / 1e9)
    copies = simulate(ranks=4, per_host=4, pcie=1e9)
    within("exposed over a slow bus", copies["exposed"], BYTES / 1e9, 1.4 * BYTES / 1e9)
    packed = simulate(ranks=4, per_host=4, pcie=1e9, bf16=1)
    within("the same in bfloat16", packed["exposed"] / copies["exposed"], 0.45, 0.55)
    memory = simulate(ranks=4, per_host=4, rank_memory=1e9, cpu=1)
    within("exposed in slow memory", memory["exposed"], 2 * BYTES / 1e9, 2.2 * BYTES / 1e9)
    early = simulate(ranks=4, per_host=4, pcie=1e9, lead=0.9)
    last = BYTES / BUCKETS / 1e9  # the token embedding's, which is not apart
    within("exposed where all but one bucket are early", early["exposed"], last, 3 * last)
    apart = simulate(ranks=4, per_host=4, pcie=1e9, lead=0.9, rows=ELEMENTS // 16)
    within("and where its rows are apart", apart["exposed"], last / 16, 5 * last / 16)
    slow = simulate(ranks=4, per_host=4, lead=0.9, rows=16, straggler=0.1)
    within("all wait for the slowest", slow["gradients_at"], 1.1, 1.101)


main()
