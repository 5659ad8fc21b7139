"""hctrain.lm_eval with a stand-in for the package lm_eval; tests/compare_tasks.py has the harness itself."""
import sys
import types
import unittest
from unittest import mock

import hctrain
import small


class Request:
    def __init__(self, *args):
        self.args = args


class Scores(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        model, registry = types.ModuleType("lm_eval.api.model"), types.ModuleType("lm_eval.api.registry")
        model.LM, registry.register_model = object, lambda name: lambda chosen: chosen
        stand_ins = {"lm_eval": types.ModuleType("lm_eval"), "lm_eval.api": types.ModuleType("lm_eval.api"), model.__name__: model, registry.__name__: registry}
        with mock.patch.dict(sys.modules, stand_ins):
            from hctrain.lm_eval import HctrainLM
        cls.model = HctrainLM(str(small.run().best_checkpoint), device="pocl", batch_size="auto", max_batch_size=64)

    def test_continuations(self):
        pairs = [("10 green", " bottles"), ("10 green ", "bottles"), ("", "10"), ("10 green", " bottles, and 100 more")]
        found = self.model.loglikelihood([Request(*pair) for pair in pairs])
        self.assertEqual([len(one) for one in found], 4 * [2])
        self.assertAlmostEqual(found[0][0], found[1][0], places=4)  # white space at the context's end belongs to the continuation
        self.assertLess(found[3][0], found[0][0])
        self.assertTrue(all(isinstance(greedy, bool) for _, greedy in found))
        self.assertEqual(len(self.model.loglikelihood([Request("half a pair \ud800", " of it \udc00")])), 1)
        self.assertEqual(self.model.loglikelihood([]), [])

    def test_documents(self):
        texts = ["10 green bottles, and 100 more", "xyz", "half a pair \ud800"]
        found = self.model.loglikelihood_rolling([Request(text) for text in texts])
        path = small.scratch() / "document"
        path.write_text(texts[0])
        self.assertAlmostEqual(found[0], hctrain.evaluate(small.run().best_checkpoint, path, device="pocl")["log_likelihood"], places=5)
        self.assertEqual(len(found), 3)
        whole = self.model.loglikelihood([Request("", texts[0])])[0][0]
        self.assertAlmostEqual(found[0], whole, places=4)

    def test_texts(self):
        texts = self.model.generate_until([Request("10 green", {"until": ["\n"], "max_gen_toks": 16}), Request("10 green", {"until": "e", "max_gen_toks": 16})])
        self.assertNotIn("\n", texts[0])
        self.assertNotIn("e", texts[1])
        self.assertTrue(texts[0].startswith(texts[1]) or "\n" in texts[1])

    def test_arguments(self):
        """Those of model_args win, and the harness' own batch size of 1 says nothing."""
        more = {"batch_size": 1, "max_batch_size": None, "device": None}
        self.assertEqual(type(self.model).create_from_arg_obj({"checkpoint": "x", "batch_size": 32}, more).options, {"batch_size": 32})
        self.assertEqual(type(self.model).create_from_arg_string("checkpoint=x,device=pocl,batch_size=auto:4", more).options, {"device": "pocl"})

    def test_failures(self):
        with self.assertRaisesRegex(hctrain.Error, "hc_eval has failed"):
            self.model.loglikelihood([Request("a", "")])


if __name__ == "__main__":
    unittest.main()
