"""Weights in the layouts of others: what the programs compute from them beside the formulas of those, to and fro, and files that are refused."""
import contextlib
import importlib.util
import io
import itertools
import json
import os
import subprocess
import sys
import unittest

import hctrain
import numpy as np
import small
from hctrain import convert
from hctrain.checkpoints import write_tensors

N, CHANNELS, LAYERS, CONTEXT, VOCABULARY = 4, 16, 2, 48, 256
ROW = N * CHANNELS
GPT = {"block_size": CONTEXT, "vocab_size": VOCABULARY, "n_layer": LAYERS, "n_head": 2, "n_embd": CHANNELS, "dropout": 0.0, "bias": True, "hyper_conn_n": N}
PERMUTATIONS = np.eye(N, dtype=np.float32)[list(itertools.permutations(range(N)))]
V4 = {"residual": "mhc", "n_streams": 2, "hc_norm_gain": False, "hc_eps": 1e-6, "stream_reduce": "head", "max_iters": 0}


def draw(seed, shapes):
    """Random tensors; gains less 1 are such that 1 more and 1 less is exact."""
    random = np.random.default_rng(seed)
    drawn = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    return {name: np.round(array * 1024) / np.float32(1024) if name.endswith("gamma") else array for name, array in drawn.items()}


def connection_shapes(kind):
    """Of a module, as the public code has them."""
    if kind == "hc":
        return {"norm.gamma": (CHANNELS,), "static_alpha": (N, N + 1), "dynamic_alpha_fn": (CHANNELS, N + 1), "dynamic_alpha_scale": (), "static_beta": (N,),
                "dynamic_beta_fn": (CHANNELS,), "dynamic_beta_scale": ()}
    shared = {"norm.gamma": (ROW,), "pre_branch_scale": (1,), "h_post_scale": (), "static_beta": (N,)}
    if kind == "shc":
        scales = dict.fromkeys(("residual_rot_scale_u", "residual_rot_scale_v", "residual_val_scale", "gamma_u", "gamma_v"), (1,))
        return {**shared, **scales, "to_alpha_pre.weight": (N, ROW), "static_alpha_pre": (N, 1), "to_beta.weight": (N, ROW), "to_alpha_residual.weight": (9, ROW),
                "static_alpha_residual": (9,)}
    alpha = {"mhc": (N, N + 1), "mhc_lite": (N + 24,), "kromhc": (N + 4,)}[kind]
    return {**shared, "residual_scale": (1,), "dynamic_beta_fn": (ROW, N), "static_alpha": alpha, "dynamic_alpha_fn": (ROW, N * (N + 1) if kind == "mhc" else alpha[0])}


def softmax(x, axis=-1):
    x = np.exp(x - x.max(axis, keepdims=True))
    return x / x.sum(axis, keepdims=True)


