#!/usr/bin/env python3
"""Models here and the same models in Hugging Face's transformers and in PyTorch: the same logits and losses.

  tests/compare_transformers.py [--build build] [--device pocl]

Needs torch, transformers and safetensors (pip install torch transformers safetensors) and no network. Tables of the largest logit, by how much
logits differ at most, losses, and the gradients of the tensors, relative to their norms:

  to transformers    rc models trained here for a few steps and shaken -> hc_export -> GPT2LMHeadModel
  from transformers  random GPT2LMHeadModel -> save_pretrained -> hc_probe, and hc_train --init-from
  both ways          random Llama, Qwen2 and Qwen3 -> save_pretrained -> hc_probe, hc_sample, hc_train -> hc_export -> AutoModelForCausalLM
  to PyTorch         a model of every variant, shaken -> hc_export --format torch -> model.py

Logits may differ by 1e-4, losses by 1e-5, gradients by 1e-4. The exit status says whether all did.
"""
import argparse
import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers
from compared_programs import Programs, gradients_off_by, load_file_as, random_model
from safetensors.torch import load_file, save_file

LOGITS, LOSS, GRADIENT = 1e-4, 1e-5, 1e-4
ADAM_EPS = 1e-6  # much larger than rounding errors of gradients, which decide the step where a gradient is nearly 0
BATCH, CONTEXT = 3, 24

failed = 0


def report(name, scale, logits, loss=None, gradient=None):
    global failed
    held = logits <= LOGITS and (loss is None or loss <= LOSS) and (gradient is None or gradient <= GRADIENT)
    failed += not held
    print("  %-4s %-52s %9.2g %9.1e%s%s" % ("ok" if held else "DIFF", name, scale, logits, "" if loss is None else " %9.1e" % loss,
                                          "" if gradient is None else " %9.1e" % gradient), flush=True)


def head(title):
    print("%-59s%9s %9s %9s %9s" % (title, "largest", "off by", "loss", "gradient"))


class Bench(Programs):
    def train(self, data, *options):
        """The folder of the last checkpoint."""
        out = self.path("run")
        self.run("hc_train", "--data-dir", data, "--out-dir", out, "--device", self.device, "--batch-size", 2, "--eval-iters", 0,
                 "--warmup-iters", 1, *options)
        return os.path.join(out, max(os.listdir(out), key=lambda name: name.startswith("ckpt-")))


def shake(folder):
    """Changes every weight of a checkpoint, gates by as much as makes H differ from token to token."""
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    for name, tensor in tensors.items():
        gate = ".hc_" in name and not name.endswith("norm.weight")
        wide = gate and not name.rpartition(".")[2].startswith("w_")
        tensor += (0.5 if wide else 0.1) * torch.randn_like(tensor)
    save_file(tensors, path, metadata={"format": "pt"})


def batch(vocabulary):
    tokens, targets = torch.randint(vocabulary, (2, BATCH, CONTEXT))
    targets[:, 5] = -1
    return tokens, targets


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1).item()


def off_by(ours, theirs):
    return (ours - theirs).abs().max().item()


TRACK3 = ("--bias", "--norm", "rmsnorm", "--position", "rope", "--rope-theta", 1024, "--rope-fraction", 0.5, "--qk-norm=plain", "--attn-scale", 0.4,
          "--mlp", "relu2", "--tie-embeddings=false", "--head-bias", "--embed-norm", "--logit-softcap", 15, "--softcap-kind", "rsqrt", "--init", "track3")
SHAPE = ("--n-layer", 3, "--n-head", 4, "--n-embd", 48, "--block-size", CONTEXT, "--max-iters", 3)


@torch.no_grad()
def to_transformers(bench):
    head("to transformers")
    for vocabulary, padded, tokenizer in ((97, 97, "byte"), (50257, 50304, "gpt2")):
        data = bench.data(vocabulary, tokenizer)
        for bias in ("--no-bias", "--bias"):
            for activation in ("gelu", "gelu_tanh"):
                checkpoint = bench.train(data, *SHAPE, "--residual", "rc", bias, "--activation", activation, "--vocab-size", padded)
                shake(checkpoint)
                out = bench.path("export")
                bench.run("hc_export", "--checkpoint", checkpoint, "--out", out)
                model, info = transformers.GPT2LMHeadModel.from_pretrained(out, output_loading_info=True)
                assert not any(info.values()), info
                tokens, targets = batch(vocabulary)
                ours = bench.probe(checkpoint, tokens, targets)[0][..., :vocabulary]  # the rest is padding, which is left out
                theirs = model.eval()(tokens).logits
                report("%s, %s, vocabulary %d of %d" % (bias[2:], activation, vocabulary, padded), theirs.abs().max().item(),
                       off_by(ours, theirs), abs(loss_of(ours, targets) - loss_of(theirs, targets)))


