#!/usr/bin/env python3
"""hc_eval's metrics of documents beside lm-evaluation-harness's, and how long both take.

  tests/compare_lm_eval.py --make DIR --vocab-file gpt2.tiktoken [--bias] [--from CHECKPOINT]
  tests/compare_lm_eval.py --checkpoint DIR/checkpoint --hf DIR/hf --vocab-file gpt2.tiktoken [--limit N] FILE

The first makes DIR/hf, a folder for transformers (GPT2LMHeadModel with its tokenizer), of a checkpoint with plain residual
connections and GPT-2's tokens; without --from of one with random weights, which it leaves in DIR/checkpoint. The second scores FILE
with both: JSON lines (.jsonl) with a field "text", or text, of which each line is a document; and hard documents of its own.
The exit status is 1 where a figure, or a document's log-likelihood, differs by more than 1e-4 of its value.

By hand, as it needs torch, transformers, safetensors, accelerate, datasets, lm_eval and tiktoken (pip), and no network.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import safetensors.torch
import tiktoken
import tokenizers
import torch
import transformers
from tiktoken.load import load_tiktoken_bpe

TOKENS, PADDED = 50257, 50304
END_OF_TEXT = "<|endoftext|>"
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
TOLERANCE = 1e-4
SHAPE = dict(n_layer=3, n_head=4, n_embd=96, block_size=128, vocab_size=PADDED)


# ---- the tokenizer

def alphabet():
    """GPT-2's characters for bytes: themselves where they print, else such from U+0100 on."""
    printing = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {**{byte: chr(byte) for byte in printing}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def parts_below(ranks, token):
    """The two strings that merge to this token: what its bytes become when only lower ranks merge."""
    parts, most = [bytes([byte]) for byte in token], ranks[token]
    while True:
        pairs = [(ranks.get(a + b, most), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
        rank, at = min(pairs)
        if rank >= most:
            return parts
        parts[at:at + 2] = [parts[at] + parts[at + 1]]


def make_tokenizer(ranks):
    """GPT-2's, for transformers, out of tiktoken's ranks."""
    letters = alphabet()
    spell = lambda token: "".join(letters[byte] for byte in token)
    vocabulary = {spell(token): rank for token, rank in ranks.items()}
    vocabulary[END_OF_TEXT] = TOKENS - 1
    merges = [tuple(map(spell, parts_below(ranks, token)))
              for token in sorted(ranks, key=ranks.get) if len(token) > 1]
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT,
                                                unk_token=END_OF_TEXT)


def check_tokenizer(folder, ranks, texts):
    peer = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: TOKENS - 1})
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in texts:
        if tokenizer.encode(text, add_special_tokens=False) != peer.encode_ordinary(text):
            sys.exit(f"the tokenizer of {folder} is not tiktoken's: {text[:80]!r}")


# ---- the weights

def random_checkpoint(folder, bias):
    """Wide ones, so that context matters and the padding of the vocabulary would be seen."""
    generator = torch.Generator().manual_seed(1)
    width, weights = SHAPE["n_embd"], {}

    def put(name, *shape, deviation=0.08, mean=0.0):
        weights["transformer." + name] = mean + deviation * torch.randn(shape, generator=generator)

    put("wte.weight", PADDED, width, deviation=0.3)
    put("wpe.weight", SHAPE["block_size"], width, deviation=0.1)
    norms, linears = ["ln_f"], []
    for layer in range(SHAPE["n_layer"]):
        norms += [f"h.{layer}.ln_1", f"h.{layer}.ln_2"]
        linears += [(f"h.{layer}.attn.c_attn", 3, 1), (f"h.{layer}.attn.c_proj", 1, 1),
                    (f"h.{layer}.mlp.c_fc", 4, 1), (f"h.{layer}.mlp.c_proj", 1, 4)]
    for name in norms:
        put(name + ".weight", width, mean=1.0)
    for name, rows, columns in linears:
        put(name + ".weight", rows * width, columns * width)
    if bias:
        for name in norms:
            put(name + ".bias", width)
        for name, rows, _ in linears:
            put(name + ".bias", rows * width)
    os.makedirs(folder, exist_ok=True)
    safetensors.torch.save_file(weights, os.path.join(folder, "model.safetensors"))
    config = dict(SHAPE, bias=bias, dropout=0.0, residual="rc", tokenizer="gpt2")
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)


def export(program, checkpoint, folder, ranks):
    """To transformers, by hc_export; the tokenizer beside it."""
    subprocess.run([program, "--checkpoint", checkpoint, "--out", folder, "--format", "hf"], check=True)
    make_tokenizer(ranks).save_pretrained(folder)


# ---- metrics

def read_documents(path, limit):
    with open(path, encoding="utf-8", newline="") as file:
        if path.endswith(".jsonl"):
            texts = [json.loads(line)["text"] for line in file if line.strip()]
        else:
            texts = file.read().split("\n")
    return texts[:limit] if limit else texts


def score_here(arguments, documents):
    metrics, lines = documents + ".metrics", documents + ".scored"
    command = [arguments.hc_eval, "--checkpoint", arguments.checkpoint, "--vocab-file", arguments.vocab_file, "--batch-size",
               str(arguments.batch_size), "--device", arguments.device, "--dtype", "fp32", "--json", metrics, "--per-document", lines, documents]
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - start
    with open(metrics) as file, open(lines) as documents:
        return json.load(file), [json.loads(line)["log_likelihood"] for line in documents], seconds


