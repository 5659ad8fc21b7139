"""Adapters (LoRA) in and out: what checkpoints of such runs hold, what is read of PEFT's folders, how they are merged, and what is refused.
tests/compare_adapters.py, run by hand, holds all of it to PEFT itself."""
import re
import sys
import unittest
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from hctrain.checkpoints import Tensors

ADAPTER, WEIGHTS = "adapter_model.safetensors", "model.safetensors"
LLAMA = ("--norm", "rmsnorm", "--position", "rope", "--mlp", "swiglu", "--mlp-width", "24", "--n-head", "2", "--n-kv-head", "1")
PREFIX = "base_model.model."


class Adapters(programs.Case):
    @classmethod
    def begin(cls):
        super().begin()
        for name, more in (("llama", LLAMA), ("gpt2", ("--bias",))):
            cls.made(*cls.training(f"{name}-run", "--residual", "rc", *more, "--max-iters", "3"))
            cls.made("hc_export", "--checkpoint", f"@{name}-run/ckpt-3", "--out", f"@{name}")
        cls.made(*cls.adapting("run", "llama", "--lora-targets", "q,v,down", "--max-iters", "20"))

    @classmethod
    def adapting(cls, run, base, *more):
        return cls.training(run, "--init-from", f"@{base}", "--lora-rank", "3", *more)

    def arrays(self, name):
        return dict(Tensors(self.path(name)))

    def put_adapter(self, name, base, modules, rank=2, **config):
        """PEFT's folder of random numbers, for modules of each layer: the rows of their weights and the columns."""
        chosen = numpy.random.default_rng(5)
        tensors = {}
        for module, (rows, columns) in modules.items():
            for leaf, shape in (("lora_A", (rank, columns)), ("lora_B", (rows, rank))):
                tensors[f"{PREFIX}{base}.0.{module}.{leaf}.weight"] = ("F32", shape, chosen.normal(0, 0.3, shape).astype("f4").tobytes())
        self.put_tensors(f"{name}/{ADAPTER}", tensors)
        self.put_json(f"{name}/adapter_config.json", {"peft_type": "LORA", "r": rank, "lora_alpha": 3, "bias": "none", "modules_to_save": None,
                                                      "target_modules": [module.rsplit(".", 1)[1] for module in modules], **config})

    def loss(self, *words):
        said = self.call("hc_eval", "--device", "pocl", "--data", "@data", "--eval-iters", "4", *words).printed.decode()
        return float(next(line.split()[-1] for line in said.splitlines() if line.startswith("loss")))

    # ---- what a run leaves

    def test_a_checkpoint_is_pefts_folder(self):
        folder = "run/ckpt-20"
        config = self.json(f"{folder}/adapter_config.json")
        self.assertEqual((config["r"], config["lora_alpha"], config["target_modules"]), (3, 6.0, ["q_proj", "v_proj", "down_proj"]))
        self.assertFalse(self.has(f"{folder}/{WEIGHTS}"))  # nothing else is trained
        self.assertEqual(self.json(f"{folder}/base.json")["folder"], str(self.path("llama")))
        shapes = {name: array.shape for name, array in self.arrays(f"{folder}/{ADAPTER}").items()}
        layer = f"{PREFIX}model.layers.0."
        self.assertEqual(shapes, {f"{layer}{module}.{leaf}.weight": shape for module, rows, columns in
                                  (("self_attn.q_proj", 16, 16), ("self_attn.v_proj", 8, 16), ("mlp.down_proj", 16, 24))
                                  for leaf, shape in (("lora_A", (3, columns)), ("lora_B", (rows, 3)))})

    def test_parts_of_gpt2_have_its_names(self):
        self.call(*self.adapting("gpt2-parts", "gpt2", "--lora-targets", "c_attn,mlp.c_proj", "--max-iters", "1"))
        self.assertEqual(self.json("gpt2-parts/ckpt-1/adapter_config.json")["target_modules"], ["c_attn", "mlp.c_proj"])
        self.assertEqual({name.removeprefix(f"{PREFIX}transformer.h.0.") for name in self.arrays(f"gpt2-parts/ckpt-1/{ADAPTER}")},
                         {f"{module}.{leaf}.weight" for module in ("attn.c_attn", "mlp.c_proj") for leaf in ("lora_A", "lora_B")})
        self.refused("one module, c_attn", *self.adapting("x", "gpt2", "--lora-targets", "q,o"))

    def test_a_run_goes_on_to_the_bit(self):
        self.call(*self.adapting("parts", "llama", "--lora-targets", "q,v,down", "--max-iters", "10"))
        self.resume("parts", "--max-iters", "20")
        self.same_metrics("run", "parts")
        for file in (ADAPTER, "optimizer.safetensors"):
            self.same_file(f"run/ckpt-20/{file}", f"parts/ckpt-20/{file}")

    @unittest.skipUnless(programs.WHOLE, "takes long")
    def test_ranks_and_recompute_change_little(self):
        more = ("--lora-dropout", "0.1", "--gradient-accumulation-steps", "2", "--eval-iters", "1", "--max-iters", "6")
        self.call(*self.adapting("one", "llama", *more))
        self.call(*self.adapting("two", "llama", *more), ranks=2)
        self.near_metrics("one", "two", 6, 1e-5)
        self.call(*self.adapting("again", "llama", *more, "--recompute", "layer"))
        self.near_metrics("one", "again", 6, 1e-6)

    def test_what_is_trained_beside_it_is_kept(self):
        """Streams of an upcycled model, and what --lora-train names."""
        self.call(*self.adapting("both", "llama", "--residual", "shc", "--lora-train", "ln_", "--max-iters", "3"))
        names = set(self.arrays(f"both/ckpt-3/{WEIGHTS}"))
        self.assertTrue({"transformer.ln_f.weight", "transformer.h.0.ln_1.weight", "transformer.h.0.hc_attn.w_pre"} <= names)
        self.assertFalse({name for name in names if ".attn.c_" in name or "mlp.c_" in name or ".wte" in name})
        loss = self.loss("--checkpoint", "@both/ckpt-3")
        self.call("hc_export", "--checkpoint", "@both/ckpt-3", "--merge", "--format", "torch", "--out", "@both-merged")
        self.assertAlmostEqual(self.loss("--checkpoint", "@both-merged"), loss, places=5)
        self.resume("both", "--max-iters", "4")
        self.refused("also has weights trained beside its adapter", "hc_eval", "--data", "@data", "--checkpoint", "@llama", "--adapter", "@both/ckpt-3")

    def test_what_was_trained_stays_when_it_is_frozen(self):
        """Adapters themselves, and norms that an earlier run has trained."""
        self.call(*self.adapting("half", "llama", "--freeze", "lora_A", "--max-iters", "2"))
        self.assertEqual(len(self.arrays(f"half/ckpt-2/{ADAPTER}")), 14)
        self.resume("half", "--max-iters", "3")
        more = ("--residual", "rc", "--lora-train", "ln_|c_attn", "--learning-rate", "0.1", "--max-iters")
        self.call(*self.adapting("norms", "llama", *more, "4"))
        trained = self.tensors(f"norms/ckpt-4/{WEIGHTS}")
        self.assertEqual(self.json("norms/ckpt-4/base.json")["trained_tensors"], len(trained))
        self.call(*self.training("later", "--init-from", "@norms/ckpt-4", "--max-iters", "1"))
        self.assertEqual(self.tensors(f"later/ckpt-1/{WEIGHTS}"), trained)
        self.resume("norms", "--freeze", "ln_|c_attn", "--max-iters", "5")
        self.assertEqual(self.tensors(f"norms/ckpt-5/{WEIGHTS}"), trained)
        self.refused("is frozen now, in int8 or nf4", *self.training("x", "--init-from", "@norms/ckpt-4", "--frozen-weights", "nf4"))
        # what a new connection begins with follows from the norms that were trained
        self.call(*self.training("gated", "--init-from", "@norms/ckpt-4", "--residual", "gated", "--max-iters", "0"))
        self.assertAlmostEqual(self.loss("--checkpoint", "@gated/ckpt-0"), self.loss("--checkpoint", "@norms/ckpt-4"), places=4)
        self.call("hc_export", "--checkpoint", "@norms/ckpt-4", "--merge", "--out", "@norms-merged")
        self.assertAlmostEqual(self.loss("--checkpoint", "@norms-merged"), self.loss("--checkpoint", "@norms/ckpt-4"), places=5)
        self.remove(f"norms/ckpt-4/{WEIGHTS}")
        self.refused("has 0 tensors, and 4 were trained", "hc_eval", "--device", "pocl", "--data", "@data", "--checkpoint", "@norms/ckpt-4")
        self.refused("also has weights trained beside its adapter", "hc_eval", "--data", "@data", "--checkpoint", "@llama", "--adapter", "@norms/ckpt-4")

    def test_value_embeddings_and_lambdas_of_the_base_stay(self):
        """Beside adapters they are frozen, and a model that goes on with streams has them."""
        self.train("nano", "--residual", "rc", *LLAMA, "--value-embeds", "--x0-lambdas", "--learning-rate", "0.05", "--max-iters", "4")
        loss = self.loss("--checkpoint", "@nano/ckpt-4")
        self.call("hc_probe", "--measure", "--device", "pocl", "--checkpoint", "@nano/ckpt-4", "--data-dir", "@data", "--samples", "2", "--out", "@nano.json")
        self.assertIn('"ve_gate.0"', self.text("nano.json"))
        self.call(*self.training("wider", "--init-from", "@nano/ckpt-4", "--residual", "mhc", "--max-iters", "0"))
        self.assertAlmostEqual(self.loss("--checkpoint", "@wider/ckpt-0"), loss, places=5)
        for name in ("value-embeds", "x0-lambdas"):
            self.refused(f"{name.replace('-', '_')} = false takes away weights", *self.training("x", "--init-from", "@nano/ckpt-4", "--residual", "mhc", f"--no-{name}"))
        self.refused("x0_lambdas, for which residual = mudd has no place", *self.training("x", "--init-from", "@nano/ckpt-4", "--residual", "mudd"))
        self.call(*self.adapting("nano-adapted", "nano/ckpt-4", "--max-iters", "2"))
        self.assertEqual(self.arrays(f"nano-adapted/ckpt-2/{WEIGHTS}") if self.has(f"nano-adapted/ckpt-2/{WEIGHTS}") else {}, {})
        self.call(*self.adapting("both-adapted", "nano/ckpt-4", "--residual", "mhc", "--max-iters", "2"))
        self.assertFalse({name for name in self.arrays(f"both-adapted/ckpt-2/{WEIGHTS}") if re.search("value_embed|ve_gate|lambda_", name)})
        for run in ("nano-adapted", "both-adapted"):
            self.assertLess(self.loss("--checkpoint", f"@{run}/ckpt-2"), loss)
            self.resume(run, "--max-iters", "3")
        self.call(*self.adapting("llama-adapted", "llama", "--value-embeds", "--residual", "mhc", "--max-iters", "1"))
        self.assertTrue({name for name in self.arrays(f"llama-adapted/ckpt-1/{WEIGHTS}") if "value_embed" in name})

    def test_a_probe_writes_them(self):
        self.put_batch("batch", ((1, 1, 1, 4), [1, 2, 3, 4]), ((1, 1, 1, 4), [2, 3, 4, 5]))
        self.call(*self.adapting("few", "llama", "--lora-train", "ln_f", "--max-iters", "1"))
        self.call("hc_probe", "--device", "pocl", "--train", "--checkpoint", "@few/ckpt-1", "--batch", "@batch", "--out", "@probed")
        self.assertEqual(set(self.arrays(f"probed/{WEIGHTS}")), {"transformer.ln_f.weight"})
        self.assertEqual(self.json("probed/base.json"), self.json("few/ckpt-1/base.json"))
        self.put_adapter("probe-start", "model.layers", {"self_attn.q_proj": (16, 16)})
        self.call("hc_probe", "--device", "pocl", "--train", "--checkpoint", "@llama", "--adapter", "@probe-start", "--batch", "@batch", "--out", "@probed-peft")
        self.assertEqual(self.json("probed-peft/base.json"), self.json("few/ckpt-1/base.json") | {"trained_tensors": 0})
        self.assertEqual(len(self.arrays(f"probed-peft/{ADAPTER}")), 2)

    def test_starting_over_spares_what_the_run_begins_with(self):
        self.copy("run", "over")
        self.refused("would remove", *self.training("over", "--start-over", "--init-from", "@llama", "--adapter", "@over/ckpt-20"))
        self.train("over-base", "--residual", "rc", *LLAMA, "--max-iters", "1")
        self.call(*self.adapting("over-adapter", "over-base/ckpt-1", "--max-iters", "1"))
        self.refused("would remove", *self.training("over-base", "--start-over", "--init-from", "@over-adapter/ckpt-1"))
        self.assertTrue(self.has(f"over/ckpt-20/{ADAPTER}", f"over-base/ckpt-1/{WEIGHTS}"))

    def test_a_base_whose_name_is_not_utf8(self):
        name = "base-\udcff"
        self.copy("llama", name)
        self.call(*self.adapting("named", name, "--max-iters", "1"))
        self.assertTrue(self.json("named/ckpt-1/base.json")["folder"].endswith("base-\\xff"))
        self.call("hc_eval", "--device", "pocl", "--data", "@data", "--eval-iters", "1", "--checkpoint", "@named/ckpt-1", "--base", f"@{name}")

    # ---- PEFT's in

    def test_an_adapter_of_pefts_is_merged(self):
        for base, place, modules in (("llama", "model.layers", {"self_attn.k_proj": (8, 16), "mlp.up_proj": (24, 16), "self_attn.o_proj": (16, 16)}),
                                     ("gpt2", "transformer.h", {"attn.c_attn": (48, 16), "mlp.c_fc": (64, 16)})):
            with self.subTest(base):
                self.put_adapter(f"{base}-adapter", place, modules, use_rslora=base == "gpt2")
                words = ("--checkpoint", f"@{base}", "--adapter", f"@{base}-adapter")
                if self.has(f"{base}-merged"):
                    self.remove(f"{base}-merged")
                self.call("hc_export", *words, "--merge", "--out", f"@{base}-merged")
                merged, plain, adapter = (self.arrays(f"{name}/{file}") for name, file in
                                          ((f"{base}-merged", WEIGHTS), (base, WEIGHTS), (f"{base}-adapter", ADAPTER)))
                scale = 3 / numpy.sqrt(2) if base == "gpt2" else 3 / 2
                for name, array in plain.items():
                    module = f"{PREFIX}{name.removesuffix('.weight')}"
                    if f"{module}.lora_A.weight" in adapter:
                        product = scale * adapter[f"{module}.lora_B.weight"].astype("f8") @ adapter[f"{module}.lora_A.weight"]
                        array = array + (product.T if base == "gpt2" else product)
                    numpy.testing.assert_allclose(merged[name], array, rtol=1e-6, atol=1e-7, err_msg=name)
                self.assertAlmostEqual(self.loss(*words), self.loss("--checkpoint", f"@{base}-merged"), places=5)

    def test_a_run_begins_with_an_adapter(self):
        self.put_adapter("start", "model.layers", {"self_attn.q_proj": (16, 16)})
        self.train("from", "--init-from", "@llama", "--adapter", "@start", "--max-iters", "0")
        self.same_tensors(f"start/{ADAPTER}", f"from/ckpt-0/{ADAPTER}")
        for name in ("base.json", "adapter_config.json"):  # wherever the run was started
            self.assertIn(str(self.path("llama")), self.json(f"from/ckpt-0/{name}").values())
        self.resume("from", "--adapter", "@elsewhere", "--max-iters", "1")
        self.assertIn(f'adapter = "{self.path("start")}"', self.text("from/settings.conf"))
        self.put_adapter("start-twice", "model.layers", {"self_attn.q_proj": (16, 16), "self_attn.k_proj": (8, 16)})
        checksum = next(line.split('"')[1] for line in self.text("from/settings.conf").splitlines() if line.startswith("init_checksum"))
        self.refused("these are other weights", *self.training("x", "--init-from", "@llama", "--adapter", "@start-twice", "--init-checksum", checksum))
        self.refused("was saved with another lora_rank", *self.training("x", "--init-from", "@llama", "--adapter", "@start", "--lora-rank", "8"))
        self.refused("another lora_targets", *self.training("x", "--init-from", "@llama", "--adapter", "@start", "--lora-targets", "q,v"))

    def same_tensors(self, first, second):
        self.assertEqual(self.tensors(first), self.tensors(second))

    def test_a_base_that_has_moved(self):
        self.copy("run", "moved-run")
        self.copy("llama", "elsewhere/llama")
        self.change_json("moved-run/ckpt-20/base.json", "folder", "/nowhere")
        words = ("hc_eval", "--device", "pocl", "--data", "@data", "--eval-iters", "1", "--checkpoint", "@moved-run/ckpt-20")
        self.refused("give --base FOLDER", *words)
        self.call(*words, "--base", "@elsewhere/llama")
        weights = bytearray(self.path(f"elsewhere/llama/{WEIGHTS}").read_bytes())
        weights[-1] ^= 1
        self.put(f"elsewhere/llama/{WEIGHTS}", bytes(weights))
        self.refused("has other weights than those", *words, "--base", "@elsewhere/llama")

    def test_samples(self):
        words = ("hc_sample", "--device", "pocl", "--max-new-tokens", "12", "--num-samples", "3", "--prompt", "the cat")
        one = self.call(*words, "--checkpoint", "@run/ckpt-20").printed
        self.assertEqual(one, self.call(*words, "--checkpoint", "@run/ckpt-20", "--batch-size", "2").printed)
        self.call(*words, "--checkpoint", "@run/ckpt-20", "--frozen-weights", "int8")

    # ---- narrow weights

    def test_narrow_weights_train_the_same_adapter(self):
        for kept in ("int8", "nf4") if programs.WHOLE else ("nf4",):
            self.call(*self.adapting(kept, "llama", "--frozen-weights", kept, "--eval-iters", "2", "--max-iters", "10"))
            self.assertEqual(set(self.arrays(f"{kept}/ckpt-10/{ADAPTER}")), set(self.arrays(f"{kept}/ckpt-best/{ADAPTER}")))
            evaluated = self.loss("--checkpoint", f"@{kept}/ckpt-10", "--frozen-weights", kept)
            self.assertNotEqual(evaluated, self.loss("--checkpoint", f"@{kept}/ckpt-10"))
        if programs.WHOLE:
            self.call(*self.adapting("nf4-two", "llama", "--frozen-weights", "nf4", "--eval-iters", "2", "--max-iters", "4", "--gradient-accumulation-steps", "2"), ranks=2)
        self.refused("are for adapters", *self.training("x", "--init-from", "@llama", "--freeze", "c_attn", "--frozen-weights", "nf4"))
        self.refused("needs dtype = bf16", *self.adapting("x", "llama", "--dtype", "fp32", "--frozen-weights", "bf16"))

    # ---- what is refused

    def test_options(self):
        self.refused("lora_rank = 0 means none", *self.training("x", "--init-from", "@llama", "--lora-targets", "q"))
        self.refused("its modules are q, k, v", *self.adapting("x", "llama", "--lora-targets", "q,c_attn"))
        self.refused("give its folder", *self.training("x", "--lora-rank", "3"))
        self.refused("matches no parameter", *self.adapting("x", "llama", "--lora-train", "nothing"))
        self.refused("adapters are not stacked", "hc_eval", "--data", "@data", "--checkpoint", "@run/ckpt-20", "--adapter", "@run/ckpt-20")
        self.refused("leave it out", "hc_eval", "--data", "@data", "--checkpoint", "@llama", "--base", "@llama")
        self.refused("--merge adds it", "hc_export", "--checkpoint", "@run/ckpt-20", "--out", "@x")
        self.refused("no adapter to merge", "hc_export", "--checkpoint", "@llama", "--merge", "--out", "@x")
        self.assertFalse(self.has("x"))

    def test_other_kinds_of_adapters(self):
        modules = {"self_attn.q_proj": (16, 16)}
        self.put_adapter("plain", "model.layers", modules)
        self.put_adapter("doubled", "model.layers", {**modules, "self_attn.k_proj": (8, 16)}, target_modules=["q_proj"])
        for key, value in (("use_dora", True), ("modules_to_save", ["lm_head"]), ("rank_pattern", {"q_proj": 4}), ("alpha_pattern", {"q": 1}),
                           ("bias", "all"), ("peft_type", "IA3"), ("some_config", {}), ("unknown", 1), ("r", 0), ("r", 4), ("r", 1 << 40), ("lora_alpha", 0), ("lora_alpha", "x"), ("lora_alpha", 1e-39),
                           ("lora_dropout", 1), ("lora_dropout", 0.995), ("target_modules", ["wte"]), ("target_modules", ".*q.*"), ("target_modules", []),
                           ("target_modules", ["k_proj"]), ("init_lora_weights", "pissa"), ("layers_to_transform", [0]),
                           ("target_modules", [programs.HOSTILE])):
            with self.subTest(key, value=value):
                if self.has("odd"):
                    self.remove("odd")
                self.copy("plain", "odd")
                self.change_json("odd/adapter_config.json", key, value)
                run = self.call("hc_eval", "--device", "pocl", "--data", "@data", "--checkpoint", "@llama", "--adapter", "@odd", status=1, says="@odd".replace("@", str(self.folder) + "/"))
                if value == [programs.HOSTILE]:
                    self.shown(run.said)
        self.refused("tensors, of which 2 are", "hc_eval", "--device", "pocl", "--data", "@data", "--checkpoint", "@llama", "--adapter", "@doubled")
        self.refused("without its model", "hc_eval", "--data", "@data", "--checkpoint", "@plain")
        self.refused("is not a JSON object", "hc_eval", "--data", "@data", "--checkpoint", "@llama", "--adapter", f"@{self.put_list()}")

    def put_list(self):
        self.put_json("list/adapter_config.json", [])
        return "list"

    def test_a_hostile_base(self):
        for document in ({}, {"folder": 3, "weights_sha256": "0" * 64}, {"folder": "x", "weights_sha256": "0"}, [],
                         {"folder": str(self.path("run/ckpt-20")), "weights_sha256": "0" * 64}, {"folder": programs.HOSTILE, "weights_sha256": "0" * 64}):
            with self.subTest(document):
                if self.has("odd-base"):
                    self.remove("odd-base")
                self.copy("run/ckpt-20", "odd-base")
                self.put_json("odd-base/base.json", document)
                self.call("hc_eval", "--device", "pocl", "--data", "@data", "--checkpoint", "@odd-base", status=1)
        self.copy("run/ckpt-20", "odd-model")
        self.change_json("odd-model/config.json", "n_layer", 2)
        self.refused("has another n_layer than its base model", "hc_eval", "--data", "@data", "--checkpoint", "@odd-model")


if __name__ == "__main__":
    programs.main()
