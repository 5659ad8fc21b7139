#!/usr/bin/env python3
"""Adapters and narrow frozen weights here and in PEFT and bitsandbytes: the same losses, gradients, steps and files.

  tests/compare_adapters.py [--build build] [--device pocl]
  tests/compare_adapters.py --write FOLDER

Needs torch, transformers, peft, bitsandbytes and safetensors (pip install torch transformers peft bitsandbytes safetensors) and no network. A line
for each random model with a random adapter shows by how much the two differ at most:

  adapters     PEFT's folder -> hc_probe: logits and loss relative to the largest, gradients of each tensor relative to its norm, the adapter after
               five steps of AdamW relative to the largest weight
  files        PEFT -> hc_train --adapter -> PEFT: the same bits; hc_sample continues as PEFT does; hc_export --merge -> merge_and_unload
  new adapter  hc_train --lora-rank -> PEFT: A within its bounds, B zero, and the settings that PEFT reads
  narrow       hc_probe --frozen-weights nf4 and int8 -> the same adapter on dequantised weights, in PEFT and, with the same bits, here

Logits and losses may differ by 1e-5, gradients and steps by 1e-4, merged weights by 1e-6. The exit status says whether all did.

--write FOLDER computes cases of PEFT for tests in C instead: FOLDER/NAME/ has base/, adapter/, batch.safetensors, expected.safetensors (loss, logits
and gradients), train.json (settings of five steps with that batch) and final.safetensors (the adapter after them). FOLDER/nf4_table.txt has nf4 codes
of bitsandbytes as C arrays.
"""
import argparse
import copy
import json
import math
import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import bitsandbytes
import peft
import torch
import transformers
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from compared_programs import Programs, gradients_off_by, off_by, random_model
from safetensors.torch import load_file, save_file

LOSS, GRADIENT, MERGED = 1e-5, 1e-4, 1e-6
STEPS, BLOCK = 5, 64
TRAINING = {"learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "adam_eps": 1e-4, "weight_decay": 0.1, "grad_clip": 1.0, "lr_schedule": "constant",
            "warmup_iters": 0}  # adam_eps is much larger than rounding errors of gradients
LINEAR = (torch.nn.Linear, transformers.pytorch_utils.Conv1D)
OURS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
ALL, GPT2_ALL, MLP = tuple(OURS), ("c_attn", "c_proj", "c_fc"), ("gate_proj", "up_proj", "down_proj")

failed = 0


def report(name, limits, *found):
    """Each number found has a limit."""
    global failed
    held = all(number <= limit for number, limit in zip(found, limits))
    failed += not held
    print("  %-4s %-64s%s" % ("ok" if held else "DIFF", name, "".join(" %9.1e" % number for number in found)), flush=True)


def head(title, *columns):
    print("%-71s%s" % (title, "".join(" %9s" % column for column in columns)))


def shape_of(kind, channels, inner, vocabulary, context, **more):
    if kind == "gpt2":
        return {"vocab_size": vocabulary, "n_positions": context, "n_embd": channels, "n_layer": 2, "n_head": 2, "n_inner": inner, **more}
    return {"vocab_size": vocabulary, "hidden_size": channels, "intermediate_size": inner, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 2, "max_position_embeddings": context, **more}


@torch.no_grad()
def adapted(model, rank, targets, **more):
    """PEFT's model around a copy of the model, with random A and B."""
    settings = peft.LoraConfig(r=rank, lora_alpha=8 if "use_rslora" in more else 2 * rank, target_modules=list(targets), task_type="CAUSAL_LM",
                               fan_in_fan_out=model.config.model_type == "gpt2", **more)
    wrapped = peft.get_peft_model(copy.deepcopy(model), settings).eval()
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            parameter += 0.1 * torch.randn_like(parameter)
    return wrapped


def adapter_tensors(wrapped):
    """By the names that files have."""
    return {name: tensor.detach().clone() for name, tensor in peft.get_peft_model_state_dict(wrapped).items()}


def file_name(name):
    return name.replace(".default.", ".").replace(".modules_to_save.", ".")


def loss_of(model, tokens, targets):
    """Loss and logits."""
    logits = model(tokens).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1), logits


