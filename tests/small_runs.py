"""Short training runs of small models on a little text, for tests of what reads runs."""
import subprocess


def make_text(folder, build):
    """Token files in folder/data."""
    text = "".join(f"{i} green bottles, and {i * i} more; " + "xyz!\n\n"[i % 5:] for i in range(4000))
    (folder / "text").write_text(text)
    subprocess.run([build / "hc_prepare", "--out", folder / "data", folder / "text"], check=True, stdout=subprocess.DEVNULL)


def train(folder, build, device, name, residual, streams, *more):
    """30 iterations with steps so large that H gets far from the identity; the run directory folder/name. As wide as the model
    of support/programs.py: kernels that are in the cache are not compiled again."""
    subprocess.run([build / "hc_train", "--data-dir", folder / "data", "--out-dir", folder / name, "--residual", residual, "--n-streams", str(streams),
                    "--n-layer", "2", "--n-head", "2", "--n-embd", "16", "--block-size", "48", "--batch-size", "4", "--gradient-accumulation-steps", "1",
                    "--max-iters", "30", "--warmup-iters", "5", "--learning-rate", "3e-2", "--eval-iters", "0", "--device", device,
                    *more], check=True, stderr=subprocess.DEVNULL)
    return folder / name
