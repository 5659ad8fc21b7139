"""Every number that hc_analyze measures of checkpoints beside the same recomputed with numpy from what hc_probe dumps. They differ by 1e-5 at most,
relative where numbers are above 1."""
import csv
import sys
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from hctrain.checkpoints import Tensors

TOLERANCE = 1e-5
VALUES = ("h_pre", "h_post", "h_res", "h_gate", "depth", "ve_gate")  # that hc_probe writes of the frame
SAMPLES = 6


def distribution(values):
    p10, median, p90 = numpy.percentile(values, [10, 50, 90])
    return {"min": values.min(), "p10": p10, "median": median, "p90": p90, "max": values.max(), "mean": values.mean(), "deviation": values.std()}


def norms(matrices):
    return numpy.linalg.norm(matrices, 2, axis=(-2, -1))


def cosines(streams):
    """Mean over pairs of streams, for each token."""
    unit = streams / numpy.linalg.norm(streams, axis=-1, keepdims=True)
    below = numpy.tril_indices(streams.shape[-2], -1)
    return numpy.einsum("...ic,...jc->...ij", unit, unit)[..., below[0], below[1]].mean(axis=-1)


def distance(matrices):
    """From the identity: the root mean square of the lengths of the rows of H - I, mean over matrices."""
    return numpy.sqrt(numpy.square(matrices - numpy.eye(matrices.shape[-1])).sum(axis=-1).mean(axis=-1)).mean()


def largest_share(streams):
    """The largest stream's part of the energy, mean over tokens."""
    energy = numpy.square(streams).sum(axis=-1)
    return (energy.max(axis=-1) / energy.sum(axis=-1)).mean()


def effective_rank(streams):
    """exp of the entropy of the shares of the energy that the streams' principal directions have, mean over tokens."""
    energy = numpy.square(numpy.linalg.svd(streams, compute_uv=False))
    shares = energy / energy.sum(axis=-1, keepdims=True)
    return numpy.exp(-(shares * numpy.log(numpy.where(shares > 0, shares, 1))).sum(axis=-1)).mean()


def describe(matrices, streams):
    """What hc_analyze says of one sublayer's matrices and of all of them; matrices [..., n, n], streams before mixing [..., n, C]."""
    mixed = matrices @ streams
    n = matrices.shape[-1]
    flat = matrices.reshape(-1, n, n)
    norm = norms(flat)
    return {"row_max": distribution(flat.max(axis=2).ravel()), "diagonal_fraction": (flat.argmax(axis=2) == numpy.arange(n)).all(axis=1).mean(),
            "row_sum": distribution(flat.sum(axis=2).ravel()), "column_sum": distribution(flat.sum(axis=1).ravel()),
            "negative_fraction": (flat < 0).mean(), "smallest_entry": flat.min(), "largest_entry": flat.max(), "norm_mean": norm.mean(),
            "norm_max": norm.max(), "identity_distance": distance(flat), "stream_cosine": cosines(mixed).mean(),
            "largest_share": largest_share(mixed), "effective_rank": effective_rank(streams)}


def recompute(probe):
    """The analysis of a probe's dump, in float64."""
    count = sum(name.startswith("h_res.") for name in probe)
    matrices = [probe[f"h_res.{index}"].astype(float) for index in range(count)]
    n = matrices[0].shape[-1]
    product, sublayers, streams = numpy.eye(n), [], []
    for index, matrix in enumerate(matrices):
        product = matrix @ product
        values = numpy.linalg.svd(product, compute_uv=False).reshape(-1, n)
        streams.append(probe[f"streams.{index}"].astype(float))
        sublayers.append(describe(matrix, streams[-1]) | {
            "product_norm_mean": values[:, 0].mean(), "product_norm_deviation": values[:, 0].std(),
            "product_second_mean": values[:, 1].mean(), "product_smallest_mean": values[:, -1].mean(),
            "mean": matrix.reshape(-1, n, n).mean(axis=0), "first_sequence": matrix[0].mean(axis=0)})
    total = describe(numpy.stack(matrices), numpy.stack(streams))
    entries = numpy.stack(matrices).ravel()
    place = numpy.floor((entries + 1.5) / 0.01)
    inside = place[(place >= 0) & (place < 300)].astype(int)
    total["entries"] = {"low": -1.5, "width": 0.01, "below": (place < 0).sum(), "above": (place >= 300).sum(),
                        "counts": numpy.bincount(inside, minlength=300)}
    total["product"] = {"row_sum": distribution(product.sum(axis=-1).ravel()), "column_sum": distribution(product.sum(axis=-2).ravel()),
                        "norm": distribution(norms(product).ravel()), "identity_distance": distance(product), "first_sequence": product[0].mean(axis=0)}
    return total | {"n_streams": n, "tokens": matrices[0].shape[0] * matrices[0].shape[1], "sublayers": sublayers}