def gradients_of(wrapped, tokens, targets):
    """Loss, logits, and gradients by the names that files have."""
    wrapped.zero_grad()
    loss, logits = loss_of(wrapped, tokens, targets)
    loss.backward()
    return loss.item(), logits.detach(), {file_name(name): x.grad.clone() for name, x in wrapped.named_parameters() if x.requires_grad}


def train(wrapped, tokens, targets):
    """The adapter's tensors after five steps of AdamW with the same batch."""
    trained = copy.deepcopy(wrapped)
    parameters = [x for x in trained.parameters() if x.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=TRAINING["learning_rate"], betas=(TRAINING["beta1"], TRAINING["beta2"]), eps=TRAINING["adam_eps"],
                                  weight_decay=TRAINING["weight_decay"])
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(trained, tokens, targets)[0].backward()
        torch.nn.utils.clip_grad_norm_(parameters, TRAINING["grad_clip"])
        optimizer.step()
    return adapter_tensors(trained)


def batch(vocabulary, rows, length):
    tokens, targets = torch.randint(vocabulary, (2, rows, length))
    targets[:, 5] = -1
    return tokens, targets


def training_options():
    return [word for name, value in TRAINING.items() for word in ("--" + name.replace("_", "-"), value)]


class Bench(Programs):
    def save(self, model, name):
        folder = self.path(name)
        model.save_pretrained(folder)
        return folder

    def train_steps(self, base, adapter, tokens, targets, *options):
        """The folder with the adapter after five steps."""
        out, data = self.path("steps"), self.path("batches")
        save_file({name: ids.int().expand(STEPS, 1, *ids.shape).contiguous() for name, ids in (("x", tokens), ("y", targets))}, data)
        self.run("hc_probe", "--train", "--checkpoint", base, "--adapter", adapter, "--batch", data, "--out", out, "--device", self.device,
                 *training_options(), *options)
        return out

    def begin(self, base, *options):
        """The checkpoint of a run before its first step."""
        out = self.path("run")
        self.run("hc_train", "--init-from", base, "--data-dir", self.data(256, "byte"), "--out-dir", out, "--device", self.device, "--max-iters", 0,
                 "--batch-size", 2, "--eval-iters", 0, *options)
        return os.path.join(out, max(os.listdir(out), key=lambda name: name.startswith("ckpt-")))


def read_adapter(folder):
    return load_file(os.path.join(folder, "adapter_model.safetensors"))


def same_bits(ours, theirs):
    """How many tensors are not equal."""
    return float(len(ours.keys() ^ theirs.keys()) + sum(not torch.equal(ours[name], theirs[name]) for name in ours.keys() & theirs.keys()))


GROUPED = {"num_key_value_heads": 1}
CASES = [
    ("llama", {}, 4, ALL, {}), ("llama", {**GROUPED, "tie_word_embeddings": True}, 1, ("q_proj", "v_proj"), {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}, 16, MLP, {"use_rslora": True}),
    ("qwen2", GROUPED, 16, ALL, {"use_rslora": True}), ("qwen2", {"tie_word_embeddings": True}, 1, ("q_proj", "v_proj"), {}),
    ("qwen2", {}, 4, ("k_proj", "o_proj", "up_proj"), {}),
    ("qwen3", {**GROUPED, "head_dim": 20}, 4, ALL, {}), ("qwen3", {"head_dim": 24}, 16, ("q_proj",), {"use_rslora": True}),
    ("qwen3", {"head_dim": 8}, 1, ("down_proj",), {}),
    ("gpt2", {}, 4, GPT2_ALL, {}), ("gpt2", {}, 1, ("c_attn",), {"use_rslora": True}), ("gpt2", {}, 16, ("c_fc", "c_proj"), {}),
    ("gpt2", {}, 4, ("attn.c_proj",), {}),
]


def cases():
    """Name, model, and PEFT's model around a copy of it."""
    for kind, more, rank, targets, lora in CASES:
        model = random_model(kind, shape_of(kind, 48, 80 if kind != "gpt2" else 192, 256, 96, **more))
        words = [kind, *(name for name in more), "r=%d" % rank, "rslora" if lora else "", ",".join(targets)]
        yield " ".join(filter(None, words))[:64], model, adapted(model, rank, targets, **lora)