def score_there(arguments, documents, work):
    import datasets
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    datasets.config.HF_DATASETS_CACHE = work
    metrics = {"word_perplexity": "weighted_perplexity", "byte_perplexity": "weighted_perplexity",
               "bits_per_byte": "bits_per_byte"}
    task = dict(task="documents", dataset_path="json", dataset_kwargs=dict(data_files=dict(test=documents), cache_dir=work),
                output_type="loglikelihood_rolling", test_split="test", doc_to_text="", doc_to_target="text",
                metric_list=[dict(metric=name, aggregation=how, higher_is_better=False) for name, how in metrics.items()])
    # with its cache the harness takes windows of a batch that read the same tokens, and score other numbers of them, for the same
    model = HFLM(pretrained=arguments.hf, device=arguments.torch_device, dtype="float32", batch_size=arguments.batch_size,
                 logits_cache=False)
    start = time.monotonic()
    results = lm_eval.simple_evaluate(model=model, tasks=[task], bootstrap_iters=0, log_samples=True)
    seconds = time.monotonic() - start
    found = {name: results["results"]["documents"][name + ",none"] for name in metrics}
    likelihoods = [sample["filtered_resps"][0] for sample in results["samples"]["documents"]]
    likelihoods = [value[0] if isinstance(value, (list, tuple)) else value for value in likelihoods]
    tokens = sum(len(model.tok_encode(sample["doc"]["text"])) for sample in results["samples"]["documents"])
    found.update(log_likelihood=math.fsum(likelihoods), tokens=tokens, loss=-math.fsum(likelihoods) / tokens)
    found["token_perplexity"] = math.exp(found["loss"])
    return found, likelihoods, seconds


def hard_documents(context):
    """Nothing, white space of all kinds, and lengths about multiples of the context: " a" is one token."""
    lengths = [1, context - 1, context, context + 1, 2 * context, 2 * context + 1, 3 * context - 1]
    spaces = "a\x1cb\x1d\x1ec\x1fd\x85e\xa0f\u1680g\u2003h\u200bi\u2028j\u202fk\u205fl\u3000m\u180en\ufeffo"
    return ["", " ", "\n\n", "\x1f", " a ", "\ta\r\nb", spaces, "naïve 中文 \U0001f600", 
            *(" ".join(length * "a") for length in lengths)]


def compare(arguments):
    with open(os.path.join(arguments.checkpoint, "config.json")) as file:
        context = json.load(file)["block_size"]
    texts = read_documents(arguments.file, arguments.limit) + hard_documents(context)
    check_tokenizer(arguments.hf, load_tiktoken_bpe(arguments.vocab_file), texts)
    with tempfile.TemporaryDirectory() as work:
        documents = os.path.join(work, "documents.jsonl")
        with open(documents, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(dict(text=text)) + "\n" for text in texts)
        if arguments.warm:
            score_here(arguments, documents)
        here, here_each, here_seconds = score_here(arguments, documents)
        there, there_each, there_seconds = score_there(arguments, documents, work)
    differences = [abs(a - b) / max(abs(b), 1) for a, b in zip(here_each, there_each, strict=True)]
    worst = max(differences)
    print(f"worst document: {worst:.1e}, {texts[differences.index(worst)][:60]!r}")
    print(f"{'':18}{'hc_eval':>18}{'lm_eval':>18}{'difference':>12}")
    for name, value in there.items():
        difference = abs(here[name] / value - 1)
        worst = max(worst, difference)
        print(f"{name:18}{here[name]:18.8g}{value:18.8g}{difference:12.1e}")
    print(f"{len(texts)} documents; {here_seconds:.1f} s with {arguments.device}, {there_seconds:.1f} s with torch "
          f"{torch.__version__} on {arguments.torch_device}, {torch.get_num_threads()} threads")
    if not worst <= TOLERANCE:
        sys.exit(f"they differ by more than {TOLERANCE}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--make", metavar="DIR", help="make DIR/hf")
    parser.add_argument("--from", dest="source", metavar="CHECKPOINT", help="of this checkpoint, not of a random one")
    parser.add_argument("--bias", action="store_true", help="the random one has biases")
    parser.add_argument("--vocab-file", required=True, help="GPT-2's vocabulary, as data/gpt2/vocabulary.sh gets it")
    parser.add_argument("--checkpoint", help="hctrain's folder")
    parser.add_argument("--hf", help="transformers' folder of the same weights")
    parser.add_argument("--hc-export", default=os.path.join(root, "build/hc_export"))
    parser.add_argument("--hc-eval", default=os.path.join(root, "build/hc_eval"))
    parser.add_argument("--device", default="auto", help="of hc_eval")
    parser.add_argument("--torch-device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--limit", type=int, help="the first documents only")
    parser.add_argument("--warm", action="store_true", help="let hc_eval compile its kernels before it is timed")
    parser.add_argument("file", nargs="?")
    arguments = parser.parse_args()
    if arguments.make:
        checkpoint = arguments.source or os.path.join(arguments.make, "checkpoint")
        if not arguments.source:
            random_checkpoint(checkpoint, arguments.bias)
        export(arguments.hc_export, checkpoint, os.path.join(arguments.make, "hf"), load_tiktoken_bpe(arguments.vocab_file))
    elif arguments.checkpoint and arguments.hf and arguments.file:
        compare(arguments)
    else:
        parser.error("give --make DIR, or --checkpoint, --hf and a file")


if __name__ == "__main__":
    main()
