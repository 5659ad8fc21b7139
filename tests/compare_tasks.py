#!/usr/bin/env python3
"""lm-evaluation-harness on hc_eval (hctrain.lm_eval) beside the harness on transformers, question by question.

  tests/compare_tasks.py [--questions N] [--work DIR]

Makes a GPT-2 and a Llama of random weights for transformers, with tokenizers trained on made-up sentences (the Llama's puts a token before
each text), and a file of questions for each task in the form of its data set. Both answer them by the harness' own definitions of the
tasks: without examples, with two examples from the same file, and with two from another file. Both also score documents that are longer and
shorter than the context. The exit status is 1 if an answer differs, a metric or a log-likelihood by more than 1e-4.

By hand, as it needs torch, transformers, accelerate and lm_eval (pip), and no network.
"""
import argparse
import json
import math
import os
import pathlib
import random
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", DISABLE_MULTIPROC="1", TQDM_DISABLE="1")

import datasets
import lm_eval
import tokenizers
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "src/python"))
from hctrain.lm_eval import HctrainLM  # noqa: E402

TOLERANCE = 1e-4
CONTEXT, TOKENS = 128, 600
TASKS = {"hellaswag": "hellaswag/hellaswag.yaml", "lambada": "lambada/lambada_openai.yaml", "piqa": "piqa/piqa.yaml", "arc_easy": "arc/arc_easy.yaml",
         "arc_challenge": "arc/arc_challenge.yaml", "winogrande": "winogrande/default.yaml"}
SYLLABLES = "ba co di fu ge ha ki lo mu ne pi ro sa te vu wi zo El Ån çé 中 ß ΑΣ".split()


# ---- questions

def word(rng):
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 4)))


def words(rng, least, most):
    return " ".join(word(rng) for _ in range(rng.randint(least, most)))


def spaced(rng, text):
    """Now and then with what the clean-up of HellaSwag looks for, or with white space about it."""
    extra = rng.choice(["", "", "", " [title] ", " [step] x", "  ", " [a] [b]", "[open", "\t", "\u00a0", "\n"])
    at = rng.randint(0, len(text))
    return rng.choice(["", "", " "]) + text[:at] + extra + text[at:]


def hellaswag(rng):
    return dict(ind=rng.randint(0, 10**6), activity_label=words(rng, 1, 3).title(), ctx_a=spaced(rng, words(rng, 3, 90)),
                ctx_b=spaced(rng, words(rng, 0, 3)), endings=[spaced(rng, words(rng, 1, 12)) for _ in range(4)], label=str(rng.randint(0, 3)))


def lambada(rng):
    return dict(text=rng.choice([words(rng, 1, 2), spaced(rng, words(rng, 20, 90)) + " " + word(rng)]))


def piqa(rng):
    return dict(goal=spaced(rng, words(rng, 2, 50)), sol1=spaced(rng, words(rng, 1, 20)), sol2=words(rng, 1, 20), label=rng.randint(0, 1))


def arc(rng):
    labels = rng.choice([list("ABCD"), list("1234"), list("ABC"), list("ABCDE")])
    return dict(id=word(rng), question=spaced(rng, words(rng, 3, 40)), choices=dict(text=[words(rng, 1, 6) for _ in labels], label=labels),
                answerKey=rng.choice(labels))


def winogrande(rng):
    return dict(sentence=words(rng, 1, 30) + rng.choice([" _ ", "_ ", " _"]) + words(rng, 1, 8) + " _.", option1=word(rng), option2=words(rng, 1, 2),
                answer=rng.choice("12"))


MAKERS = dict(hellaswag=hellaswag, lambada=lambada, piqa=piqa, arc_easy=arc, arc_challenge=arc, winogrande=winogrande)


def write_questions(path, task, count, seed):
    rng = random.Random(f"{task} {seed}")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(MAKERS[task](rng), ensure_ascii=rng.random() < 0.5) + "\n" for _ in range(count))


# ---- models

def make_tokenizer(folder, beginning):
    rng = random.Random("tokenizer")
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    special = ["<|endoftext|>"] + (["<|begin_of_text|>"] if beginning else [])
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=TOKENS, special_tokens=special, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator((words(rng, 5, 30) + " Question: Answer: " for _ in range(2000)), trainer)
    if beginning:
        bpe.post_processor = tokenizers.processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 1)])
    transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=special[-1], eos_token=special[0]).save_pretrained(folder)
    return bpe.get_vocab_size()


def make_model(folder, llama):
    count = make_tokenizer(folder, llama)
    torch.manual_seed(1)
    if llama:
        config = transformers.LlamaConfig(vocab_size=count, hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
                                          num_key_value_heads=2, max_position_embeddings=CONTEXT, initializer_range=0.15, bos_token_id=1, eos_token_id=0,
                                          tie_word_embeddings=False)
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GPT2Config(vocab_size=count, n_positions=CONTEXT, n_embd=64, n_layer=3, n_head=4, initializer_range=0.15, bos_token_id=0,
                                         eos_token_id=0)
        model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(folder)