def value_means(probe, channels):
    """Means over tokens of what the frame computes, of gates over channels, too."""
    values = {name: value for name, value in probe.items() if name.partition(".")[0] in VALUES}
    return {name: (value.mean(axis=-1, dtype=float) if value.ndim == 4 and value.shape[-1] == channels else value).mean(axis=(0, 1), dtype=float)
            for name, value in values.items()}


def drawn_value(means, name, way, place):
    value = means[name]
    return (value[int(way)] if isinstance(value[0], list) else value)[int(place)]


def differences(ours, theirs, where=""):
    """(difference, name) of every number; both must have the same ones."""
    if isinstance(ours, dict):
        assert set(ours) == set(theirs), (where, set(ours) ^ set(theirs))
        for key in ours:
            yield from differences(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for index, (a, b) in enumerate(zip(ours, theirs)):
            yield from differences(a, b, f"{where}[{index}]")
    else:
        yield abs(ours - theirs) / max(1.0, abs(theirs)), where


class AnalysisNumpy(programs.Case):
    def test_numbers(self):
        """Of small models that are trained with steps so large that H gets far from the identity."""
        for residual, streams, *more in [("shc", 4), ("mhc", 3, "--read-delay"), ("gated", 2), ("mudd", 1), ("frac", 2), ("attnres", 1, "--attnres-heads", "2", "--value-embeds")]:
            with self.subTest(residual):
                self.train(residual, "--residual", residual, "--n-streams", streams, "--n-layer", "2", "--block-size", "48", "--max-iters", "30",
                           "--warmup-iters", "5", "--learning-rate", "3e-2", *more)
                found = sorted(self.all_differences(f"{residual}/ckpt-30"), reverse=True)
                self.assertLessEqual(found[0][0], TOLERANCE, found[0])

    def all_differences(self, checkpoint):
        config = self.json(f"{checkpoint}/config.json")
        length, tokens = config["block_size"], numpy.fromfile(self.path("data/val.bin"), "<u2")
        starts = [(len(tokens) - length + 1) * index // SAMPLES for index in range(SAMPLES)]
        self.put_batch("batch", *[((SAMPLES, length), [int(token) for start in starts for token in tokens[start:start + length]])] * 2)
        self.call("hc_probe", "--checkpoint", f"@{checkpoint}", "--batch", "@batch", "--out", "@probe", "--streams", "--no-grad", "--device", "pocl")
        self.call("hc_analyze", "--out", "@out", "--data-dir", "@data", "--samples", SAMPLES, "--batch-size", "4", "--device", "pocl", f"@{checkpoint}")
        ours = self.json("out/analysis.json")["runs"][0]["checkpoints"][0]
        probe = dict(Tensors(self.path("probe")))
        means = value_means(probe, config["n_embd"])
        found = list(differences(ours["value_means"], means))
        self.assertTrue(found)
        if "h" in ours:
            found += differences(ours["h"], recompute(probe))
        drawn = list(csv.reader(self.text("out/figures/value_maps.csv").splitlines()[1:]))
        self.assertEqual({row[0] for row in drawn}, {self.path(checkpoint).name})
        self.assertEqual(len(drawn), sum(value.size for name, value in means.items() if not name.startswith("h_res.")))
        return found + [(abs(float(row[4]) - drawn_value(ours["value_means"], *row[1:4])), "value_maps.csv") for row in drawn]


if __name__ == "__main__":
    programs.main()
