"""hctrain.model, which exports to PyTorch contain, beside the golden cases (tests/golden)."""
import importlib.util
import unittest
from pathlib import Path

import hctrain
import numpy as np

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
TOLERANCE = 1e-5  # of norms; rotations are computed in float32
SMALL = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 33, "block_size": 8}


@unittest.skipUnless(importlib.util.find_spec("torch"), "needs PyTorch")
class Model(unittest.TestCase):
    def compare(self, folder):
        """Logits, loss, gradients and matrices of a case, in double precision."""
        import torch
        from hctrain import model

        batch, expected = hctrain.Tensors(folder / "batch.safetensors"), hctrain.Tensors(folder / "expected.safetensors")
        gpt, found = model.load(folder).double(), {}
        for sublayer, connection in enumerate(gpt.connections()):
            if isinstance(connection, (model.HyperConnection, model.Wide)):
                connection.register_forward_hook(lambda _, __, h, sublayer=sublayer: found.update(zip((f"h_{one}.{sublayer}" for one in ("pre", "post", "res")), h)))
        found["logits"], loss = gpt(*(torch.from_numpy(batch[name].astype(np.int64)) for name in "xy"))
        loss.backward()
        found["loss"] = loss.reshape(1)
        found.update({f"grad.{name}": torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in gpt.named_parameters()})
        gradients = {name for name in expected if name.startswith("grad.")}
        self.assertLessEqual(gradients, set(found))
        least = 1e-3 * np.sqrt(sum(np.square(expected[name]).sum() for name in gradients))  # some are zero but for rounding
        for name, array in found.items():
            wanted = expected[name]
            self.assertEqual(array.shape, wanted.shape, name)
            self.assertLessEqual(np.linalg.norm(array.detach().numpy() - wanted), TOLERANCE * max(np.linalg.norm(wanted), least if name in gradients else 0.0), name)
        return gpt.config["residual"]

    def test_golden_cases(self):
        """They have every residual connection."""
        from hctrain import model

        found = set()
        for case in sorted(GOLDEN.glob("*/expected.safetensors")):
            with self.subTest(case.parent.name):
                found.add(self.compare(case.parent))
        self.assertEqual(found, set(model.CONNECTIONS))

    def test_parts_that_are_left_out(self):
        """A model without them computes what one does whose parameters are such that they do nothing."""
        import torch
        from hctrain import model

        for setting, value, neutral, number in (("laurel_form", "rw", "w_up", 0), ("laurel_form", "lr", "b_mix", 0), ("dar_gate", "none", "gate", 1)):
            config = {**SMALL, "residual": setting.partition("_")[0]}
            whole, part = (model.GPT(one).double() for one in (config, {**config, setting: value}))
            with torch.no_grad():
                for name, leaf in whole.named_parameters():
                    leaf.fill_(number) if name.endswith(f".{neutral}") else leaf.normal_(0, 0.3)
            part.load_state_dict({name: whole.state_dict()[name] for name in part.state_dict()})
            tokens = torch.arange(16).reshape(2, 8)
            self.assertLess(len(part.state_dict()), len(whole.state_dict()))
            torch.testing.assert_close(part(tokens)[0], whole(tokens)[0], rtol=1e-12, atol=1e-12)


if __name__ == "__main__":
    unittest.main()
