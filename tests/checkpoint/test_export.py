"""Models for and from others: what hc_export writes, what is read of Hugging Face's folders, and what is refused. tests/compare_transformers.py, run
by hand, holds both to transformers and PyTorch themselves."""
import re
import sys
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from hctrain.checkpoints import Tensors
from programs import FAILED, WRONG_USAGE

WEIGHTS = "model.safetensors"
PLAIN = {"residual": "rc", "n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 33, "block_size": 8, "bias": True}
TODAY = {"norm": "rmsnorm", "position": "rope", "mlp": "swiglu", "mlp_width": 20}
MODERN = {**PLAIN, **TODAY, "bias": False, "rope_theta": 500.0}
APART = {"n_kv_head": 1, "head_dim": 6, "tie_embeddings": False}
# models of today's parts, each of another of Hugging Face's types, or of other settings
KINDS = [("llama", MODERN), ("llama", {**MODERN, **APART, "bias": True}), ("qwen3", {**MODERN, **APART, "qk_norm": True}),
         ("qwen2", {**MODERN, **APART, "qkv_bias": True})]
QUERIES_KEYS_VALUES = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 8, "vocab_size": 33}
# of theirs and of ours, other shapes than above
SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 97, "intermediate_size": 128,
         "max_position_embeddings": 24}