def compare_adapters(bench):
    head("adapters", "logits", "loss", "gradient", "steps")
    for name, model, wrapped in cases():
        base, adapter = bench.save(model, "base"), bench.save(wrapped, "adapter")
        tokens, targets = batch(256, 3, 24)
        loss, logits, gradients = gradients_of(wrapped, tokens, targets)
        ours = bench.probe(base, tokens, targets, "--adapter", adapter)
        theirs = train(wrapped, tokens, targets)
        steps = bench.train_steps(base, adapter, tokens, targets)
        found = read_adapter(steps)
        assert found.keys() == theirs.keys(), found.keys() ^ theirs.keys()
        report(name, (LOSS, LOSS, GRADIENT, GRADIENT), off_by(ours[0], logits), abs(ours[1] - loss) / loss, gradients_off_by(ours[2], gradients, 1e-3),
               max(off_by(found[x], theirs[x]) for x in found))
        again = peft.PeftModel.from_pretrained(copy.deepcopy(model), steps)
        report("  and PEFT loads it: tensors that differ", (0,), same_bits(adapter_tensors(again), found))


def greedy(model, prompt, count):
    tokens = torch.tensor([list(prompt)])
    with torch.no_grad():
        for _ in range(count):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], 1)
    return bytes(tokens[0, len(prompt):].tolist())


def compare_files(bench):
    head("files", "tensors", "text", "merged", "logits")
    for name, model, wrapped in cases():
        base, adapter = bench.save(model, "base"), bench.save(wrapped, "adapter")
        checkpoint = bench.begin(base, "--adapter", adapter)
        theirs = read_adapter(adapter)
        again = peft.PeftModel.from_pretrained(copy.deepcopy(model), checkpoint)
        differ = same_bits(read_adapter(checkpoint), theirs) + same_bits(adapter_tensors(again), theirs)
        expected, wrong = greedy(wrapped, b"LoRA", 48), 0
        for where in (("--checkpoint", base, "--adapter", adapter), ("--checkpoint", checkpoint)):
            text = bench.run("hc_sample", *where, "--device", bench.device, "--tokenizer", "byte", "--prompt", "LoRA", "--temperature", 0,
                             "--max-new-tokens", 48)[len("LoRA"):][:48]
            wrong += sum(x != y for x, y in zip(expected, text)) + abs(len(text) - 48)
        out = bench.path("merged")
        bench.run("hc_export", "--checkpoint", checkpoint, "--merge", "--out", out)
        merged, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
        assert not any(info.values()), info
        assert type(merged) is type(model), type(merged)
        wanted = copy.deepcopy(wrapped).merge_and_unload()
        tensors, tokens = wanted.state_dict(), batch(256, 3, 24)[0]
        assert merged.state_dict().keys() == tensors.keys()
        with torch.no_grad():
            logits = off_by(merged.eval()(tokens).logits, wrapped(tokens).logits)
        report(name, (0, 0, MERGED, LOSS), differ, wrong, max(off_by(x, tensors[key]) for key, x in merged.state_dict().items()), logits)


def compare_new(bench):
    """Adapters that hc_train makes."""
    head("new adapter", "tensors", "settings", "bounds", "B")
    for kind, rank, alpha, targets, rslora, saved in (("llama", 4, 8, ALL, False, ()), ("qwen3", 2, 6, ("q_proj", "v_proj"), True, ("norm", "lm_head")),
                                                      ("gpt2", 16, 16, GPT2_ALL, False, ("ln_f",))):
        model = random_model(kind, shape_of(kind, 48, 192, 256, 96))
        base = bench.save(model, "base")
        options = ["--lora-rank", rank, "--lora-alpha", alpha, "--lora-targets", ",".join(OURS.get(x, x) for x in targets), "--lora-dropout", 0.125]
        if saved:
            options += ["--lora-train", "ln_f" if kind == "gpt2" else "(ln_f|lm_head)"]
        checkpoint = bench.begin(base, *options, *(("--lora-rslora",) if rslora else ()))
        settings = peft.PeftConfig.from_pretrained(checkpoint)
        wrong = [settings.r != rank, settings.lora_alpha != alpha, settings.lora_dropout != 0.125, settings.use_rslora != rslora,
                 settings.bias != "none", settings.task_type != "CAUSAL_LM", set(settings.target_modules) != set(targets)]
        found = read_adapter(checkpoint)
        wanted = {name for name in adapter_tensors(adapted(model, rank, targets)) if "lora_" in name}
        matrices = {name: x for name, x in found.items() if ".lora_A." in name}
        reach = [x.abs().max().item() * math.sqrt(x.shape[1]) for x in matrices.values()]  # uniform up to 1 / sqrt(in)
        loaded = peft.PeftModel.from_pretrained(copy.deepcopy(model), checkpoint)
        differ = len(wanted ^ {name for name in found if "lora_" in name}) + same_bits(
            {name: x for name, x in adapter_tensors(loaded).items() if "lora_" in name}, {name: x for name, x in found.items() if "lora_" in name})
        report(" ".join([kind, "r=%d" % rank, ",".join(targets)])[:64], (0, 0, 0.1, 0), differ, float(sum(wrong)),
               max(max(reach) - 1, 1 - min(reach) - 0.4), max(x.abs().max().item() for name, x in found.items() if ".lora_B." in name))


