"""What the scripts that compare hctrain's programs with other implementations share; they need PyTorch and safetensors."""
import importlib.util
import json
import os
import subprocess
import sys

import torch
from safetensors.torch import load_file, save_file


def load_file_as(name, path):
    """The module of a Python file."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def off_by(ours, theirs):
    assert ours.isfinite().all() and theirs.isfinite().all()
    return (ours - theirs).abs().max().item() / theirs.abs().max().item()


def gradients_off_by(ours, theirs, least=1e-2):
    """Some are small differences of large numbers, or zero in exact arithmetic, as those of H_res while all streams are equal: differences
    are compared with `least` times the norm of all at least."""
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    assert all(tensor.isfinite().all() for tensor in (*ours.values(), *theirs.values()))
    whole = torch.stack([tensor.norm() for tensor in theirs.values()]).norm()
    return max(((ours[name] - theirs[name]).norm() / torch.maximum(theirs[name].norm(), least * whole)).item() for name in ours)


@torch.no_grad()
def random_model(kind, shape):
    """A causal language model of transformers, in fp32. All its weights are random, biases and the gains of norms, too."""
    import transformers  # which not all of the scripts need
    config = transformers.AutoConfig.for_model(kind, bos_token_id=None, eos_token_id=None, **shape)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in model.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    return model


class Programs:
    """The programs of a build, and a folder for what they make."""

    def __init__(self, arguments, folder):
        self.build, self.device, self.folder = arguments.build, arguments.device, folder
        self.made = 0

    def path(self, name):
        self.made += 1
        return os.path.join(self.folder, "%d-%s" % (self.made, name))

    def run(self, program, *arguments):
        done = subprocess.run([os.path.join(self.build, program), *map(str, arguments)], capture_output=True)
        if done.returncode:
            sys.exit("%s: %s %s\n%s" % (os.path.basename(sys.argv[0]), program, " ".join(map(str, arguments)), done.stderr.decode(errors="replace")))
        return done.stdout

    def checkpoint(self, config, tensors):
        """A folder with config.json and model.safetensors."""
        folder = self.path("checkpoint")
        os.mkdir(folder)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, os.path.join(folder, "model.safetensors"))
        return folder

    def data(self, vocabulary, tokenizer):
        """A folder for hc_train's --data-dir, of random tokens."""
        folder = self.path("data")
        os.mkdir(folder)
        for name in ("train.bin", "val.bin"):
            tokens = torch.randint(vocabulary, (4096,), dtype=torch.int32).to(torch.uint16)
            with open(os.path.join(folder, name), "wb") as file:
                file.write(tokens.numpy().tobytes())
        with open(os.path.join(folder, "meta.json"), "w", encoding="utf-8") as file:
            json.dump({"vocab_size": vocabulary, "tokenizer": tokenizer}, file)
        return folder

    def probe(self, folder, tokens, targets, *options):
        """Of a checkpoint: logits [B, T, V], loss, and gradients by the parameters' names."""
        batch, out = self.path("batch"), self.path("probe")
        save_file({"x": tokens.int(), "y": targets.int()}, batch)
        self.run("hc_probe", "--checkpoint", folder, "--batch", batch, "--out", out, "--logits", "--device", self.device, *options)
        found = load_file(out)
        gradients = {name[5:]: tensor for name, tensor in found.items() if name.startswith("grad.")}
        return found["logits"], found["loss"].item(), gradients
