"""hctrain.chat: chat templates as jinja2 alone and transformers render them, the tokens that hc_prepare makes of the pairs, and lines and templates that
are refused."""
import importlib.util
import json
import os
import subprocess
import sys
import unittest
from array import array
from pathlib import Path

import hctrain
import small
from hctrain import chat

TOKENIZERS = Path(__file__).resolve().parents[1] / "text" / "tokenizers"
INSTALLED = [name for name in ("jinja2", "transformers") if importlib.util.find_spec("jinja2") and importlib.util.find_spec(name)]

CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' -}}
{% endif %}"""
LLAMA = """{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] not in ('user', 'assistant') %}{{ raise_exception('only users and assistants') }}{% endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
REASONING = """{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and not loop.last %}{% set content = content.split('</think>')[-1] | trim %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}{% generation %}{{ content }}{% endgeneration %}{{ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def said_by(*words):
    """Messages of the user and the assistant in turn."""
    return [{"role": ("user", "assistant")[i % 2], "content": word} for i, word in enumerate(words)]


def render(messages, prompts):
    """ChatML without a template."""
    return "".join(f"<{message['role']}>{message['content']}<end>\n" for message in messages) + ("<assistant>" if prompts else "")


class Lines(unittest.TestCase):
    def test_pairs(self):
        """Each turn of the assistant, also two in a row, after all that comes before."""
        found = list(chat._pairs(said_by("a", "b", "c", "d") + said_by("", "e")[1:], render, "<end>", "here"))
        first = "<user>a<end>\n<assistant>"
        second = first + "b<end>\n<user>c<end>\n<assistant>"
        self.assertEqual(found, [(first, "b"), (second, "d"), (second + "d<end>\n<assistant>", "e")])
        self.assertEqual(list(chat._pairs(said_by("a", "b"), render, "", "here")), [(first, "b<end>\n")])

    def test_bad_lines(self):
        line = json.dumps({"messages": said_by("a", "b")})
        self.assertEqual(chat._parse_messages(line.encode(), "", "<end>"), said_by("a", "b"))
        for text, words in (("{", "not JSON"), ("[]", "not a JSON object"), ("{}", "no list \"messages\""), ('{"messages": []}', "or it is empty"),
                            ('{"messages": [1]}', "message 1 is not an object"), (line.replace('"b"', "null"), "message 2 is not"),
                            (line.replace("user", "\\u001b"), r"role of message 1 is '\\x1b', and not one of system"), (line.replace('"user"', "[]"), "role"),
                            (json.dumps({"messages": said_by("a")}), "nothing to learn"), (line.replace("user", "assistant"), "answers nothing"),
                            (json.dumps({"messages": said_by("a<end>", "b")}), "contains <end>"), ("[" * 10000, "not JSON")):
            with self.subTest(text[:60]), self.assertRaisesRegex(hctrain.Error, f"^place: .*{words}"):
                chat._parse_messages(text.encode(), "place", "<end>")

    def test_bad_renderings(self):
        for how, words in ((lambda messages, prompts: "" if prompts else render(messages, False)[:-1] + "?", "'' if there is none"),
                           (lambda messages, prompts: f"{len(messages)}", "does not continue the prompt with the answer, message 2: .* '1' .* '2'"),
                           (lambda messages, prompts: 1 // 0, "the chat template fails: .*zero"), (lambda messages, prompts: "a" * sys.maxsize, "MemoryError")):
            with self.subTest(words), self.assertRaisesRegex(hctrain.Error, "^place: .*" + words):
                list(chat._pairs(said_by("a", "b"), how, "<end>", "place"))


class Templates(small.InFolder):
    def tokenizer(self, template, name="qwen2", **tokens):
        """A folder with a tokenizer and its template."""
        folder = self.folder / "tokenizer"
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_bytes((TOKENIZERS / f"{name}.json").read_bytes())
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
                                                                  "chat_template": template, **tokens}))
        return folder

    def call(self, folder, lines, *options, renderer="jinja2", status=0):
        """What it prints, and what it says."""
        program = "import sys; from hctrain import chat; chat.SECONDS = 2; sys.exit(chat.main())"
        if renderer == "jinja2":
            program = "import sys; sys.modules['transformers'] = None; " + program
        text = lines if isinstance(lines, bytes) else b"".join(json.dumps({"messages": line}).encode() + b"\n\n" for line in lines)
        done = subprocess.run([sys.executable, "-c", program, folder, "-", *options], input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=small.TIMEOUT, env={**os.environ, "TRANSFORMERS_VERBOSITY": "error"})
        self.assertEqual(done.returncode, status, done.stderr.decode())
        return done.stdout, done.stderr.decode()

    def each(self, *arguments, **options):
        """The pairs, the same by each renderer that there is, and what is said."""
        if not INSTALLED:
            self.skipTest("SKIPPED: jinja2 is not installed, which renders chat templates")
        printed, said = zip(*(self.call(*arguments, renderer=name, **options) for name in INSTALLED))
        self.assertEqual(len(set(printed)), 1)
        return [json.loads(line) for line in printed[0].splitlines()], said[0]

    def prepare(self, pairs, folder, end):
        """Documents as hc_prepare divides them: tokens of the prompt and of the rest."""
        (self.folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        out = hctrain.prepare(self.folder / "data", self.folder / "pairs.jsonl", tokenizer=str(folder / "tokenizer.json"), special_tokens="parse",
                              end_of_text=end, prompt_field="prompt", field="completion", val_fraction=0, shuffle=False)
        tokens, lengths = array("H", (out / "train.bin").read_bytes()), array("I", (out / "train.documents").read_bytes())
        found = []
        for count, prompt in zip(lengths[::2], lengths[1::2]):
            found.append((tokens[:prompt].tolist(), tokens[prompt:count].tolist()))
            tokens = tokens[count:]
        return found

    def test_chatml(self):
        folder = self.tokenizer(CHATML)
        pairs, words = self.each(folder, [said_by("ä", " b\n", "c", "d"), said_by("e", "")])
        self.assertEqual([pair["completion"] for pair in pairs], [" b\n", "d", ""])
        self.assertEqual(pairs[1]["prompt"], "<|im_start|>user\nä<|im_end|>\n<|im_start|>assistant\n b\n<|im_end|>\n<|im_start|>user\nc"
                                             "<|im_end|>\n<|im_start|>assistant\n")
        self.assertIn("2 conversations, 3 pairs: hc_prepare --special-tokens parse --end-of-text '<|im_end|>' --prompt", words)
        documents = self.prepare(pairs, folder, "<|im_end|>")
        self.assertEqual([prompt.count(402) for prompt, _ in documents], [1, 3, 1])
        self.assertEqual([(rest.count(402), rest[-1]) for _, rest in documents], [(1, 402)] * 3)

    def test_llama(self):
        """The token for the beginning stands once; the template's own error has the number of the line."""
        folder = self.tokenizer(LLAMA, "llama3", bos_token={"__type": "AddedToken", "content": "<|begin_of_text|>"}, eos_token="<|end_of_text|>")
        pairs, _ = self.each(folder, [said_by("a", " b ")], "--end-of-turn", "<|eot_id|>")
        self.assertEqual(pairs[0]["completion"], "b")
        (prompt, rest), = self.prepare(pairs, folder, "<|eot_id|>")
        self.assertEqual((prompt[0], prompt.count(400), rest[-1], rest.count(402)), (400, 1, 402, 1))
        _, words = self.each(folder, [said_by("a", "b")], status=1)
        self.assertRegex(words, r"standard input:1: .* and not with <\|end_of_text\|>: name the token")
        _, words = self.each(folder, [said_by("a", "b"), [{"role": "tool", "content": ""}, *said_by("a", "b")]], "--end-of-turn", "<|eot_id|>", status=1)
        self.assertIn("standard input:3: the chat template fails: only users and assistants", words)

    def test_reasoning(self):
        """An answer has its thoughts, and later prompts lack them."""
        pairs, _ = self.each(self.tokenizer(REASONING), [said_by("a", "<think>t</think>b", "c", "<think>u</think>d")])
        self.assertEqual([pair["completion"] for pair in pairs], ["<think>t</think>b", "<think>u</think>d"])
        self.assertEqual(pairs[1]["prompt"], "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
                                             "<|im_start|>assistant\n")
        thinks = REASONING.replace("assistant\\n' }}{% endif", "assistant\\n<think>' }}{% endif")
        _, words = self.each(self.tokenizer(thinks), [said_by("a", "b")], status=1)
        self.assertIn("1: the chat template does not continue the prompt with the answer, message 2", words)

    def test_files(self):
        """chat_template.jinja replaces the template of tokenizer_config.json, which may be several."""
        folder = self.tokenizer([{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}])
        self.assertEqual(self.each(folder, [said_by("a", "b")])[0][0]["completion"], "b")
        (folder / "chat_template.jinja").write_text(LLAMA)
        self.assertIn("not with <|im_end|>", self.each(folder, [said_by("a", "b")], status=1)[1])
        (folder / "chat_template.jinja").write_text("a" * (chat.MOST_TEMPLATE + 1))
        self.assertIn("chat_template.jinja has more than", self.call(folder, [], status=1)[1])
        self.assertIn("more than", self.call(self.tokenizer("a" * (chat.MOST_TEMPLATE + 1)), [], status=1)[1])
        (folder / "chat_template.jinja").unlink()
        self.assertIn("more than", self.call(folder, [], status=1)[1])
        self.assertIn("has no chat template", self.call(self.tokenizer(None), [], status=1)[1])
        self.assertIn("no eos_token", self.call(self.tokenizer(CHATML, eos_token=None), [], status=1)[1])
        self.assertIn("cannot open", self.call(self.folder / "absent", [], status=1)[1])

    @unittest.skipIf(not INSTALLED, "SKIPPED: jinja2 is not installed, which renders chat templates")
    def test_hostile_templates(self):
        for template, words in (("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"), ("{{ messages.append(1) }}", "unsafe"),
                                ("{% include 'x' %}", "no loader"), ("{{ 'a' * 10**11 }}", "Memory"), ("{% for x in range(10**6) %}{% endfor %}", "Range"),
                                ("{{ 1 // 0 }}", "zero")):
            with self.subTest(template):
                said = self.call(self.tokenizer(template), [said_by("a", "b")], status=1)[1]
                self.assertRegex(said, f"^hctrain.chat: standard input:1: the chat template fails: .*{words}")
        for loop, place in (("{% for x in range(10**5) %}{% for y in range(10**5) %}{% endfor %}{% endfor %}", "input:3"),
                            ("{{ (8 + messages | length) ** (9 ** 9) }}", "input:3"), ("{{ 9 ** (9 ** 9) }}", "tokenizer")):
            template = "{% if messages.0.content == 'c' %}" + loop + "{% endif %}" + CHATML
            said = self.call(self.tokenizer(template), [said_by("a", "b"), said_by("c", "d")], status=1)[1]
            self.assertRegex(said, f"{place}: the chat template runs for more than 2 seconds")
        self.assertRegex(self.call(self.tokenizer("{% endfor %}"), [], status=1)[1], "tokenizer_config.json: this is not a chat template: .*endfor")


if __name__ == "__main__":
    unittest.main()