# ---- narrow frozen weights


def nf4(row):
    """Codes, two a byte, scales of blocks, and values of a row."""
    packed, state = quantize_4bit(row, blocksize=BLOCK, quant_type="nf4", compress_statistics=False)
    return packed.flatten(), state.absmax, dequantize_4bit(packed, state).flatten()


def int8(row):
    blocks = row.split(BLOCK)
    scales = [block.abs().max() / 127 for block in blocks]
    return torch.cat([torch.round(block / scale) * scale if scale > 0 else block for block, scale in zip(blocks, scales)])


NARROW = {"nf4": lambda row: nf4(row)[2], "int8": int8}


@torch.no_grad()
def narrowed(model, kind):
    """A copy whose matrices in branches are quantised, row by row of an output, and dequantised."""
    copied = copy.deepcopy(model)
    for name, module in copied.named_modules():
        if isinstance(module, LINEAR) and not name.endswith("lm_head"):
            rows = module.weight if isinstance(module, torch.nn.Linear) else module.weight.T
            rows.copy_(torch.stack([NARROW[kind](row.contiguous()) for row in rows]))
    return copied


def compare_narrow(bench):
    """Channels are such that the last block of a row is shorter, and inner sizes such that it is not. All weights are bf16 numbers at first."""
    head("narrow frozen weights", "logits", "loss", "gradient", "steps")
    for kind, more, targets in (("llama", GROUPED, ALL), ("qwen2", {}, ("q_proj", "v_proj")), ("qwen3", {"head_dim": 24}, ALL), ("gpt2", {}, GPT2_ALL)):
        model = random_model(kind, shape_of(kind, 80, 192, 256, 96, **more))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.bfloat16())
        wrapped = adapted(model, 4, targets)
        base, adapter = bench.save(model, "base"), bench.save(wrapped, "adapter")
        tokens, targets_of = batch(256, 3, 24)

        def probe(folder, *options):
            return bench.probe(folder, tokens, targets_of, "--adapter", adapter, *options)

        def compare(name, ours, theirs):
            report(name, (0, 0, 0), off_by(ours[0], theirs[0]), abs(ours[1] - theirs[1]), gradients_off_by(ours[2], theirs[2], 1e-3))

        for narrow in NARROW:
            frozen = ("--frozen-weights", narrow)
            replaced = narrowed(model, narrow)
            folder = bench.save(replaced, "replaced")
            replaced = peft.PeftModel.from_pretrained(replaced, adapter, is_trainable=True).eval()
            loss, logits, gradients = gradients_of(replaced, tokens, targets_of)
            theirs = train(replaced, tokens, targets_of)
            ours = probe(base, *frozen)
            found = read_adapter(bench.train_steps(base, adapter, tokens, targets_of, *frozen))
            report("%s, %s" % (kind, narrow), (LOSS, LOSS, LOSS, GRADIENT), off_by(ours[0], logits), abs(ours[1] - loss) / loss,
                   gradients_off_by(ours[2], gradients, 1e-3), max(off_by(found[x], theirs[x]) for x in found))
            compare("  as our base of those weights", ours, probe(folder))
            compare("  the same in bf16", probe(base, *frozen, "--dtype", "bf16"), probe(folder, "--dtype", "bf16"))
        compare("%s, bf16: as without --frozen-weights" % kind, probe(base, "--frozen-weights", "bf16", "--dtype", "bf16"), probe(base, "--dtype", "bf16"))


# ---- cases for tests in C