@torch.no_grad()
def from_transformers(bench):
    head("from transformers")
    vocabulary = 97
    for activation in ("gelu_new", "gelu"):
        for base, kind in ((False, torch.float32), (True, torch.float32), (False, torch.float16), (False, torch.bfloat16)):
            model = random_model("gpt2", {"vocab_size": vocabulary, "n_positions": CONTEXT, "n_embd": 48, "n_layer": 3, "n_head": 4,
                                          "activation_function": activation})
            model.to(kind)
            folder = bench.path("saved")
            (model.transformer if base else model).save_pretrained(folder)
            tokens, targets = batch(vocabulary)
            wanted = model.float()(tokens).logits
            logits, loss, _ = bench.probe(folder, tokens, targets)
            report("%s, %s, %s" % (activation, "GPT2Model" if base else "GPT2LMHeadModel", str(kind)[6:]),
                   wanted.abs().max().item(), off_by(logits, wanted), abs(loss - loss_of(wanted, targets)))
    grown = bench.train(bench.data(vocabulary, "byte"), "--init-from", folder, "--vocab-size", 128, "--max-iters", 0)
    logits = bench.probe(grown, tokens, targets)[0]
    report("hc_train --init-from it, vocabulary 128: the first 97", wanted.abs().max().item(), off_by(logits[..., :97], wanted))
    mean = wanted.mean(-1, keepdim=True)
    report("  and the others against the mean of the first", mean.abs().max().item(), off_by(logits[..., 97:], mean))


def ours_of(theirs):
    """Tensors of Llama, Qwen2 or Qwen3 by the names of ours."""
    ours = {}
    names = {"input_layernorm": "ln_1", "post_attention_layernorm": "ln_2", "self_attn.o_proj": "attn.c_proj", "self_attn.q_norm": "attn.q_norm",
             "self_attn.k_norm": "attn.k_norm", "mlp.gate_proj": "mlp.c_gate", "mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"}
    for name, tensor in theirs.items():
        name = name.removeprefix("model.").replace("embed_tokens", "wte")
        name = "ln_f.weight" if name == "norm.weight" else name
        if name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            part, _, kind = rest.rpartition(".")
            if part in ("self_attn.k_proj", "self_attn.v_proj"):
                continue
            if part == "self_attn.q_proj":
                tensor = torch.cat([theirs["model.layers.%s.self_attn.%s_proj.%s" % (layer, x, kind)] for x in "qkv"])
                part = "attn.c_attn"
            name = "h.%s.%s.%s" % (layer, names.get(part, part), kind)
        ours[name if name.startswith("lm_head") else "transformer." + name] = tensor
    return ours


MODERN = [
    ("llama", {}), ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 2, "rope_theta": 500.0}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16, "rms_norm_eps": 1e-3}),
    ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}), ("qwen2", {"num_key_value_heads": 2}),
    ("qwen3", {"head_dim": 8, "num_key_value_heads": 2}), ("qwen3", {"head_dim": 20, "tie_word_embeddings": True}),
]


def greedy(model, prompt, count):
    tokens = torch.tensor([list(prompt)])
    with torch.no_grad():
        for _ in range(count):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], 1)
    return bytes(tokens[0, len(prompt):].tolist())


def learning(model, tokens, targets, rate):
    """The weights after a step of AdamW, as hc_probe --train makes it."""
    copy = type(model)(model.config)
    copy.load_state_dict(model.state_dict())
    matrices = [x for x in copy.parameters() if x.dim() > 1]
    others = [x for x in copy.parameters() if x.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=rate,
                                  betas=(0.9, 0.95), eps=ADAM_EPS)
    torch.nn.functional.cross_entropy(copy(tokens).logits.flatten(0, 1), targets.flatten(), ignore_index=-1).backward()
    torch.nn.utils.clip_grad_norm_(copy.parameters(), 1.0)
    optimizer.step()
    return {name: x.detach() for name, x in copy.named_parameters()}