OUR_SIZES = {"n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 97, "mlp_width": 128, "block_size": 24}
OURS = {**TODAY, **OUR_SIZES, "residual": "rc", "n_kv_head": 2, "head_dim": 12, "norm_eps": 1e-5, "rope_theta": 500.0, "bias": False, "qkv_bias": False, "qk_norm": False, "tie_embeddings": True}


def shapes(config):
    """Of the tensors of a plain model of ours, by their names."""
    width, heads = config["n_embd"], config["n_head"]
    kv, dim, hidden = config.get("n_kv_head", heads), config.get("head_dim", width // heads), config.get("mlp_width", 4 * width)
    is_modern, bias = config.get("norm") == "rmsnorm", config["bias"]
    norm = {"weight": (width,)} | ({} if is_modern or not bias else {"bias": (width,)})
    found = {"wte.weight": (config["vocab_size"], width)} | ({} if is_modern else {"wpe.weight": (config["block_size"], width)})
    found |= {f"ln_f.{leaf}": shape for leaf, shape in norm.items()}
    matrices = {"attn.c_attn": ((heads + 2 * kv) * dim, width), "attn.c_proj": (width, heads * dim), "mlp.c_fc": (hidden, width),
                "mlp.c_proj": (width, hidden)} | ({"mlp.c_gate": (hidden, width)} if is_modern else {})
    for layer in range(config["n_layer"]):
        for part, shape in matrices.items():
            found[f"h.{layer}.{part}.weight"] = shape
            if bias or (part == "attn.c_attn" and config.get("qkv_bias")):
                found[f"h.{layer}.{part}.bias"] = shape[:1]
        found |= {f"h.{layer}.{name}.{leaf}": shape for name in ("ln_1", "ln_2") for leaf, shape in norm.items()}
        if config.get("qk_norm"):
            found |= {f"h.{layer}.attn.{name}.weight": (dim,) for name in ("q_norm", "k_norm")}
    head = {} if config.get("tie_embeddings", True) else {"lm_head.weight": found["wte.weight"]}
    return {f"transformer.{name}": shape for name, shape in found.items()} | head


class Export(programs.Case):
    @classmethod
    def begin(cls):
        tokens = numpy.arange(256, dtype="<u2") % 40  # for a model of 33
        for name in ("train.bin", "val.bin"):
            cls.put(f"data/{name}", tokens.tobytes())
        cls.put("data/meta.json", '{"vocab_size": 40}')

    # ---- models

    def arrays(self, name):
        return dict(Tensors(self.path(f"{name}/{WEIGHTS}")))

    def put_arrays(self, name, arrays):
        kinds = {"float32": "F32", "bool": "BOOL"}
        self.put_tensors(name, {key: (kinds[array.dtype.name], array.shape, array.tobytes()) for key, array in arrays.items()})

    def make(self, name, config):
        """A checkpoint of random weights."""
        chosen = numpy.random.default_rng(3)
        self.put_json(f"{name}/config.json", config)
        self.put_arrays(f"{name}/{WEIGHTS}", {key: chosen.normal(0.1, 0.3, shape).astype("f4") for key, shape in shapes(config).items()})

    def export(self, checkpoint, out, form="hf", *more, **setup):
        return self.call("hc_export", "--checkpoint", f"@{checkpoint}", "--out", f"@{out}", "--format", form, *more, **setup)

    def make_hugging_face(self, config):
        """The folder "hf": a model of random weights, "plain", as Hugging Face's."""
        self.make("plain", config)
        if self.has("hf"):
            self.remove("hf")
        self.export("plain", "hf")

    def comes_back(self, folder, config):
        """The model in the folder has the weights of "plain", and zeros for biases that this lacked. Returns its config.json."""
        self.export(folder, "back", "torch")
        expected, found = self.arrays("plain"), self.arrays("back")
        self.assertEqual({name for name in found if not name.endswith(".bias")}, {name for name in expected if not name.endswith(".bias")})
        for name, array in found.items():
            numpy.testing.assert_array_equal(array, expected.get(name, numpy.zeros_like(array)), name)
        back = self.json("back/config.json")
        self.assertEqual({key: back[key] for key in config if key != "bias"}, {key: config[key] for key in config if key != "bias"})
        return back

    def not_read(self, folder, says, **setup):
        self.export(folder, "nothing", "torch", status=FAILED, says=says, **setup)
        self.assertFalse(self.has("nothing"))

    # ---- what comes back

    def test_weights_come_back_from_gpt2s_format(self):
        for bias, activation, more in ((False, "gelu", {}), (True, "gelu_tanh", {"mlp_width": 20})):
            config = {**PLAIN, "bias": bias, "activation": activation, "dropout": 0.25, "tokenizer": "byte", **more}
            self.make_hugging_face(config)
            self.assertIs(self.comes_back("hf", config)["bias"], True)
            self.assertEqual(self.entries("hf"), 2)

    def test_llama_and_qwen_come_back_bit_for_bit(self):
        """From ours to theirs and, from there, to theirs again: no bit changes on the way."""
        for model_type, config in KINDS:
            with self.subTest(config):
                self.make_hugging_face(config)
                self.assertEqual(self.comes_back("hf", config)["bias"], config["bias"])
                self.assertEqual(self.json("hf/config.json")["model_type"], model_type)
                self.export("hf", "again")
                self.same_file(f"hf/{WEIGHTS}", f"again/{WEIGHTS}")
                self.same_file("hf/config.json", "again/config.json")

    def test_large_tensors_come_back(self):
        """They are read in pieces of 2^20 numbers, which end within queries, keys and values."""
        for config in ({**PLAIN, "n_layer": 1, "mlp_width": 70000}, {**KINDS[2][1], "n_layer": 1, "n_head": 200, "n_kv_head": 100, "head_dim": 200}):
            self.make_hugging_face(config)
            self.comes_back("hf", config)

    def test_tensors_of_llama_and_qwen(self):
        """Queries, keys and values are tensors of their own, of as many rows as they have heads."""
        layer = ["input_layernorm.weight", "post_attention_layernorm.weight"]
        linear = [*QUERIES_KEYS_VALUES, "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
        for (model_type, config), more in zip(KINDS[1:], ([f"{name}.bias" for name in linear], ["self_attn.q_norm.weight", "self_attn.k_norm.weight"],
                                                          [f"{name}.bias" for name in QUERIES_KEYS_VALUES])):
            with self.subTest(model_type):
                self.make_hugging_face({**config, "n_layer": 11})
                ours, theirs = self.arrays("plain"), self.arrays("hf")
                names = [f"model.layers.{i}.{name}" for i in range(11) for name in [*layer, *(f"{name}.weight" for name in linear), *more]]
                self.assertEqual(set(theirs), {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", *names})
                parts = [theirs[f"model.layers.10.{name}.weight"] for name in QUERIES_KEYS_VALUES]
                self.assertEqual([part.shape for part in parts], [(12, 16), (6, 16), (6, 16)])
                numpy.testing.assert_array_equal(numpy.concatenate(parts), ours["transformer.h.10.attn.c_attn.weight"])
                for name, own in (("self_attn.o_proj", "attn.c_proj"), ("mlp.gate_proj", "mlp.c_gate"), ("mlp.up_proj", "mlp.c_fc"),
                                  ("mlp.down_proj", "mlp.c_proj"), ("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2")):
                    numpy.testing.assert_array_equal(theirs[f"model.layers.10.{name}.weight"], ours[f"transformer.h.10.{own}.weight"], name)

    def test_linear_layers_are_transposed_for_gpt2(self):
        self.make_hugging_face({**PLAIN, "bias": False})
        ours, theirs, name = self.arrays("plain"), self.arrays("hf"), "transformer.h.1.attn.c_attn.weight"
        self.assertEqual((theirs[name].shape, len(theirs)), ((16, 48), 4 + 2 * 12))
        numpy.testing.assert_array_equal(theirs[name], ours[name].T)

    def test_torch_folders_have_the_checkpoints_tensors_and_a_program(self):
        """Of every variant if all is asked for."""
        said = self.call("hc_train", "--help").printed.decode()
        variants = re.search(r"--residual WORD.*?\(([^()]*); default", said, re.DOTALL)[1].replace("\n", " ").split(",")
        self.assertGreater(len(variants), 10)
        for variant in map(str.strip, variants) if programs.WHOLE else ("shc", "gated", "mudd", "attnres"):
            with self.subTest(variant):
                self.train(f"run-{variant}", "--residual", variant, "--n-streams", "4", "--vocab-size", "40", "--max-iters", "0")
                self.export(f"run-{variant}/ckpt-0", f"torch-{variant}", "torch")
                self.same_file(f"run-{variant}/ckpt-0/{WEIGHTS}", f"torch-{variant}/{WEIGHTS}")
                config = self.json(f"torch-{variant}/config.json")
                config.pop("exported_by")
                self.assertEqual(config, self.json(f"run-{variant}/ckpt-0/config.json"))
                self.assertEqual(sorted(path.name for path in self.path(f"torch-{variant}").iterdir()), ["config.json", "model.py", WEIGHTS])

    def test_padding_of_the_vocabulary_is_left_out(self):
        self.make("padded", {**PLAIN, "vocab_size": 50304, "tokenizer": "gpt2"})
        for rows, *words in [(50257, "hf"), (50304, "hf", "--vocab-size", "50304"), (50304, "torch"), (50000, "torch", "--vocab-size", "50000")]:
            self.export("padded", "cut", *words)
            self.assertEqual(self.json("cut/config.json")["vocab_size"], rows)
            name = "transformer.wte.weight"
            numpy.testing.assert_array_equal(self.arrays("cut")[name], self.arrays("padded")[name][:rows])
        self.export("padded", "cut", "torch", "--vocab-size", "50305", status=FAILED, says="--vocab-size 50305 is more than the 50304")

    # ---- keys of config.json, in both directions

    def test_keys_of_theirs_become_ours(self):
        usual = {**OURS, "n_kv_head": 4, "tie_embeddings": False}
        for model_type, theirs, weights, expected in [
                ("llama", {}, {}, {**TODAY, **OUR_SIZES, "residual": "rc", "norm_eps": 1e-6, "rope_theta": 10000, "tie_embeddings": False, "bias": False,
                                   "n_kv_head": 4, "head_dim": 12}),
                ("llama", {"num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": True,
                           "attention_bias": True, "mlp_bias": True, "rope_scaling": None},
                 {"n_kv_head": 2, "head_dim": 16, "tie_embeddings": True, "bias": True, "qkv_bias": True}, {"norm_eps": 1e-5, "rope_theta": 500000}),
                ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 7}}, {}, {"rope_theta": 7}),
                ("llama", {"rope_scaling": {"type": "default"}, "rope_theta": 8}, {}, {"rope_theta": 8}),
                ("llama", {"hidden_act": "swish"}, {}, {"mlp": "swiglu"}),
                ("llama", {"rope_theta": 8, "rope_scaling": {"type": "linear", "factor": 1}}, {}, {"rope_theta": 8}),
                ("llama", {"rope_theta": 8, "rope_scaling": {"type": "default"}, "rope_parameters": {"rope_type": "yarn", "rope_theta": 9}}, {},
                 {"rope_theta": 8}),
                ("llama", {"rope_scaling": {}, "rope_parameters": {"rope_theta": 9}}, {}, {"rope_theta": 9}),
                ("qwen2", {"num_attention_heads": 64, "head_dim": 4}, {"n_head": 64, "n_kv_head": 32, "head_dim": 4, "qkv_bias": True}, {}),
                ("qwen2", {"num_key_value_heads": None, "use_sliding_window": False, "sliding_window": 4096, "layer_types": ["full_attention"]},
                 {"qkv_bias": True}, {"bias": False, "qk_norm": False, "head_dim": 12}),
                ("qwen3", {"num_key_value_heads": None, "head_dim": None}, {"qk_norm": True, "head_dim": 128}, {"bias": False, "qkv_bias": False}),
                ("qwen3", {"num_key_value_heads": None, "bos_token_id": None, "eos_token_id": [5, 6]}, {"qk_norm": True, "head_dim": 128},
                 {"bos_token_id": None, "eos_token_id": [5, 6]})]:
            with self.subTest(theirs):
                self.make_hugging_face({**usual, **weights})
                self.put_json("hf/config.json", {"model_type": model_type, **SIZES, **theirs})
                ours = self.comes_back("hf", {})
                self.assertEqual({key: ours.get(key) for key in {**weights, **expected}}, {**weights, **expected})

    def test_what_configs_leave_out_is_gpt2s(self):
        self.make_hugging_face(PLAIN)
        self.put_json("hf/config.json", {**GPT2, "n_inner": None})
        ours = self.comes_back("hf", {})
        self.assertEqual([ours.get(key) for key in ("activation", "bias", "dropout", "tokenizer")], ["gelu_tanh", True, 0, None])
        self.make_hugging_face({**PLAIN, "vocab_size": 50257, "mlp_width": 40})
        self.put_json("hf/config.json", {**GPT2, "vocab_size": 50257, "eos_token_id": 50256, "n_inner": 40, "activation_function": "gelu",
                                         "layer_norm_epsilon": 1e-6})
        ours = self.comes_back("hf", {})
        self.assertEqual([ours[key] for key in ("activation", "norm_eps", "mlp_width", "tokenizer")], ["gelu", 1e-6, 40, "gpt2"])

    def test_ours_become_the_nearest_of_theirs(self):
        """And back: all keys of ours come again."""
        apart = {"qkv_bias": True, "tie_embeddings": False}
        for changes, expected in [
                ({}, {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 48, "num_key_value_heads": 2, "head_dim": 12,
                      "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "rms_norm_eps": 1e-5,
                      "rope_parameters": {"rope_type": "default", "rope_theta": 500}}),
                ({"bos_token_id": 1, "eos_token_id": [2, 3]}, {"model_type": "llama", "bos_token_id": 1, "eos_token_id": [2, 3]}),
                ({**apart, "bias": True}, {"model_type": "llama", "attention_bias": True, "mlp_bias": True}),
                (apart, {"model_type": "qwen2", "attention_bias": None, "architectures": ["Qwen2ForCausalLM"]}),
                ({"qk_norm": True, "tie_embeddings": False}, {"model_type": "qwen3", "attention_bias": False})]:
            with self.subTest(changes):
                self.make_hugging_face({**OURS, **changes})
                theirs = self.json("hf/config.json")
                self.assertEqual({key: theirs.get(key) for key in expected}, expected)
                self.comes_back("hf", {**OURS, **changes})
                self.copy("back/config.json", "from-theirs.json")
                self.export("plain", "back", "torch")
                self.same_file("back/config.json", "from-theirs.json")

    def test_what_none_of_theirs_computes_is_refused(self):
        gpt2, llama = "which Hugging Face's gpt2", "which Hugging Face's llama"
        for base, says, changes in [(PLAIN, f'position = "none", {gpt2} cannot compute: give --format torch', {"position": "none"}),
                                    (PLAIN, f"tie_embeddings = false, {gpt2}", {"tie_embeddings": False}),
                                    (PLAIN, f"logit_softcap = 2.0, {gpt2}", {"logit_softcap": 2}),
                                    (PLAIN, f"n_kv_head = 1, {gpt2}", {"n_kv_head": 1}),
                                    (PLAIN, f"head_dim = 4, {gpt2}", {"head_dim": 4}),
                                    (PLAIN, f'mlp = "relu2", {gpt2}', {"mlp": "relu2"}),
                                    (OURS, f'residual = "mhc", {llama} cannot compute: give --format torch', {"residual": "mhc", "n_streams": 4}),
                                    (OURS, f"logit_softcap = 15.0, {llama}", {"logit_softcap": 15}),
                                    (OURS, f'qk_norm = "plain", {llama}', {"qk_norm": "plain"}),
                                    (OURS, f"embed_norm = true, {llama}", {"embed_norm": True}),
                                    (OURS, f"head_bias = true, {llama}", {"head_bias": True}),
                                    (OURS, f"rope_fraction = 0.5, {llama}", {"rope_fraction": 0.5}),
                                    (PLAIN, f"value_embeds = true, {gpt2}", {"value_embeds": True}),
                                    (OURS, f"x0_lambdas = true, {llama}", {"x0_lambdas": True}),
                                    (OURS, f"attn_scale = 0.12, {llama}", {"attn_scale": 0.12}),
                                    (OURS, f'position = "none", {llama}', {"position": "none"}),
                                    (OURS, f'mlp = "relu2", {llama}', {"mlp": "relu2"}),
                                    (OURS, f'mlp = "swiglu", {gpt2}', {"norm": "layernorm"}),
                                    (OURS, f"qkv_bias = false, {llama}", {"bias": True}),
                                    (OURS, "bias = true, which Hugging Face's qwen3", {"qk_norm": True, "bias": True}),
                                    (OURS, "qkv_bias = true, which Hugging Face's qwen3", {"qk_norm": True, "qkv_bias": True}),
                                    (OURS, f"n_head = 5, {llama}", {"n_head": 5, "n_kv_head": 5})]:
            self.put_json("refused/config.json", {**base, **changes})
            self.export("refused", "nothing", status=FAILED, says=says)
        self.assertFalse(self.has("nothing"))

    def test_configs_that_cannot_be_computed_are_refused(self):
        whole, yes_or_no = "it must be a whole number above 0", "it must be true or false"
        cases = {
            "gpt2": [("'n_layer' is missing", None),
                     ("'activation_function' is \"relu\": only GELU", {"activation_function": "relu"}),
                     ("'activation_function' is ", {"activation_function": None}),
                     (f"'n_inner' is 0: {whole}", {"n_inner": 0}),
                     (f"'n_inner' is 64.0: {whole}", {"n_inner": 64.0}),
                     ("'scale_attn_weights' is false: attention is scaled", {"scale_attn_weights": False}),
                     ("'quantization_config' is {}: save the model in bf16 or fp32", {"quantization_config": {}}),
                     ("'scale_attn_by_inverse_layer_idx' is true: attention is scaled alike", {"scale_attn_by_inverse_layer_idx": True}),
                     ("'layer_norm_epsilon' is 0: it must be a number above 0", {"layer_norm_epsilon": 0}),
                     ("'layer_norm_epsilon' is \"small\": it must be", {"layer_norm_epsilon": "small"}),
                     ("dropout = 1.5 is out of range", {"resid_pdrop": 1.5}),
                     ("n_embd = 16 is not divisible", {"n_head": 3}),
                     (f"'n_layer' is -2: {whole}", {"n_layer": -2})],
            "llama": [("'num_hidden_layers' is missing", None),
                      ("'hidden_act' is \"gelu\": gated MLPs have SiLU", {"hidden_act": "gelu"}),
                      ("'rope_type' is \"llama3\": positions have plain RoPE here", {"rope_scaling": {"rope_type": "llama3", "factor": 8}}),
                      ("'rope_type' is \"linear\"", {"rope_scaling": {"type": "linear"}}),
                      ("'rope_type' is \"yarn\"", {"rope_parameters": {"rope_type": "yarn"}}),
                      ("'full_attention' is {}", {"rope_parameters": {"full_attention": {}}}),
                      ("'partial_rotary_factor' is 0.5", {"rope_parameters": {"partial_rotary_factor": 0.5}}),
                      ("'rope_parameters' is 5: it must be an object", {"rope_parameters": 5}),
                      ("'rope_theta' is \"Infinity\": it must be a number above 0", {"rope_theta": "Infinity"}),
                      ("'rope_theta' is -1: it must be a number above 0", {"rope_theta": -1}),
                      ("'partial_rotary_factor' is 0.25", {"partial_rotary_factor": 0.25}),
                      ("'rope_interleaved' is true", {"rope_interleaved": True}),
                      ("'attention_bias' is true: biases are in all linear layers or in", {"attention_bias": True}),
                      ("'mlp_bias' is true", {"mlp_bias": True}),
                      (f"'mlp_bias' is \"true\": {yes_or_no}", {"mlp_bias": "true"}),
                      ("'quantization_config' is {}: save the model in bf16", {"quantization_config": {}}),
                      (f"'tie_word_embeddings' is 1: {yes_or_no}", {"tie_word_embeddings": 1}),
                      ("'num_key_value_heads' is \"2\": it must be a whole number", {"num_key_value_heads": "2"}),
                      ("'rope_type' is \"linear\": positions have plain RoPE here", {"rope_scaling": {"rope_type": "linear", "factor": "1"}}),
                      (f"'attention_bias' is \"true\": {yes_or_no}", {"attention_bias": "true", "mlp_bias": "true"}),
                      ("'layer_types' is \"sliding_attention\": it must be a list", {"layer_types": "sliding_attention"}),
                      ("'hidden_act' is ", {"hidden_act": ["silu", "swish"]})],
            "qwen2": [("'num_key_value_heads' is missing: transformers takes 32 then, which does not divide the 4 of", {}),
                      ("'use_sliding_window' is true", {"use_sliding_window": True}),
                      ("'layer_types' is \"sliding_attention\"", {"layer_types": ["full_attention", "sliding_attention"]})],
            "qwen3": [("'attention_bias' is true", {"attention_bias": True})],
            "smollm3": [("'model_type' is \"smollm3\": of Hugging Face's models only 'gpt2', 'llama', 'qwen2', 'qwen3' can be read", {})],
            2: [("'model_type' is 2: of Hugging Face's models only", {})]}
        for model_type, rows in cases.items():
            for says, changes in rows:
                sizes = {} if changes is None else GPT2 if model_type == "gpt2" else SIZES
                self.put_json("config/config.json", {**sizes, "model_type": model_type, **(changes or {})})
                self.not_read("config", [says, "config/config.json: "])

    # ---- weights as others write them

    def make_changed(self, arrays):
        """The folder "changed": "hf" with these tensors."""
        if self.has("changed"):
            self.remove("changed")
        self.copy("hf/config.json", "changed/config.json")
        self.put_arrays(f"changed/{WEIGHTS}", arrays)

    def test_other_ways_to_write_the_same_model_are_read(self):
        """As GPT2Model, with the tied head written out, with masks, as older versions have them."""
        self.make_hugging_face(PLAIN)
        whole = self.arrays("hf")
        short = {name.removeprefix("transformer."): array for name, array in whole.items()}
        embedding = short["wte.weight"]
        for arrays in [short, {**whole, "lm_head.weight": embedding}, {**whole, "transformer.h.0.attn.bias": numpy.ones((33, 16), bool)},
                       {**short, "h.1.attn.masked_bias": embedding}, {**whole, "score.weight": embedding[:0]}]:
            self.make_changed(arrays)
            self.comes_back("changed", {})

    def test_other_models_are_refused(self):
        self.make_hugging_face(PLAIN)
        whole, c_attn = self.arrays("hf"), "transformer.h.0.attn.c_attn.weight"
        embedding, left_out = whole["transformer.wte.weight"], "transformer.h.1.mlp.c_fc.bias"
        for says, arrays in [("'lm_head.weight' differs from the token embedding, and config.json says that they are one: if they are not, set "
                              "tie_word_embeddings to false there (llama",
                              {**whole, "lm_head.weight": embedding + (numpy.arange(33) == 32)[:, None]}),
                             ("tensor 'score.weight' is not part of this model", {**whole, "score.weight": embedding}),
                             ("tensor 'transformer.h.2.ln_1.weight' is not part of this model", {**whole, "transformer.h.2.ln_1.weight": embedding}),
                             (f"tensor '{left_out}' is missing", {name: array for name, array in whole.items() if name != left_out}),
                             (f"tensor '{c_attn}' has shape [48, 16], and the model needs [16, 48]: the file belongs to",
                              {**whole, c_attn: whole[c_attn].reshape(48, 16)}),
                             ("tensor 'transformer.wte.weight' has shape [16, 33]", {**whole, "transformer.wte.weight": embedding.reshape(16, 33)})]:
            self.make_changed({name: array.astype("f4") for name, array in arrays.items()})
            self.not_read("changed", [says, f"changed/{WEIGHTS}: "])

    def test_truncated_and_absent_weights_are_named(self):
        self.make_hugging_face(PLAIN)
        self.make_changed(self.arrays("hf"))
        content = self.path(f"changed/{WEIGHTS}").read_bytes()
        for part in range(8):
            self.put(f"changed/{WEIGHTS}", content[:len(content) * part // 8])
            self.not_read("changed", f"changed/{WEIGHTS}")
        self.remove(f"changed/{WEIGHTS}")
        self.not_read("changed", f"{WEIGHTS}: No such file")
        self.put("changed/pytorch_model.bin", "x")
        self.not_read("changed", f"changed has pytorch_model.bin instead of {WEIGHTS}: ")
        self.put(f"changed/{WEIGHTS}.index.json", "{}")
        self.not_read("changed", f"changed/{WEIGHTS}.index.json: 'weight_map' names no tensors")

    def test_weights_in_several_files(self):
        self.make_hugging_face(PLAIN)
        files, arrays = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)], self.arrays("hf")
        places = {name: files[i % 2] for i, name in enumerate(arrays)}
        turned = list(arrays)[3]
        self.copy("hf/config.json", "divided/config.json")
        for file in files:
            self.put_arrays(f"divided/{file}", {name: arrays[name] for name in arrays if places[name] == file})
        index = f"divided/{WEIGHTS}.index.json"
        self.put_json(index, {"weight_map": places})
        self.comes_back("divided", {})
        for says, more in [("the file of tensor 'a' is '../hf/model.saf", {"a": "../hf/model.safetensors"}),
                           ("which is not a plain name", {"a": "/etc/a.safetensors"}),
                           ("which is not a plain name", {"a": ".safetensors"}),
                           ("which is not a plain name that ends with .safetensors", {"a": "config.json"}),
                           ("the file of tensor 'a' is '(no string)'", {"a": 3}),
                           ("divided/none.safetensors: No such file", {"a": "none.safetensors"}),
                           (f"tensor 'a' is not in {files[0]}: copy", {"a": files[0]}),
                           (f"is in another file than {files[0]}", {turned: files[0]})]:
            self.put_json(index, {"weight_map": {**places, **more}})
            self.not_read("divided", [says, index])

    # ---- where exports go

    def test_only_exports_are_replaced(self):
        self.make("plain", PLAIN)
        self.make("precious", PLAIN)
        self.export("plain", "precious", "torch", status=FAILED, says="precious exists and is not just an export")
        self.export("plain", "plain", "torch", status=FAILED, says="--out is the checkpoint itself")
        for out in ("mixed", "edited", "edited"):
            self.export("plain", out, "torch")
        self.put("edited/model.py", "mine")
        self.export("plain", "edited", status=FAILED, says="edited/model.py was changed since it was exported")
        self.put("mixed/notes.txt", "mine")
        self.export("plain", "mixed", "torch", status=FAILED, says="mixed exists and is not just an export")
        self.put("a-file", "mine")
        self.export("plain", "a-file", "torch", status=FAILED, says="a-file: Not a directory")
        self.path("new/empty").mkdir(parents=True)
        self.export("plain", "new/empty", "torch")
        self.path("new/empty/__pycache__").mkdir()  # model.py was imported
        self.export("plain", "new/empty")  # model.py goes
        self.assertEqual((self.entries("new/empty"), self.entries("new")), (2, 1))

    def test_exports_that_fail_leave_nothing_behind(self):
        self.make("plain", PLAIN)
        self.make("wider", {**PLAIN, "n_embd": 32})
        self.put_json("streams/config.json", {**PLAIN, "residual": "shc", "n_streams": 3})
        self.export("streams", "failed/x", status=FAILED, says='residual = "shc", which Hugging Face\'s gpt2 cannot compute: give --format torch')
        self.export("nowhere", "failed/x", "torch", status=FAILED, says="nowhere/config.json")
        self.assertFalse(self.has("failed"))
        self.export("plain", "failed/x", "torch")
        self.copy("failed/x", "kept")
        self.export("wider", "failed/x", "torch", status=FAILED, says=f"{WEIGHTS}: File too large", file_bytes=10000)
        self.assertEqual(self.entries("failed"), 1)
        self.same_file(f"failed/x/{WEIGHTS}", f"kept/{WEIGHTS}")

    def test_what_the_program_says(self):
        self.make("plain", PLAIN)
        self.call("hc_export", status=WRONG_USAGE, says="--checkpoint and --out are both needed")
        self.call("hc_export", "--format", "onnx", status=WRONG_USAGE, says="--format")
        self.assertIn(b"said: rc with 2 layers, ", self.export("plain", "said", "torch").printed)

    # ---- models that go on here

    def test_imported_models_compute_the_same_bits(self):
        """The same numbers through the same kernels."""
        self.make_hugging_face({**PLAIN, "activation": "gelu_tanh"})
        self.put_batch("batch", ((2, 8), [(7 * i + 3) % 33 for i in range(16)]), ((2, 8), [(5 * i + 1) % 33 for i in range(16)]))
        for folder in ("plain", "hf"):
            self.call("hc_probe", "--checkpoint", f"@{folder}", "--batch", "@batch", "--out", f"@probe-{folder}", "--logits", "--no-grad",
                      "--device", "pocl")
        self.same_file("probe-plain", "probe-hf")

    def tune(self, run, *more, **setup):
        self.call("hc_train", "--data-dir", "@data", "--init-from", "@hf", "--out-dir", f"@{run}", "--device", "pocl", "--max-iters", "1",
                  "--batch-size", "2", "--eval-iters", "0", *more, **setup)

    def test_training_starts_from_gpt2(self):
        """Added tokens get the mean of the others."""
        self.make_hugging_face(PLAIN)
        for says, *words in [("give vocab_size = 40 or more", "--seed", "1"), ("another vocab_size", "--vocab-size", "32"),
                             ("hf cannot go on with residual = attnres", "--residual", "attnres")]:
            self.tune("refused", *words, status=FAILED, says=says)
        self.assertFalse(self.has("refused/ckpt-1"))
        self.tune("tuned", "--vocab-size", "48", "--max-iters", "0")
        self.assertEqual([self.json("tuned/ckpt-0/config.json")[key] for key in ("vocab_size", "residual")], [48, "rc"])
        wte, whole = (self.arrays(name)["transformer.wte.weight"] for name in ("plain", "tuned/ckpt-0"))
        numpy.testing.assert_array_equal(whole[:33], wte)
        numpy.testing.assert_array_equal(whole[33:], numpy.tile((wte.astype(float).sum(axis=0) / 33).astype("f4"), (15, 1)))
        self.resume("tuned", "--max-iters", "2", "--device", "pocl")
        self.assertTrue(self.has("tuned/ckpt-2"))

    def test_training_starts_from_llama(self):
        """A larger vocabulary, whose rows of both embeddings are means, and a shorter context."""
        self.make_hugging_face(KINDS[1][1])
        self.tune("llama", "--vocab-size", "48", "--block-size", "9", status=FAILED, says="another block_size")
        self.tune("llama", "--vocab-size", "48", "--block-size", "4")
        config = self.json("llama/ckpt-1/config.json")
        self.assertEqual({key: config[key] for key in ("vocab_size", "block_size", "n_kv_head", "head_dim", "position", "tie_embeddings")},
                         {"vocab_size": 48, "block_size": 4, "n_kv_head": 1, "head_dim": 6, "position": "rope", "tie_embeddings": False})

    def has_tokens(self, folder, beginning, end):
        config = self.json(f"{folder}/config.json")
        self.assertEqual((config.get("bos_token_id"), config.get("eos_token_id")), (beginning, end))

    def test_tokens_that_end_texts_come_back(self):
        """Those of config.json and, before them, of generation_config.json; through a run, and out again."""
        self.make_hugging_face(KINDS[2][1])
        self.has_tokens("hf", None, None)
        self.put_json("hf/generation_config.json", {"bos_token_id": 1, "eos_token_id": [3, 4], "top_k": 20})
        self.tune("ending", "--vocab-size", "48")
        self.remove("hf/generation_config.json")
        self.export("ending/ckpt-1", "again")
        self.has_tokens("again", 1, [3, 4])
        self.put_json("again/generation_config.json", {"eos_token_id": None})
        self.export("again", "ends", "torch")
        self.has_tokens("ends", 1, [3, 4])
        for ends, says in (("</s>", "'eos_token_id' must be the number of a token, or a list of at most 16"),
                           (list(range(1, 18)), "or a list of at most 16")):
            self.put_json("again/generation_config.json", {"eos_token_id": ends})
            self.not_read("again", ["again/generation_config.json: ", says])
        self.call("hc_eval", "--checkpoint", "@again", "--device", "pocl", "--data", "@data", "--eval-iters", "1")  # needs no such tokens

    def test_tokens_that_end_texts_are_the_tokenizers(self):
        """Where a run of ours has one."""
        self.make("tokens", {**MODERN, "vocab_size": 410, "tokenizer": "file"})
        tokenizer = Path(__file__).resolve().parent.parent / "text/tokenizers/llama3.json"
        for content, *tokens in ((tokenizer.read_bytes(), 400, 401), ("{}", None, None)):
            self.put("tokens/tokenizer.json", content)
            self.export("tokens", "tokens-hf")
            self.has_tokens("tokens-hf", *tokens)


if __name__ == "__main__":
    programs.main()
