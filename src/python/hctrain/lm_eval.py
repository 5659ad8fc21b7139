"""EleutherAI's lm-evaluation-harness on hctrain's programs: the harness makes prompts and metrics, and hc_eval scores them, on any device.

  python3 -m hctrain.lm_eval --model hctrain --model_args checkpoint=out/M/ckpt-best,device=gpu --tasks hellaswag,arc_easy,lambada_openai

takes all options of the harness' own command. model_args are the checkpoint, and options of hc_eval (docs/evaluation.md). Needs the package lm_eval.
"""
# mypy: disable-error-code="misc"
from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Sequence

from lm_eval.api.model import LM  # type: ignore[import-not-found,import-untyped,unused-ignore]
from lm_eval.api.registry import register_model  # type: ignore[import-not-found,import-untyped,unused-ignore]

from . import programs, sample
from .files import Error

MOST_NEW_TOKENS = 256  # of a text for which the task sets no limit


@register_model("hctrain")  # type: ignore[untyped-decorator,unused-ignore]
class HctrainLM(LM):
    """A model in a folder that hc_eval reads: a checkpoint, or a GPT-2, Llama, Qwen2 or Qwen3 as transformers saves it."""

    def __init__(self, checkpoint: str, **options: Any):
        """options: of hc_eval, such as device, dtype, batch_size, score_padding; those that the harness adds and hc_eval lacks are ignored."""
        super().__init__()
        self.checkpoint = os.path.expanduser(checkpoint)
        self.options = {name: value for name, value in options.items() if name not in ("max_batch_size", "max_length") and value is not None and not str(value).startswith("auto")}

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> HctrainLM:
        """As the harness calls it: model_args, which win, and what its own options say; its batch size of 1 is its default and says nothing."""
        more = {name: value for name, value in (additional_config or {}).items() if not (name == "batch_size" and str(value) in ("1", "None"))}
        return cls(**{**more, **arg_dict})

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> HctrainLM:
        pairs = (part.partition("=") for part in arg_string.split(",") if part)
        return cls.create_from_arg_obj({name.strip(): value for name, _, value in pairs}, additional_config)

    def _scored(self, lines: Sequence[dict[str, str]], *words: str) -> list[dict[str, Any]]:
        """The results of hc_eval for these lines, in their order."""
        if not lines:
            return []
        with tempfile.TemporaryDirectory() as folder:
            requests, results = Path(folder, "requests.jsonl"), Path(folder, "results.jsonl")
            requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
            command = [str(programs.path("hc_eval")), "--checkpoint", self.checkpoint, "--per-document", str(results), "--invalid", "replace", *words,
                       *(f"--{name.replace('_', '-')}={value}" for name, value in self.options.items()), str(requests)]
            if subprocess.run(command, env=programs.environment(), stdout=subprocess.DEVNULL, check=False).returncode:
                raise Error(f"hc_eval has failed: {' '.join(command)}")
            return [json.loads(line) for line in results.read_text().splitlines()]

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        lines = [{"context": context, "continuation": continuation} for context, continuation in (request.args for request in requests)]
        return [(found["log_likelihood"], found["greedy"]) for found in self._scored(lines, "--score")]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        return [found["log_likelihood"] for found in self._scored([{"text": request.args[0]} for request in requests])]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        texts = []
        for prompt, settings in (request.args for request in requests):
            stops = settings.get("until") or []
            chosen = {"temperature": settings.get("temperature", 0) if settings.get("do_sample") else 0, "top_p": settings.get("top_p"), "top_k": settings.get("top_k")}
            text = sample(self.checkpoint, prompt, max_new_tokens=settings.get("max_gen_toks", MOST_NEW_TOKENS), **chosen,
                          **{name: value for name, value in self.options.items() if name in ("device", "dtype", "gemm", "tokenizer", "vocab_file", "end_of_text")})
            for stop in [stops] if isinstance(stops, str) else stops:
                text = text.partition(stop)[0] if stop else text
            texts.append(text)
        return texts


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate  # type: ignore[import-not-found,import-untyped,unused-ignore]

    cli_evaluate()