def both_ways(bench):
    head("Llama, Qwen2, Qwen3 both ways")
    for kind, more in MODERN:
        shape = {"vocab_size": 256, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
                 "num_key_value_heads": 4, "max_position_embeddings": 96, **more}
        model = random_model(kind, shape)
        label = " ".join([kind, *("%s=%s" % item for item in more.items())])[:52]
        tokens, targets = batch(256)
        for stored in (torch.float32, torch.bfloat16):
            folder = bench.path("saved")
            model.to(stored).save_pretrained(folder, max_shard_size="40KB" if stored == torch.bfloat16 else "1GB")
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            logits = model(tokens).logits
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1).backward()
            ours, loss, gradients = bench.probe(folder, tokens, targets)
            wanted = ours_of({name: x.grad for name, x in model.named_parameters()})
            report(label if stored == torch.float32 else "  in bf16, in several files", logits.abs().max().item(), off_by(ours, logits),
                   abs(loss - loss_of(logits, targets)), gradients_off_by(gradients, wanted, 1e-3))
        out = bench.path("export")
        bench.run("hc_export", "--checkpoint", folder, "--out", out)
        back, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
        assert not any(info.values()), info
        assert type(back) is type(model), type(back)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, back.state_dict()[name]), name
        again = back.eval()(tokens).logits
        report("  hc_export: the same bits, and back", again.abs().max().item(), off_by(again, logits))
        text = bench.run("hc_sample", "--checkpoint", folder, "--device", bench.device, "--tokenizer", "byte", "--prompt", "RoPE", "--temperature", 0,
                         "--max-new-tokens", 64)[len("RoPE"):][:64]
        step = bench.path("step")
        data = bench.path("batches")
        save_file({"x": tokens.int()[None, None].contiguous(), "y": targets.int()[None, None].contiguous()}, data)
        bench.run("hc_probe", "--train", "--checkpoint", folder, "--batch", data, "--out", step, "--device", bench.device, "--learning-rate", 1e-3,
                  "--warmup-iters", 0, "--weight-decay", 0.1, "--adam-eps", ADAM_EPS)
        moved = load_file(os.path.join(step, "model.safetensors"))
        theirs = ours_of(learning(model, tokens, targets, 1e-3))
        report("  a step of AdamW", 1e-3, max(off_by(moved[name], theirs[name]) for name in moved))
        expected = greedy(model, b"RoPE", 64)
        report("  64 greedy tokens", 64, float(sum(x != y for x, y in zip(expected, text)) + abs(len(text) - 64)))


def load_program(folder):
    return load_file_as("model", os.path.join(folder, "model.py"))


def to_torch(bench):
    head("to PyTorch")
    data = bench.data(97, "byte")
    cases = [("rc", 1, ()), ("rc", 1, ("--bias", "--activation", "gelu_tanh")), ("identity", 4, ()), ("hc", 4, ()),
             ("hc", 3, ("--bias", "--stream-reduce", "sum_norm")), ("mhc", 4, ()), ("mhc", 5, ("--sinkhorn-iters", 3)),
             ("mhc_lite", 4, ()), ("mhc_lite", 3, ("--bias",)), ("shc", 4, ()), ("shc", 2, ()), ("shc", 3, ("--bias",)),
             ("shc", 8, ("--stream-reduce", "sum_norm")), ("shc", 4, ("--stream-expand", "scaled")),
             ("mhc", 3, ("--bias", "--stream-expand", "scaled")), ("rc", 1, TRACK3), ("mhc", 4, TRACK3), ("mudd", 1, TRACK3),
             ("rc", 1, ("--head-bias", "--embed-norm")), ("gated", 2, ("--embed-norm", "--qk-norm")),
             ("rc", 1, ("--x0-lambdas", "--value-embeds")), ("mudd", 1, ("--mudd-norm", "prepost", "--value-embeds")),
             ("attnres", 1, ("--attnres-heads", 4)), ("dar", 1, ("--attnres-heads", 3, "--attnres-block", 2, "--x0-lambdas")),
             ("dar", 1, ("--dar-gate", "none")), ("laurel", 1, ("--laurel-form", "rw")), ("laurel", 1, ("--laurel-rank", 3)),
             ("hc", 4, ("--hc-dynamic=false", "--stream-reduce", "sum_norm")), ("shc", 4, ("--hc-dynamic=false", "--hc-until", 5)),
             ("mhc", 3, ("--hc-until", 3, "--read-delay")), ("frac", 4, ("--hc-until", 2, "--x0-lambdas")), ("frac", 2, ("--hc-dynamic=false",))]
    known = load_program(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src", "python", "hctrain"))
    cases += [(residual, 4, ()) for residual in known.CONNECTIONS if residual not in {case[0] for case in cases if case[2] != TRACK3}]
    for residual, streams, options in cases:
        checkpoint = bench.train(data, *SHAPE, "--residual", residual, "--n-streams", streams, *options)
        shake(checkpoint)
        out = bench.path("export")
        bench.run("hc_export", "--checkpoint", checkpoint, "--out", out, "--format", "torch")
        tokens, targets = batch(97)
        model = load_program(out).load(out)
        logits, loss = model(tokens, targets)
        loss.backward()
        ours = bench.probe(checkpoint, tokens, targets)
        # with two streams shc has no angles, so that their gates change nothing
        gradients = {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in model.named_parameters()}
        words = ("with track 3's parts",) if options == TRACK3 else options
        report(" ".join([residual, "of", str(streams), *map(str, words)]), logits.abs().max().item(), off_by(ours[0], logits),
               abs(ours[1] - loss.item()), gradients_off_by(ours[2], gradients, 1e-3))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--device", default="pocl")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, folder)
        to_transformers(bench)
        from_transformers(bench)
        both_ways(bench)
        to_torch(bench)
    print("%d different; torch %s, transformers %s" % (failed, torch.__version__, transformers.__version__))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