def rotation(angles):
    """(I + A)^-1 (I - A) behind Helmert's basis."""
    basis = np.zeros((N, N - 1))
    for k in range(N - 1):
        basis[:k + 1, k], basis[k + 1, k] = 1 / np.sqrt((k + 1) * (k + 2)), -(k + 1) / np.sqrt((k + 1) * (k + 2))
    skew = np.zeros((*angles.shape[:-1], N - 1, N - 1))
    skew[..., [0, 0, 1], [1, 2, 2]] = angles
    skew = skew - skew.swapaxes(-1, -2)
    return basis @ np.linalg.solve(np.eye(N - 1) + skew, np.eye(N - 1) - skew)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def mixes(kind, p, streams):
    """What the branch reads with, the matrix that mixes the streams [B, T, n, C], and what writes to them, by the formulas of the public code, in
    double."""
    p = {name: array.astype(float) for name, array in p.items()}
    x = streams.astype(float) if kind == "hc" else streams.astype(float).reshape(*streams.shape[:2], ROW)
    z = x / np.linalg.norm(x, axis=-1, keepdims=True) * np.sqrt(x.shape[-1]) * (p["norm.gamma"] + 1)
    if kind == "hc":
        alpha = np.tanh(z @ p["dynamic_alpha_fn"]) * p["dynamic_alpha_scale"] + p["static_alpha"]
        return alpha[..., 0], alpha[..., 1:].swapaxes(-1, -2), np.tanh(z @ p["dynamic_beta_fn"]) * p["dynamic_beta_scale"] + p["static_beta"]
    post = 2 * sigmoid(p["h_post_scale"] * (z @ (p["to_beta.weight"].T if kind == "shc" else p["dynamic_beta_fn"])) + p["static_beta"])
    if kind == "shc":
        pre = p["pre_branch_scale"] * (z @ p["to_alpha_pre.weight"].T) + p["static_alpha_pre"][:, 0]
        dynamic, fixed = np.split(z @ p["to_alpha_residual.weight"].T, (3, 6), -1), np.split(p["static_alpha_residual"], (3, 6))
        u, v = (rotation(p[f"gamma_{side}"] * np.tanh(p[f"residual_rot_scale_{side}"] * dynamic[i] + fixed[i])) for i, side in enumerate("uv"))
        matrix = 1 / N + (u * np.tanh(p["residual_val_scale"] * dynamic[2] + fixed[2])[..., None, :]) @ v.swapaxes(-1, -2)
        return sigmoid(pre), matrix.swapaxes(-1, -2), post
    wide = z @ p["dynamic_alpha_fn"]
    if kind == "mhc":
        wide = wide.reshape(*z.shape[:2], N, N + 1)
        dynamic, fixed = (wide[..., 0], wide[..., 1:]), (p["static_alpha"][:, 0], p["static_alpha"][:, 1:])
    else:
        dynamic, fixed = np.split(wide, (N,), -1), np.split(p["static_alpha"], (N,))
    pre, logits = p["pre_branch_scale"] * dynamic[0] + fixed[0], p["residual_scale"] * dynamic[1] + fixed[1]
    if kind == "mhc":
        matrix = np.exp(logits)
        for _ in range(20):
            matrix = matrix / matrix.sum(-2, keepdims=True)
            matrix = matrix / matrix.sum(-1, keepdims=True)
    elif kind == "mhc_lite":
        matrix = np.tensordot(softmax(logits), PERMUTATIONS, 1)
    else:
        first, second = (np.stack((np.stack((a, 1 - a), -1), np.stack((1 - a, a), -1)), -2) for a in np.moveaxis(softmax(logits.reshape(*z.shape[:2], 2, 2))[..., 0], -1, 0))
        matrix = np.einsum("...ac,...bd->...abcd", first, second).reshape(*z.shape[:2], N, N)
    return sigmoid(pre), matrix.swapaxes(-1, -2), post


def with_connections(weights, kind, copies):
    """The branches' tensors under all their names, and modules of hyper-connections."""
    found = {}
    for name, array in weights.items():
        found.update(dict.fromkeys(copies(name), array))
    for base in (f"transformer.h.{layer}.{module}." for layer in range(LAYERS) for module in ("hc_attn", "hc_mlp") if kind != "none"):
        found.update({base + name: array for name, array in draw(len(base) + int(base[14]) * 7, connection_shapes(kind)).items()})
    return found


def mhc_lite(kind):
    """config.json and tensors of a model."""
    shapes = {"transformer.wte.weight": (VOCABULARY, CHANNELS), "transformer.wpe.weight": (CONTEXT, CHANNELS), "transformer.ln_f.weight": (CHANNELS,), "transformer.ln_f.bias": (CHANNELS,)}
    for block in (f"transformer.h.{layer}.branch_" for layer in range(LAYERS)):
        for name, shape in {"attn.0": (CHANNELS,), "attn.1.c_attn": (3 * CHANNELS, CHANNELS), "attn.1.c_proj": (CHANNELS, CHANNELS), "mlp.0": (CHANNELS,),
                            "mlp.1.c_fc": (4 * CHANNELS, CHANNELS), "mlp.1.c_proj": (CHANNELS, 4 * CHANNELS)}.items():
            shapes.update({f"{block}{name}.weight": shape, f"{block}{name}.bias": shape[:1]})
    weights = with_connections(draw(1, shapes), kind, lambda name: (name, *(["lm_head.weight"] if ".wte" in name else []),
                                                                   *([name.replace(".branch_attn.", ".hc_attn.branch.").replace(".branch_mlp.", ".hc_mlp.branch.")] if ".h." in name else [])))
    return {**GPT, "hyper_conn_type": kind}, weights


