"""Checkpoints: of hc_train, of all types, damaged."""
import json
import os
import shutil
import tempfile
import unittest
from pathlib import Path

import hctrain
import numpy as np
import small


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype, shape, *offsets):
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


class Trained(unittest.TestCase):
    def test_content(self):
        checkpoint = hctrain.read_checkpoint(small.run().checkpoints[-1])
        self.assertEqual(checkpoint.config["residual"], "mhc")
        self.assertEqual(checkpoint.state["iteration"], 12)
        weights = checkpoint.weights
        self.assertEqual(weights["transformer.wte.weight"].shape, (256, 16))
        self.assertEqual(weights["transformer.h.1.hc_mlp.w_res"].shape, (32, 4))
        self.assertEqual(weights["transformer.h.0.hc_attn.alpha_res"].shape, ())
        self.assertEqual(set(checkpoint.optimizer), {f"{state}.{name}" for name in weights for state in ("exp_avg", "exp_avg_sq")})
        self.assertGreaterEqual(min(checkpoint.optimizer[f"exp_avg_sq.{name}"].min() for name in weights), 0)
        with self.assertRaises(KeyError):
            weights["absent"]

    def test_weights_alone(self):
        checkpoint = hctrain.read_checkpoint(small.run().best_checkpoint)
        self.assertIsNone(checkpoint.optimizer)
        with tempfile.TemporaryDirectory() as folder:
            for name in ("config.json", "model.safetensors"):
                shutil.copy(checkpoint.folder / name, folder)
            self.assertEqual(hctrain.read_checkpoint(folder).state, {})
            os.remove(Path(folder, "model.safetensors"))
            with self.assertRaisesRegex(hctrain.Error, "cannot open .*model.safetensors"):
                hctrain.read_checkpoint(folder)

    def test_replaced_while_it_is_read(self):
        """Tensors are of the folder that was opened, even if another folder has its name by now."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name, "ckpt-best")
            shutil.copytree(small.run().best_checkpoint, folder)
            checkpoint = hctrain.read_checkpoint(folder)
            before = hctrain.read_checkpoint(small.run().best_checkpoint).weights["transformer.wte.weight"]
            content = bytearray((folder / "model.safetensors").read_bytes())
            shutil.rmtree(folder)
            folder.mkdir()
            (folder / "model.safetensors").write_bytes(bytes(content[:-4096]) + bytes(4096))
            np.testing.assert_array_equal(checkpoint.weights["transformer.wte.weight"], before)


class Written(small.InFolder):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "a.safetensors"

    def tensors(self, header, data=b""):
        self.path.write_bytes(safetensors(header, data))
        return hctrain.Tensors(self.path)

    def test_types(self):
        bits = np.arange(1 << 16, dtype="<u2")
        found = self.tensors({"bf16": entry("BF16", [256, 256], 0, 1 << 17), "__metadata__": {"format": "pt"}}, bits.tobytes())["bf16"]
        self.assertEqual((found.dtype, found.shape), (np.float32, (256, 256)))
        np.testing.assert_array_equal(found.view(np.uint32), bits.reshape(256, 256).astype(np.uint32) << 16)
        for dtype, kind in (("F64", "<f8"), ("F32", "<f4"), ("F16", "<f2"), ("I64", "<i8"), ("I32", "<i4"), ("U16", "<u2"), ("U8", "u1"), ("BOOL", "?")):
            values = np.array([[0, 1, 1], [1, 0, 1]], dtype=kind)
            found = self.tensors({"b": entry(dtype, [], values.nbytes, values.nbytes + values.itemsize), "a": entry(dtype, [2, 3], 0, values.nbytes),
                                  "none": entry(dtype, [0, 7], 0, 0)}, values.tobytes() + values[:1, 1].tobytes())
            self.assertEqual(found["a"].dtype, values.dtype)
            np.testing.assert_array_equal(found["a"], values)
            self.assertEqual((found["b"].shape, found["b"], found["none"].shape, len(found)), ((), 1, (0, 7), 3))

    def test_lazy(self):
        """A file that is far larger than memory opens, and gives what is asked for."""
        size = 1 << 38
        self.path.write_bytes(safetensors({"large": entry("U8", [size], 0, size), "small": entry("U8", [2], size, size + 2)}))
        os.truncate(self.path, os.path.getsize(self.path) + size)
        with open(self.path, "ab") as file:
            file.write(b"\1\2")
        self.assertEqual(hctrain.Tensors(self.path)["small"].tolist(), [1, 2])

    def test_cut_short_later(self):
        found = self.tensors({"a": entry("U8", [4], 0, 4)}, b"1234")
        os.truncate(self.path, os.path.getsize(self.path) - 1)
        with self.assertRaisesRegex(hctrain.Error, "has become shorter"):
            found["a"]

    def test_damaged(self):
        good = entry("U8", [4], 0, 4)
        for name, header, data, words in (
                ("overlap", {"a": good, "b": entry("U8", [2], 2, 4)}, 4, "overlap"), ("gap", {"a": entry("U8", [2], 1, 3)}, 3, "unused"), ("end", {"a": good}, 5, "bytes behind"),
                ("short", {"a": good}, 3, "'a' is not"), ("size", {"a": entry("U8", [3], 0, 4)}, 4, "is not"), ("type", {"a": entry("F8", [4], 0, 4)}, 4, "is not"),
                ("overflow", {"a": entry("F32", [1 << 62, 4], 0, 0)}, 0, "is not"), ("zero", {"a": entry("F32", [0, 1 << 62], 0, 0)}, 0, "is not"),
                ("negative", {"a": entry("U8", [-4], 0, 4)}, 4, "is not"), ("backwards", {"a": entry("U8", [0], 4, 0)}, 4, "is not"), ("bool", {"a": entry("U8", [True], 0, 1)}, 1, "is not"),
                ("rank", {"a": entry("U8", [1] * 9, 0, 1)}, 1, "is not"), ("real", {"a": entry("U8", [4.0], 0, 4)}, 4, "is not"), ("offsets", {"a": entry("U8", [4], 0)}, 4, "is not"),
                ("text", {"a\x1b": "U8"}, 4, r"'a\\x1b' is not"), ("list", b"[1]", 0, "not a JSON object"), ("syntax", b"{,}", 0, "not JSON"), ("deep", b"[" * 100000, 0, "not JSON"),
                ("twice", b'{"a":1,"a":1}', 0, "twice")):
            with self.subTest(name), self.assertRaisesRegex(hctrain.Error, f"{self.path}.*{words}"):
                self.tensors(header, bytes(data))
        for content in (b"", b"1234567", bytes(8), (1 << 63).to_bytes(8, "little") + b"{}", b"\3\0\0\0\0\0\0\0{}"):
            self.path.write_bytes(content)
            with self.assertRaisesRegex(hctrain.Error, "is not a safetensors file"):
                hctrain.Tensors(self.path)
        os.remove(self.path)
        os.mkfifo(self.path)
        with self.assertRaisesRegex(hctrain.Error, "is not a file"):
            hctrain.Tensors(self.path)


if __name__ == "__main__":
    unittest.main()
