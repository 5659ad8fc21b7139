#!/usr/bin/env python3
"""A model of the time of a data-parallel training step, checked against hc_bench and carried to machines one lacks.

  bench/scaling.py check ONE.json MANY.json [...]   figures of hc_bench --ranks --json on one rank, then on several;
                                                    ranks that share a host: ONE while the other cores are as busy
  bench/scaling.py predict                          the table of docs/scaling.md

A rank computes its micro-batches; in the backward pass of the last one, buckets of gradients become complete, from the
top layers down. One after the other they go out: a rank sends 2 (R - 1) / R of a bucket's bytes in 2 (R - 1) messages.
What is not through when the backward pass ends is exposed. docs/scaling.md says where the assumptions come from.
"""
import argparse
import json

BACKWARD = 2 / 3  # of a micro-batch's time: the backward pass has twice the products of the forward pass


def parameters_m(streams=4, layers=12, width=768, vocabulary=50304, context=1024):
    """(elements, sublayer that completes them) in the order of the arena, for M with shc; -1: embeddings."""
    columns = 2 * streams + 2 * (streams - 1) * (streams - 2) + 1  # pre, post, two rotations and a scale, about
    table = [(vocabulary * width, -1), (context * width, -1)]
    for layer in range(layers):
        table += [(4 * width * width, 2 * layer), (8 * width * width, 2 * layer + 1)]
        table += [(streams * width * columns, 2 * layer), (streams * width * columns, 2 * layer + 1)]
    return table


def cut(table, bucket_bytes, layers):
    """Buckets as (bytes, share of the backward pass that is done when they are complete), in the order of completion."""
    buckets, left, lowest = [], bucket_bytes, 2 * layers
    for elements, sublayer in reversed(table):
        size = 4 * elements
        while size > 0:
            part = min(size, left)
            size, left, lowest = size - part, left - part, min(lowest, sublayer)
            if left == 0:
                buckets.append((bucket_bytes, lowest))
                left, lowest = bucket_bytes, 2 * layers
    if left < bucket_bytes:
        buckets.append((bucket_bytes - left, lowest))
    buckets.sort(key=lambda bucket: -bucket[1])
    return [(size, 1.0 if lowest < 0 else 1 - lowest / (2 * layers)) for size, lowest in buckets]


def even(gradient_bytes, count):
    """The same for a model of which only the size is known: its last third, the vocabulary, is complete at the end."""
    size = gradient_bytes / count
    return [(size, min(1.0, 1.5 * (i + 1) / count)) for i in range(count)]


def exposed(buckets, ranks, micro, rate, latency):
    """Seconds after the backward pass until all sums are there. rate: bytes a second that a rank sends."""
    if ranks == 1:
        return 0.0
    backward, free = BACKWARD * micro, 0.0
    for size, share in buckets:
        begin = max(free, backward * share)
        free = begin + 2 * (ranks - 1) * (size / ranks / rate + latency)
    return max(0.0, free - backward)


def check(paths):
    one = json.load(open(paths[0]))
    micro = one["seconds"]["compute"]["median"] / one["micro_steps"]
    print("| model | ranks | measured ms: compute, exposed, rest, step | predicted | step |")
    print("| --- | --- | --- | --- | --- |")
    for path in paths[1:]:
        many = json.load(open(path))
        ranks, seconds = many["ranks"], many["seconds"]
        rate = 2 * (ranks - 1) / ranks * many["gradient_bytes"] / (seconds["exchange_alone"] or 1.0)
        after = exposed(even(many["gradient_bytes"], many["buckets"]), ranks, micro, rate, 0.0)
        compute = micro * many["micro_steps"]
        if many["cpu"]:  # what is hidden there still takes the time of the cores that compute
            compute += seconds["exchange_alone"] - after
        predicted = [compute, after, one["seconds"]["rest"]["median"]]
        measured = [seconds[name]["median"] for name in ("compute", "exposed", "rest")]
        text = [", ".join("%.0f" % (1e3 * value) for value in values) for values in (measured, predicted)]
        step = seconds["step"]["median"]
        print("| %s, %d layers | %d | %s, %.0f | %s, %.0f | %+.0f %% |" % (
            many["residual"], many["n_layer"], ranks, text[0], 1e3 * step, text[1], 1e3 * sum(predicted),
            100 * (sum(predicted) / step - 1)))


# name, ranks, bytes a second that a rank sends, seconds a message, accumulation steps over all ranks
MACHINES = [
    ("8 A6000, PCIe 4, one host", 8, 3e9, 10e-6, 16),
    ("8 A6000, PCIe 4, one host", 8, 10e9, 10e-6, 16),
    ("64 devices, 8 hosts, 100 Gbit/s a host", 64, 12.5e9 / 8, 10e-6, 64),
    ("64 devices, 8 hosts, 100 Gbit/s a device", 64, 10e9, 10e-6, 64),
    ("1024 devices, 128 hosts, 100 Gbit/s a host", 1024, 12.5e9 / 8, 10e-6, 1024),
    ("1024 devices, 128 hosts, 100 Gbit/s a device", 1024, 10e9, 10e-6, 1024),
]


def predict(flops, bucket_mib):
    tokens, per_token = 8 * 1024, 0.855e9
    micro = tokens * per_token / flops
    buckets = cut(parameters_m(), bucket_mib * 2 ** 20, 12)
    print("| machine | GB/s a rank | gradients | compute ms | exposed ms | step ms | tokens/s | efficiency |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, ranks, rate, latency, steps in MACHINES:
        for dtype, scale in (("fp32", 1.0), ("bf16", 0.5)):
            compute = micro * steps / ranks
            after = exposed([(scale * size, share) for size, share in buckets], ranks, micro, rate, latency)
            step = compute + after
            print("| %s | %.1f | %s | %.0f | %.0f | %.0f | %.3g | %.0f %% |" % (
                name, rate / 1e9, dtype, 1e3 * compute, 1e3 * after, 1e3 * step, tokens * steps / step,
                100 * compute / step))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("check", help="predictions beside measurements")
    one.add_argument("files", nargs="+")
    two = commands.add_parser("predict", help="machines of docs/scaling.md")
    two.add_argument("--tflops", type=float, default=12.0, help="TFLOP/s that a device reaches on the model")
    two.add_argument("--bucket", type=float, default=16.0, help="MiB, as --allreduce-bucket")
    arguments = parser.parse_args()
    if arguments.command == "check":
        check(arguments.files)
    else:
        predict(1e12 * arguments.tflops, arguments.bucket)


if __name__ == "__main__":
    main()