def s2hc(kind):
    """Tensors of a model with 2 heads, 1 of keys, as torch.compile names them."""
    shapes = {"transformer.wte.weight": (VOCABULARY, CHANNELS), "lm_head.weight": (VOCABULARY, CHANNELS), "transformer.ln_f.weight": (CHANNELS,)}
    for block in (f"transformer.h.{layer}." for layer in range(LAYERS)):
        for name, shape in {"norm_1": (CHANNELS,), "attn.qkv": (32, CHANNELS), "attn.proj": (CHANNELS, 16), "attn.norm_q": (8,), "attn.norm_k": (8,), "norm_2": (CHANNELS,),
                            "mlp.fc_1": (40, CHANNELS), "mlp.fc_2": (40, CHANNELS), "mlp.proj": (CHANNELS, 40)}.items():
            shapes[f"{block}{name}.weight"] = shape

    def copies(name):
        if ".h." not in name:
            return (name,)
        part = "attn" if "norm_1" in name or ".attn." in name else "mlp"
        return [name[:16] + inner + name[16:] for inner in ("", f"branch_{part}.", f"hc_{part}.branch.")]

    return {"_orig_mod." + name: array for name, array in with_connections(draw(2, shapes), kind, copies).items()}


class Case(small.InFolder):
    def write(self, name, weights, config=None):
        folder = self.folder / name
        folder.mkdir()
        write_tensors(folder / "model.safetensors", weights)
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        return folder

    def read(self, folder):
        tensors = hctrain.Tensors(self.folder / folder / "model.safetensors")
        return {name: tensors[name] for name in tensors}

    def convert(self, layout, source, out="ours", into=None):
        with contextlib.redirect_stderr(io.StringIO()):
            return convert.convert_from(layout, source, self.folder / out, into)

    def refused(self, words, layout, source, into=None):
        with self.assertRaisesRegex(hctrain.Error, words):
            self.convert(layout, source, "refused", into)
        self.assertFalse((self.folder / "refused").exists())

    def same(self, one, other):
        self.assertEqual(one.keys(), other.keys())
        for name, array in one.items():
            self.assertEqual((array.shape, array.tobytes()), (other[name].shape, other[name].tobytes()), name)

    def mixes_as_theirs(self, kind, theirs):
        """hc_probe's matrices of the converted model, from the streams that it has."""
        tokens = np.random.default_rng(3).integers(0, VOCABULARY, (2, 8))
        found = hctrain.probe(self.folder / "ours", tokens, streams=True, grad=False, device="pocl", dtype="fp32")
        for sublayer in range(2 * LAYERS if kind != "none" else 0):
            base = f"transformer.h.{sublayer // 2}.{('hc_attn', 'hc_mlp')[sublayer % 2]}."
            leaves = {name[len(base):]: array for name, array in theirs.items() if name.startswith(base)}
            for matrix, wanted in zip((f"h_pre.{sublayer}", f"h_res.{sublayer}", f"h_post.{sublayer}"), mixes(kind, leaves, found[f"streams.{sublayer}"])):
                np.testing.assert_allclose(found[matrix], wanted, atol=2e-6, err_msg=f"{kind} {matrix}")