def write_table(path):
    """nf4 of four rows: two of random numbers; the sixteen values and the midpoints between them, in a block whose largest is 1; zeros and tiny ones."""
    rows = torch.randn(4, 130)
    code = quantize_4bit(rows[0], blocksize=BLOCK, quant_type="nf4")[1].code
    rows[2, :31] = torch.cat([code, (code[:-1] + code[1:]) / 2])
    rows[2, 31:64].clamp_(-1, 1)
    rows[3, :64] = 0
    rows[3, 128:] = torch.tensor([1e-30, -3e-31])
    packed, scales, values = zip(*(nf4(row) for row in rows))
    with open(path, "w", encoding="ascii") as file:
        file.write("/* By bitsandbytes %s: 4 rows of 130 in blocks of 64 along each row, two codes a byte, the first in the high half */\n"
                   % bitsandbytes.__version__)
        for name, kind, tensor, form in (("rows", "float", rows, "%.9g"), ("packed", "unsigned char", torch.stack(packed), "%d"),
                                         ("absmax", "float", torch.stack(scales), "%.9g"), ("values", "float", torch.stack(values), "%.9g")):
            file.write("static const %s nf4_%s[%d][%d] = {\n" % (kind, name, *tensor.shape))
            for row in tensor.tolist():
                numbers = [form % x for x in row]
                file.write("    {%s},\n" % ",\n     ".join(", ".join(numbers[i:i + 8]) for i in range(0, len(numbers), 8)))
            file.write("};\n")


def write_cases(folder):
    """Of models with 2 layers, 16 channels, vocabulary 64 and context 16. One adapter is stored in bf16."""
    grouped, tied = {"num_key_value_heads": 1}, {"tie_word_embeddings": True}
    for name, kind, more, rank, targets, lora in (
            ("llama_all_r4", "llama", {**grouped, **tied}, 4, ALL, {}), ("qwen2_qv_r1", "qwen2", grouped, 1, ("q_proj", "v_proj"), {}),
            ("qwen3_all_rslora_r16", "qwen3", {**grouped, **tied, "head_dim": 8}, 16, ALL, {"use_rslora": True}),
            ("gpt2_all_r4", "gpt2", {}, 4, GPT2_ALL, {})):
        here = os.path.join(folder, name)
        model = random_model(kind, shape_of(kind, 16, 16 if kind != "qwen2" else 24, 64, 16, **more))
        wrapped = adapted(model, rank, targets, **lora)
        wrapped.peft_config["default"].base_model_name_or_path = "base"
        model.save_pretrained(os.path.join(here, "base"))
        if lora:
            wrapped.bfloat16().save_pretrained(os.path.join(here, "adapter"))
            wrapped = peft.PeftModel.from_pretrained(copy.deepcopy(model), os.path.join(here, "adapter"), is_trainable=True).eval()
        else:
            wrapped.save_pretrained(os.path.join(here, "adapter"))
        for left_over in ("base/generation_config.json", "adapter/README.md"):
            if os.path.exists(os.path.join(here, left_over)):
                os.remove(os.path.join(here, left_over))
        tokens, targets_of = batch(64, 2, 12)
        loss, logits, gradients = gradients_of(wrapped, tokens, targets_of)
        save_file({"x": tokens.int(), "y": targets_of.int()}, os.path.join(here, "batch.safetensors"))
        save_file({"loss": torch.tensor([loss]), "logits": logits, **{"grad." + key: x for key, x in gradients.items()}},
                  os.path.join(here, "expected.safetensors"))
        save_file(train(wrapped, tokens, targets_of), os.path.join(here, "final.safetensors"))
        with open(os.path.join(here, "train.json"), "w", encoding="ascii") as file:
            json.dump({**TRAINING, "max_iters": STEPS}, file, indent=1)
            file.write("\n")
    write_table(os.path.join(folder, "nf4_table.txt"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--write", metavar="FOLDER")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    transformers.utils.logging.disable_progress_bar()
    if arguments.write:
        write_cases(arguments.write)
        return
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, folder)
        compare_adapters(bench)
        compare_files(bench)
        compare_new(bench)
        compare_narrow(bench)
    print("%d different; torch %s, transformers %s, peft %s, bitsandbytes %s"
          % (failed, torch.__version__, transformers.__version__, peft.__version__, bitsandbytes.__version__))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