# ---- answers

def answers(model, task, questions, shots, examples):
    path = os.path.join(os.path.dirname(lm_eval.__file__), "tasks", TASKS[task])
    config = load_task(path)
    files = {"test": str(questions), **({"train": str(examples)} if examples else {})}
    config.update(task="compared", dataset_path="json", dataset_name=None, dataset_kwargs=dict(data_files=files), test_split="test", validation_split=None,
                  training_split=None, fewshot_split="train" if examples else "test", fewshot_config=dict(sampler="first_n"), num_fewshot=shots)
    config.pop("tag", None)
    results = lm_eval.simple_evaluate(model=model, tasks=[config], num_fewshot=shots, log_samples=True, bootstrap_iters=100000, verbosity="ERROR")
    samples = sorted(results["samples"]["compared"], key=lambda sample: sample["doc_id"])
    return results["results"]["compared"], [[tuple(response) for response in sample["filtered_resps"]] for sample in samples]


def load_task(path):
    """The harness's own definition, with its functions and what it includes."""
    from lm_eval.tasks._yaml_loader import load_yaml
    return dict(load_yaml(path))


def largest(values):
    return max(range(len(values)), key=values.__getitem__)


def compare(task, here, there, scores, peers):
    """The largest difference of log-likelihoods, and how many answers and metrics differ."""
    worst, others = 0.0, 0
    for mine, theirs in zip(here, there, strict=True):
        ours, likelihoods = [value for value, _ in mine], [value for value, _ in theirs]
        worst = max(worst, *(abs(a - b) / max(1, abs(b)) for a, b in zip(ours, likelihoods, strict=True)))
        others += mine[0][1] != theirs[0][1] if task == "lambada" else largest(ours) != largest(likelihoods)
    for name, value in peers.items():
        if isinstance(value, float) and not math.isclose(scores[name], value, rel_tol=TOLERANCE, abs_tol=1e-9):
            others += 1
            print(f"{task}: {name} is {scores[name]} here and {value} there")
    return worst, others


def compare_documents(ours, model, count):
    """The largest difference of documents' log-likelihoods, of their own tokens: the harness on transformers would also count the first token of
    the Llama's tokenizer, as what follows itself."""
    model.add_bos_token, kept = False, model.add_bos_token
    rng = random.Random(3)
    texts = ["", word(rng), *(words(rng, 1, 200) for _ in range(count))]
    requests = [Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=0) for text in texts]
    pairs = zip(ours.loglikelihood_rolling(requests), model.loglikelihood_rolling(requests), strict=True)
    difference = max(abs(a - b) / max(1, abs(b)) for a, b in pairs)
    model.add_bos_token = kept
    return difference


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="of hc_eval")
    parser.add_argument("--questions", type=int, default=200, help="of each task")
    parser.add_argument("--work", help="leave models and questions in this folder")
    arguments = parser.parse_args()
    worst, differ = 0.0, 0
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(arguments.work or temporary)
        work.mkdir(exist_ok=True)
        datasets.config.HF_DATASETS_CACHE = str(pathlib.Path(temporary) / "cache")
        print(f"{'model':8}{'task':16}{'examples':18}{'questions':>10}{'acc':>8}{'worst difference':>18}{'other answers':>15}")
        for name in ("gpt2", "llama"):
            make_model(work / name, name == "llama")
            ours = HctrainLM(checkpoint=str(work / name), device=arguments.device, dtype="fp32")
            model = HFLM(pretrained=str(work / name), device="cpu", dtype="float32", batch_size=16)
            worst = max(worst, compare_documents(ours, model, arguments.questions))
            print(f"{name:8}documents: worst difference so far {worst:.1e}", flush=True)
            for task in TASKS:
                questions, examples = work / f"{task}.jsonl", work / f"{task}-train.jsonl"
                write_questions(questions, task, arguments.questions, 1)
                write_questions(examples, task, 10, 2)
                for shots, source in ((0, None), (2, None), (2, examples)):
                    scores, here = answers(ours, task, questions, shots, source)
                    peers, there = answers(model, task, questions, shots, source)
                    difference, picks = compare(task, here, there, scores, peers)
                    kind = "none" if not shots else "2, other file" if source else "2, same file"
                    print(f"{name:8}{task:16}{kind:18}{len(here):10}{scores['acc,none']:8.4f}{difference:18.1e}{picks:15}", flush=True)
                    worst, differ = max(worst, difference), differ + picks
    if differ or not worst <= TOLERANCE:
        sys.exit("they differ")


if __name__ == "__main__":
    main()