class MhcLite(Case):
    def test_to_and_fro(self):
        for kind in ("none", "hc", "mhc", "mhc_lite"):
            with self.subTest(kind):
                config, weights = mhc_lite(kind)
                self.convert("mhc_lite", self.write(f"theirs-{kind}", weights, config))
                self.mixes_as_theirs(kind, weights)
                back = convert.convert_to("mhc_lite", self.folder / "ours", self.folder / f"back-{kind}")
                self.assertEqual(back, {**config, "hyper_conn_n": 1 if kind == "none" else N})
                self.same(self.read(f"back-{kind}"), weights)
                for name in ("ours", f"back-{kind}"):
                    os.rename(self.folder / name, self.folder / f"{name}-{kind}-done")

    def test_transposed(self):
        """mhc_lite's layout does not depend on which of the two models a checkpoint has."""
        config, weights = mhc_lite("mhc_lite")
        ours = self.convert("mhc_lite", self.write("theirs", weights, config))
        leaves = self.read("ours")
        for name, leaf in leaves.items():
            if name.endswith("_res") and leaf.shape:
                leaves[name] = leaf[..., [list(itertools.permutations(range(N))).index(tuple(np.argsort(order))) for order in itertools.permutations(range(N))]]
        convert.convert_to("mhc_lite", self.write("turned", leaves, {**ours, "h_res_transposed": True}), self.folder / "back")
        self.same(self.read("back"), weights)

    def test_refused(self):
        config, weights = mhc_lite("mhc")
        written = itertools.count()

        def refused(words, change=None, **settings):
            self.refused(words, "mhc_lite", self.write(f"bad-{next(written)}", {**weights, **(change or {})}, {**config, **settings}))

        branch, alpha = "transformer.h.1.hc_mlp.branch.1.c_fc.weight", "transformer.h.0.hc_attn.static_alpha"
        refused(r'hyper_conn_type is "m\\u001bhc", none of none, hc, mhc, mhc_lite', hyper_conn_type="m\x1bhc")
        refused("hyper_conn_type is 3", hyper_conn_type=3)
        refused("'mhc_gate_fn' is not a setting of mHC-lite", mhc_gate_fn="tanh")
        refused("n_layer is true, not a whole number", n_layer=True)
        refused("n_embd 16 is not a multiple of n_head 3", n_head=3)
        refused("mhc of 9 streams; hctrain's has 2 to 8", hyper_conn_n=9)
        refused("bias is null", bias=None)
        refused("dropout is 1", dropout=1)
        refused(r"'transformer.h.1.branch_mlp.1.c_fc.weight' and '.*branch.*' differ, which are one in the model", {branch: weights[branch] + 1})
        refused("'lm_head.weight' and 'transformer.wte.weight' differ", {"lm_head.weight": weights["lm_head.weight"] * 2})
        refused(r"'transformer.h.0.hc_attn.dynamic_alpha_fn' has shape \[64, 20\], not \[64, 28\]", hyper_conn_type="mhc_lite")
        refused(r"has shape \[5, 4\], not \[4, 5\]", {alpha: weights[alpha].T.copy()})
        refused("has no tensor 'transformer.h.2.branch_attn.0.weight'", n_layer=3)
        refused("'transformer.h.1.branch_attn.0.bias' has no place in the model, nor have", n_layer=1)
        refused("'x' has no place in the model$", {"x": np.zeros(1, np.float32)})
        self.refused("cannot open .*config.json", "mhc_lite", self.write("no-config", weights))
        (self.folder / "no-config/config.json").write_text('{"n_layer": ')
        self.refused("this is not JSON", "mhc_lite", self.folder / "no-config")
        nan = weights["transformer.wte.weight"].copy()
        nan[3, 3] = np.nan
        refused("'transformer.wte.weight' has numbers that are infinite or nan", {"transformer.wte.weight": nan, "lm_head.weight": nan})
        refused("'transformer.ln_f.weight' has numbers of type int32", {"transformer.ln_f.weight": np.ones(CHANNELS, np.int32)})
        refused(r"'\\xed\\xa0\\x80' is not a setting", **{"\ud800": 1})
        self.refused("only with it", "mhc_lite", self.folder / "no-config", into=small.run().checkpoints[-1])
        self.write("taken", weights, config)
        with self.assertRaisesRegex(hctrain.Error, "taken exists: choose another --out"):
            self.convert("mhc_lite", self.folder / "taken", "taken")
        for out, words in (("nowhere/out", "No such file"), ("n" * 300, "File name too long"), ("n\0", "null")):
            with self.assertRaisesRegex(hctrain.Error, f"cannot write .*: .*{words}"):
                self.convert("mhc_lite", self.folder / "taken", out)
        for layout in ("bogus", "gpt2\x1b"):
            with self.assertRaisesRegex(hctrain.Error, "there is no layout .* here, but mhc_lite, s2hc, deepseek_v4"):
                self.convert(layout, self.folder / "taken", "out")

    def test_models_that_have_no_such_layout(self):
        def refused(words, checkpoint):
            with self.assertRaisesRegex(hctrain.Error, words):
                convert.convert_to("mhc_lite", checkpoint, self.folder / "back")

        refused("hc_norm_eps is 1e-06, and 0.0 in mHC-lite's mhc", small.run().best_checkpoint)
        config, weights = mhc_lite("hc")
        ours = self.convert("mhc_lite", self.write("theirs", weights, config))
        leaves = self.read("ours")
        for name, change, words in (("list", {"residual": []}, "residual is a list, and mHC-lite has"), ("text", {"h_res_transposed": "false"}, 'h_res_transposed is "false", not true or false'),
                                    ("shc", {"residual": "shc"}, 'residual is "shc", and mHC-lite has rc, hc, mhc, mhc_lite'), ("turned", {"h_res_transposed": True}, "h_res_transposed is true"),
                                    ("rope", {"position": "rope"}, 'position is "rope"'), ("heads", {"n_kv_head": 1}, "n_kv_head is 1, and 2")):
            refused(words, self.write(name, leaves, {**ours, **change}))
        leaves["transformer.h.1.hc_mlp.alpha_res"] = np.asarray(leaves["transformer.h.1.hc_mlp.alpha_res"] + 1, np.float32)
        refused(r"h\.1\.hc_mlp\.alpha_pre is .* and hc has one number for both there", self.write("two", leaves, ours))


