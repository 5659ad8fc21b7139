#!/usr/bin/env python3
"""Trains small vocabularies with the pre-tokenizer of each family that hctrain knows, and writes them as tokenizer.json.

  tests/text/make_tokenizers.py OUT [--tokens N] TEXT...

Needs tokenizers (pip install tokenizers). OUT/gpt2.json, smollm2.json, llama3.json, qwen2.json, qwen35.json and
o200k.json are what tests/text/tokenizers/ has, made of N = 400 tokens from docs/*.md, and OUT/cases.json has the tokens of some texts.
"""
import argparse
import json
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


MARKED = WORDS.replace(r"\p{L}+", r"[\p{L}\p{M}]+", 1).replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
CAPITAL, SMALL, SUFFIX = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
CASED = (r"[^\r\n\p{L}\p{N}]?" + CAPITAL + "*" + SMALL + "+" + SUFFIX + r"|[^\r\n\p{L}\p{N}]?" + CAPITAL + "+" + SMALL + "*" +
         SUFFIX + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(expression):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), "isolated"), BYTES])


FAMILIES = {  # pre-tokenizer, normalizer, control tokens, other added tokens
    "gpt2": (GPT2, None, ["<|endoftext|>"], []),
    "smollm2": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]), None,
                ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"], []),
    "llama3": (split(WORDS % "{1,3}"), None, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], []),
    "qwen2": (split(WORDS % ""), normalizers.NFC(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
              ["<tool_call>", "</tool_call>", "<think>"]),
    "qwen35": (split(MARKED % ""), normalizers.NFC(), ["<|endoftext|>", "<|im_end|>"], ["<think>"]),
    "o200k": (split(CASED), None, ["<|endoftext|>", "<|return|>"], []),
}


def train(name, texts, tokens):
    pieces, normalizer, special, others = FAMILIES[name]
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pieces, decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    in_vocabulary = special if name in ("gpt2", "smollm2") else []
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=tokens, initial_alphabet=alphabet, show_progress=False,
                                                             special_tokens=in_vocabulary))
    tokenizer.add_special_tokens([AddedToken(content, normalized=False, special=True) for content in special])
    tokenizer.add_tokens([AddedToken(content, normalized=False) for content in others])
    if name == "llama3":
        begin = special[0]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=begin + " $A", pair=begin + " $A " + begin + " $B",
            special_tokens=[(begin, tokenizer.token_to_id(begin))])
    return tokenizer


TEXTS = [
    "", " ", "Hello world", "it's IT'S we'll WE'LL d'\u017f 'tis", "a  b   c\td \n e\n\n\nf\r\n\r\n g \t\n", "1 12 123 1234 a1b22 \u0663\u00bd\u2167 x2",
    "trailing  ", "end.\n\nNext: (a)\n\tb!\r\n", "na\u00efve \u65e5\u672c\u8a9e\u3002\u00a0\u2003\u3000x\u0085y\u200bz\u180e", "\U0001f600\U0001f469\u200d\U0001f4bb ok",
    "cafe\u0301 A\u030a \u212b \u1100\u1161\u11a8 q\u0323\u0307 q\u0307\u0323 \uf900 \u0344", "a\u0301\u0316\u05b0 \U0001e08f\u0301\u0316 \U000105d2\u0307",
    "\u1c89\ua7cb\U00016d40 \U00011de0\U00016ff4\U00016d70", "<|endoftext|>a <|end_of_text|> <|im_end|>\n<tool_call>{}</tool_call>",
    "<|endoftext|<|endoftext|>> <think><thin", "".join(map(chr, range(256))),
]


def cases(tokenizer):
    """The tokens of each text without the control tokens in it and with them."""
    result = []
    for text in TEXTS:
        case = {"string": text}
        for word in "text", "parse":
            tokenizer.encode_special_tokens = word == "text"
            case[word] = tokenizer.encode(text, add_special_tokens=False).ids
        result.append(case)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("texts", nargs="+")
    arguments = parser.parse_args()
    texts = []
    for path in arguments.texts:
        with open(path, encoding="utf-8", newline="") as file:
            texts.append(file.read())
    os.makedirs(arguments.out, exist_ok=True)
    expected = {}
    for name in FAMILIES:
        tokenizer = train(name, texts, arguments.tokens)
        tokenizer.save(os.path.join(arguments.out, name + ".json"), pretty=False)
        expected[name] = cases(tokenizer)
    with open(os.path.join(arguments.out, "cases.json"), "w", encoding="utf-8") as file:
        json.dump(expected, file, separators=(",", ":"))


if __name__ == "__main__":
    main()