class S2hc(Case):
    def test_from_theirs(self):
        for kind in ("none", "hc", "mhc", "mhc_lite", "kromhc", "shc"):
            with self.subTest(kind):
                theirs = s2hc(kind)
                config = self.convert("s2hc", self.write(f"theirs-{kind}", theirs))
                self.assertEqual([config[name] for name in ("residual", "n_head", "n_kv_head", "head_dim", "mlp_width", "h_res_transposed", "rope_theta")],
                                 [{"none": "rc", "kromhc": "krom"}.get(kind, kind), 2, 1, 8, 40, kind == "mhc", 1e6])
                plain = {name[len("_orig_mod."):]: array for name, array in theirs.items()}
                self.mixes_as_theirs(kind, plain)
                ours = self.read("ours")
                names = {f"transformer.h.{layer}.{name}": f"transformer.h.{layer}.{wanted}" for layer in range(LAYERS) for name, wanted in {
                    "ln_1": "norm_1", "attn.c_attn": "attn.qkv", "attn.q_norm": "attn.norm_q", "attn.k_norm": "attn.norm_k", "attn.c_proj": "attn.proj", "ln_2": "norm_2",
                    "mlp.c_gate": "mlp.fc_1", "mlp.c_fc": "mlp.fc_2", "mlp.c_proj": "mlp.proj"}.items()}
                for name, wanted in {**names, **{same: same for same in ("transformer.wte", "lm_head", "transformer.ln_f")}}.items():
                    np.testing.assert_array_equal(ours[f"{name}.weight"], plain[f"{wanted}.weight"])
                os.rename(self.folder / "ours", self.folder / f"ours-{kind}")

    def test_refused(self):
        theirs, written = s2hc("shc"), itertools.count()

        def refused(words, change, without=()):
            self.refused(words, "s2hc", self.write(f"bad-{next(written)}", {name: array for name, array in {**theirs, **change}.items() if name not in without}))

        branch, block = "_orig_mod.transformer.h.0.branch_attn.attn.qkv.weight", "_orig_mod.transformer.h.1.hc_mlp."
        refused("'_orig_mod.transformer.h.0.attn.qkv.weight' and '.*' differ", {branch: theirs[branch] * 2})
        refused("has no tensor 'transformer.h.1.hc_mlp.gamma_v'", {}, [block + "gamma_v"])
        refused("has no tensor 'lm_head.weight'", {}, ["_orig_mod.lm_head.weight"])
        refused("a hyper-connection of 9 streams", {"_orig_mod.transformer.h.0.hc_attn.static_beta": np.zeros(9, np.float32)})
        refused("are not of heads of 5 channels", {f"_orig_mod.transformer.h.0.{inner}attn.norm_q.weight": np.zeros(5, np.float32) for inner in ("", "branch_attn.", "hc_attn.branch.")})
        refused("'transformer.h.0.post_norm.weight' has no place", {"_orig_mod.transformer.h.0.post_norm.weight": np.zeros(1, np.float32)})
        lite = {**s2hc("mhc_lite"), "_orig_mod.transformer.h.0.hc_attn.static_alpha": np.zeros(7, np.float32)}
        self.refused("as no connection of s2HC's of 4 streams", "s2hc", self.write("lite", lite))
        self.refused("has neither lit_model.pth nor model.safetensors", "s2hc", self.folder)

    def test_pickle(self):
        """A file of torch.save is for PyTorch to read, which refuses what is more than tensors."""
        (self.folder / "lit_model.pth").write_bytes(b"cos\nsystem\n(S'touch " + os.fsencode(self.folder) + b"/touched'\ntR.")
        words = "is not a file of torch.save with tensors and plain containers alone" if importlib.util.find_spec("torch") else "only PyTorch reads: pip install torch"
        self.refused(words, "s2hc", self.folder)
        self.refused(words, "s2hc", self.folder / "lit_model.pth")
        self.assertFalse((self.folder / "touched").exists())

    @unittest.skipUnless(importlib.util.find_spec("yaml"), "needs PyYAML")
    def test_settings(self):
        folder = self.write("theirs", s2hc("none"))
        settings = folder / "model_config.yaml"
        settings.write_text("block_size: 64\nrope_base: 500\nnorm_eps: 1.0e-3\nnorm_qk: true\n")
        config = self.convert("s2hc", folder)
        self.assertEqual([config[name] for name in ("block_size", "rope_theta", "norm_eps")], [64, 500, 1e-3])
        for text, words in (("sliding_window_size: 512\n", "sliding_window_size is 512, and null in hctrain's model"), ("rope_base: no\n", "rope_base is false, not a number"),
                            ("a: [\n", "model_config.yaml is not YAML"), ("- 1\n", "has no settings"), ("block_size: 64\nn_layer: 9\n", "n_layer is 9, and 2 by the tensors"), ("name: Gemma3-1B\n", "Gemma3-1B has a block"),
                            ("block_size: 2001-01-01\n", "block_size is"), ("block_size: !!int ''\n", "is not YAML"), ("norm_qk: [1]\n", "norm_qk is a list"), ("rope_base: 1\n", "block_size is null"), ("a: !!python/object:os.system {}\n", "is not YAML")):
            settings.write_text(text)
            self.refused(words, "s2hc", folder)
        settings.unlink()
        os.mkfifo(settings)
        self.refused("model_config.yaml is not a file", "s2hc", folder)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "needs PyTorch")
    def test_state_dict(self):
        """Parameters, bfloat16 and an optimizer beside the model, as LitGPT saves them."""
        import torch
        theirs = {name: torch.nn.Parameter(torch.from_numpy(array.copy())) for name, array in s2hc("shc").items()}
        theirs["_orig_mod.lm_head.weight"] = theirs["_orig_mod.lm_head.weight"].bfloat16()
        torch.save({"model": theirs, "step_count": 3}, self.folder / "lit_model.pth")
        self.convert("s2hc", self.folder)
        wanted = theirs["_orig_mod.lm_head.weight"].float().detach().numpy()
        np.testing.assert_array_equal(self.read("ours")["lm_head.weight"], wanted)
        torch.save({"model": {"x": torch.zeros(3, dtype=torch.int32)}}, self.folder / "lit_model.pth")
        self.refused("holds no weights", "s2hc", self.folder)


class DeepSeekV4(Case):
    @classmethod
    def setUpClass(cls):
        cls.base = hctrain.train(small.SETTINGS, data_dir=small.data(), out_dir=small.scratch() / "v4", **V4).checkpoints[-1]

    def begin(self):
        """A checkpoint of random hyper-connections."""
        checkpoint = hctrain.read_checkpoint(self.base)
        random = draw(5, {name: checkpoint.weights.entries[name].shape for name in checkpoint.weights})
        return self.write("random", random, checkpoint.config)

    def test_to_and_fro(self):
        random = self.begin()
        config = convert.convert_to("deepseek_v4", random, self.folder / "theirs")
        self.assertEqual(config, {"num_hidden_layers": 2, "hidden_size": 16, "hc_mult": 2, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6})
        ours, theirs = self.read("random"), self.read("theirs")
        self.assertEqual(len(theirs), 3 * 5)
        base = "transformer.h.1.hc_mlp."
        fn, w = theirs["model.layers.1.ffn_hc.fn"], [ours[base + name].T for name in ("w_pre", "w_post", "w_res")]
        np.testing.assert_array_equal(fn, np.concatenate((w[0], w[1], w[2][[0, 2, 1, 3]])))  # entry i, j of H_res stands at j, i
        np.testing.assert_array_equal(theirs["model.layers.1.ffn_hc.base"][4:], ours[base + "b_res"].T.ravel())
        np.testing.assert_array_equal(theirs["model.layers.0.attn_hc.scale"], [ours[f"transformer.h.0.hc_attn.alpha_{name}"] for name in ("pre", "post", "res")])
        np.testing.assert_array_equal(theirs["model.hc_head.hc_fn"], ours["transformer.hc_head.w_pre"].T)
        released = {name[len("model."):].replace(".attn_hc.", ".hc_attn_").replace(".ffn_hc.", ".hc_ffn_").replace("hc_head.hc_", "hc_head_"): array for name, array in theirs.items()}
        quantized = self.folder / "released"
        self.write("released", {**released, "layers.0.attn.wq_a.weight": np.zeros((2, 2), np.float32)})
        content = bytearray((quantized / "model.safetensors").read_bytes())
        at = content.index(b'{"dtype": "F32", "shape": [2, 2]')
        content[at:at + 32] = b'{"dtype":"F8_E4M3","shape":[4,4]'  # as large, and of a type that is left unread
        (quantized / "model.safetensors").write_bytes(bytes(content))
        into = hctrain.read_checkpoint(self.base)
        (self.base / "tokenizer.json").write_text("{}")
        self.addCleanup((self.base / "tokenizer.json").unlink)
        for name, source in (("usual", self.folder / "theirs"), ("names", quantized / "model.safetensors")):
            self.convert("deepseek_v4", source, name, self.base)
            begun = self.read(name)
            self.assertEqual((self.folder / name / "tokenizer.json").read_text(), "{}")
            self.same(begun, {name: ours[name] if ".hc_" in name else into.weights[name] for name in into.weights})
        (self.folder / "usual/tokenizer.json").unlink()
        run = hctrain.train(small.SETTINGS, data_dir=small.data(), out_dir=self.folder / "run", **{**V4, "max_iters": 1}, init_from=self.folder / "usual")
        self.assertEqual(run.checkpoints[-1].name, "ckpt-1")

    def test_index(self):
        convert.convert_to("deepseek_v4", self.begin(), self.folder / "theirs")
        theirs = self.read("theirs")
        folder = self.folder / "parts"
        folder.mkdir()
        places = {name: f"part-{len(name) % 2}" for name in theirs}
        for part in set(places.values()):
            write_tensors(folder / part, {name: array for name, array in theirs.items() if places[name] == part})
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": places}))
        self.convert("deepseek_v4", folder, "ours", self.base)
        convert.convert_to("deepseek_v4", self.folder / "ours", self.folder / "back")
        self.same(self.read("back"), theirs)
        for place, words in (("../part-0", "has no weight_map of files in its folder"), (3, "has no weight_map"), ("part-0", "there is no tensor")):
            index.write_text(json.dumps({"weight_map": dict.fromkeys(places, place)}))
            self.refused(words, "deepseek_v4", folder, self.base)

    def test_refused(self):
        random = self.begin()
        config = hctrain.read_checkpoint(random).config
        convert.convert_to("deepseek_v4", random, self.folder / "theirs")
        theirs, ours = self.read("theirs"), self.read("random")
        self.write("alone", theirs)  # without a config.json, which says the same first
        self.refused("goes with deepseek_v4, and only with it", "deepseek_v4", self.folder / "theirs")
        both = {**theirs, "layers.0.hc_attn_fn": theirs["model.layers.0.attn_hc.fn"] + 1}
        self.refused("'layers.0.hc_attn_fn' and 'model.layers.0.attn_hc.fn' differ", "deepseek_v4", self.write("both", both), random)
        beside = {"hc_eps": 0.5}
        self.refused("hc_eps is 1e-06, and hc_eps is 0.5 in", "deepseek_v4", self.write("beside", theirs, beside), random)
        for name, change, words in (("shc", {"residual": "shc"}, 'residual is "shc": DeepSeek-V4\'s hyper-connections are mhc'), ("gain", {"hc_norm_gain": True}, "hc_norm_gain is true"),
                                    ("turned", {"h_res_transposed": True}, "h_res_transposed is true"), ("scaled", {"stream_expand": "scaled"}, 'stream_expand is "scaled"'), ("late", {"read_delay": True}, "read_delay is true"),
                                    ("static", {"hc_dynamic": False}, "hc_dynamic is false"), ("early", {"hc_until": 2}, "hc_until is 2"), ("first", {"x0_lambdas": True}, "x0_lambdas is true"),
                                    ("endless", {"n_layer": 1 << 31}, "n_layer is 2147483648")):
            folder = self.write(name, ours, {**config, **change})
            self.refused(words, "deepseek_v4", self.folder / "theirs", folder)
            with self.assertRaisesRegex(hctrain.Error, words):
                convert.convert_to("deepseek_v4", folder, self.folder / "back")
        for name, change, words in (("deep", {"n_layer": 3}, "has no tensor 'layers.2.attn_hc.fn', nor one of the release's name: .* has 3 layers"), ("flat", {"n_layer": 1}, "of more layers than the 1 of"),
                                    ("wide", {"n_embd": 32}, r"has shape \[8, 32\], not \[8, 64\]: .* has 2 layers, 2 streams and 32 channels"), ("sum", {"stream_reduce": "norm_sum"}, "give --stream-reduce head")):
            self.refused(words, "deepseek_v4", self.folder / "alone", self.write(name, ours, {**config, **change}))
        (self.folder / "damaged").write_bytes(b"\xff" * 8 + b"{}")
        self.refused("is not a safetensors file", "deepseek_v4", self.folder / "damaged", random)
        del theirs["model.layers.1.attn_hc.base"]
        self.refused("has no tensor 'layers.1.attn_hc.base'", "deepseek_v4", self.write("less", theirs), random)


class CommandLine(Case):
    def run_it(self, *words):
        return subprocess.run([sys.executable, "-m", "hctrain.convert", *map(str, words)], capture_output=True, text=True, check=False)

    def test_words(self):
        config, weights = mhc_lite("mhc_lite")
        done = self.run_it("--from", "mhc_lite", self.write("theirs", weights, config), "--out", self.folder / "ours")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, f"{self.folder}/ours: mhc_lite, 4 streams, 2 layers, 16 channels, h_res_transposed false\n")
        done = self.run_it("--to", "mhc_lite", self.folder / "ours", "--out", self.folder / "back")
        self.assertEqual((done.returncode, done.stdout), (0, f"{self.folder}/back: mhc_lite's layout\n"))
        done = self.run_it("--to", "mhc_lite", self.folder / "nothing", "--out", self.folder / "other")
        self.assertEqual((done.returncode, done.stderr), (1, f"hctrain.convert: there is no folder {self.folder}/nothing\n"))
        for words in ((), ("x", "--out", "y"), ("--from", "gpt", "x", "--out", "y"), ("--to", "s2hc", "x", "--out", "y"), ("--to", "mhc_lite", "x", "--into", "z", "--out", "y"), ("--from", "s2hc", "", "--out", "y"),
                      ("--from", "deepseek_v4", "x", "--out", "y")):
            self.assertEqual(self.run_it(*words).returncode, 2)
        self.assertIn("DeepSeek-V4", self.run_it("--help").stdout)


if __name__ == "__main__":
    unittest.main()
