"""Conversations as prompts and completions for hc_prepare, written by a model's own chat template.

  python3 -m hctrain.chat Qwen3-0.6B messages.jsonl > pairs.jsonl
  hc_prepare --out data/chats --tokenizer Qwen3-0.6B/tokenizer.json --special-tokens parse --end-of-text '<|im_end|>' --prompt-field prompt \\
             --field completion pairs.jsonl
  hc_train --init-from Qwen3-0.6B --data-dir data/chats --train-batches documents ...

Each line of messages.jsonl is a conversation:

  {"messages": [{"role": "user", "content": "How many legs has a spider?"}, {"role": "assistant", "content": "Eight."}]}

Roles are system, developer, user, assistant and tool, as far as the template knows them; templates may read further fields of messages. Each turn of
the assistant becomes a pair: the prompt is all that comes before, as the model sees it when it shall answer, and the completion is the answer.
So every answer is a target once, and nothing else is. A conversation with many answers becomes long: each pair repeats what came before.

Completions lack the token that ends the assistant's turns, such as <|im_end|>, and what the template writes after it: hc_prepare puts that token at
the end of each document if --end-of-text names it, and it is a target. It is the tokenizer's eos_token, unless --end-of-turn names another. The last
line of output to the terminal has the options for hc_prepare.

TOKENIZER_FOLDER has tokenizer_config.json, and perhaps chat_template.jinja. Templates are programs: they run in jinja2's sandbox, for at most 10
seconds a time. Needs transformers, or jinja2 3.1.6 alone (pip install jinja2).
"""
from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import mmap
import os
import re
import resource
import shlex
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator

from .files import Error, parse_object, printable, read_file, shown

CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
MOST_CONFIG, MOST_TEMPLATE, MOST_LINE = 64 << 20, 1 << 20, 64 << 20  # bytes
MOST_MEMORY = 4 << 30  # bytes that templates may take
SECONDS = 10.0  # that a template may run for one text
ROLES = ("system", "developer", "user", "assistant", "tool")

Render = Callable[[Any, bool], str]  # of messages, and whether it ends where the assistant's next turn begins


@contextlib.contextmanager
def _guarded(what: str, seconds: float) -> Iterator[None]:
    """Makes whatever a template raises an Error, and kills the process if it runs too long (0: never), for Python interrupts no single operation."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    except Exception as error:  # templates can raise any
        raise Error(f"{what}: {shown(str(error) or type(error).__name__, 300)}") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _read_folder(folder: str) -> tuple[str, str, dict[str, str]]:
    """The template, its file, and the special tokens by their names, such as eos_token."""
    path, file = Path(folder) / CONFIG, Path(folder) / TEMPLATE
    config = parse_object(read_file(path, MOST_CONFIG), printable(path), lenient=True)
    template = config.get("chat_template")
    if isinstance(template, list):  # several, with names
        template = next((one.get("template") for one in template if isinstance(one, dict) and one.get("name") == "default"), None)
    if os.path.lexists(file):
        path, template = file, read_file(file, MOST_TEMPLATE).decode(errors="replace")
    if not isinstance(template, str):
        raise Error(f"{printable(folder)} has no chat template, neither {TEMPLATE} nor chat_template in {CONFIG}")
    if len(template) > MOST_TEMPLATE:
        raise Error(f"{printable(path)}: the chat template has more than {MOST_TEMPLATE} characters")
    tokens = {name: token.get("content") if isinstance(token, dict) else token for name, token in config.items() if name.endswith("_token")}
    return template, printable(path), {name: token for name, token in tokens.items() if isinstance(token, str)}


def _limit_memory() -> None:
    """A template that makes endless texts gets a MemoryError."""
    with contextlib.suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _open_transformers(folder: str, template: str) -> Render | None:
    """None: it is not installed."""
    try:
        from transformers import AutoTokenizer  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return None
    with _guarded(f"transformers cannot read the tokenizer in {printable(folder)}", 0):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    _limit_memory()
    return lambda messages, prompts: str(tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=prompts))


def _open_jinja2(template: str, path: str, tokens: dict[str, str]) -> Render:
    """With the functions that transformers gives to templates."""
    try:
        import jinja2
        from jinja2 import ext, nodes, parser, sandbox
    except ImportError as error:
        raise Error(f"{error}: pip install jinja2") from None
    if [int(number) for number in re.findall(r"\d+", jinja2.__version__)[:3]] < [3, 1, 6]:
        raise Error(f"jinja2 {jinja2.__version__} has known holes in its sandbox: pip install -U jinja2")

    class Generation(ext.Extension):
        """{% generation %} ... {% endgeneration %}, which marks text of the assistant."""
        tags = {"generation"}

        def parse(self, parser: parser.Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: object) -> None:
        raise jinja2.TemplateError(str(message))

    def tojson(x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=lambda form: datetime.datetime.now().strftime(form))
    _limit_memory()
    with _guarded(f"{path}: this is not a chat template", SECONDS):
        compiled = environment.from_string(template)
    return lambda messages, prompts: compiled.render(tokens, messages=messages, add_generation_prompt=prompts, tools=None, documents=None)


def _parse_messages(line: bytes, place: str, end: str) -> Any:
    messages = parse_object(line, place).get("messages")
    if not isinstance(messages, list) or not messages:
        raise Error(f"{place}: there is no list \"messages\", or it is empty")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise Error(f"{place}: message {number} is not an object with a text \"content\"")
        if message.get("role") not in ROLES:
            raise Error(f"{place}: the role of message {number} is {shown(repr(message.get('role')))}, and not one of {', '.join(ROLES)}")
        if end and end in message["content"]:
            raise Error(f"{place}: message {number} contains {end}, the token that ends turns")
    if all(message["role"] != "assistant" for message in messages):
        raise Error(f"{place}: no message is the assistant's, so there is nothing to learn")
    if messages[0]["role"] == "assistant":
        raise Error(f"{place}: the first message is the assistant's, so it answers nothing")
    return messages


def _pairs(messages: Any, render: Render, end: str, place: str) -> Iterator[tuple[str, str]]:
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        with _guarded(f"{place}: the chat template fails", SECONDS):
            prompt, whole = render(messages[:number], True), render(messages[:number + 1], False)
        if not whole.startswith(prompt):
            agree = len(os.path.commonprefix([prompt, whole]))
            raise Error(f"{place}: the chat template does not continue the prompt with the answer, message {number + 1}: it asks for an answer with "
                        f"{shown(repr(prompt[agree:]))} and writes it as {shown(repr(whole[agree:]))}")
        completion, found, rest = whole[len(prompt):].rpartition(end) if end else (whole[len(prompt):], "", "")
        if end and (not found or rest.strip()):
            raise Error(f"{place}: the chat template ends the assistant's turn with {shown(repr(whole[-20:]))} and not with {end}: "
                        "name the token that ends it with --end-of-turn, or '' if there is none")
        yield prompt, completion


def _shown_name(name: str) -> str:
    return "standard input" if name == "-" else printable(name)


def _convert(folder: str, lines: BinaryIO, name: str, end_of_turn: str | None, progress: mmap.mmap) -> str:
    """Prints the pairs of all lines; what to say about them. `progress` has the number of the line."""
    template, path, tokens = _read_folder(folder)
    end = tokens.get("eos_token") if end_of_turn is None else end_of_turn
    if end is None:
        raise Error(f"{printable(folder)}: {CONFIG} has no eos_token: name the token that ends the assistant's turns with --end-of-turn")
    render = _open_transformers(folder, template) or _open_jinja2(template, path, tokens)
    number = conversations = pairs = 0
    while line := lines.readline(MOST_LINE + 1):
        number += 1
        progress[:] = number.to_bytes(8, "little")
        place = f"{_shown_name(name)}:{number}"
        if len(line) > MOST_LINE:
            raise Error(f"{place}: the line has more than {MOST_LINE} bytes")
        if not line.strip():
            continue
        conversations += 1
        for prompt, completion in _pairs(_parse_messages(line, place, end), render, end, place):
            try:
                sys.stdout.buffer.write(json.dumps({"prompt": prompt, "completion": completion}, ensure_ascii=False).encode() + b"\n")
            except UnicodeEncodeError:
                raise Error(f"{place}: a text has half of a surrogate pair") from None
            pairs += 1
    sys.stdout.buffer.flush()
    return (f"{conversations} conversations, {pairs} pairs: hc_prepare --special-tokens parse"
            f"{' --end-of-text ' + printable(shlex.quote(end)) if end else ''} --prompt-field prompt --field completion")


def _run(folder: str, name: str, end_of_turn: str | None, progress: mmap.mmap) -> int:
    try:
        with open(name, "rb") if name != "-" else sys.stdin.buffer as lines:
            print(_convert(folder, lines, name, end_of_turn, progress), file=sys.stderr)
        return 0
    except Error as error:
        print(f"hctrain.chat: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        what = f"cannot read {_shown_name(name)}" if error.filename else "cannot write the pairs, or read the messages"
        print(f"hctrain.chat: {what}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m hctrain.chat", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="TOKENIZER_FOLDER", help="folder of a model or of its tokenizer")
    parser.add_argument("messages", metavar="messages.jsonl", help="conversations, one a line (-: standard input)")
    parser.add_argument("--end-of-turn", metavar="TOKEN", help="that ends the assistant's turns (eos_token; '': none does)")
    arguments = parser.parse_args()
    progress = mmap.mmap(-1, 8)
    child = os.fork()  # templates run there, and this process says what becomes of it
    if child == 0:
        return _run(arguments.folder, arguments.messages, arguments.end_of_turn, progress)
    try:
        _, status = os.waitpid(child, 0)
    except KeyboardInterrupt:
        return 130
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    line, number = int.from_bytes(progress[:], "little"), os.WTERMSIG(status)
    place = f"{_shown_name(arguments.messages)}:{line}" if line else printable(arguments.folder)
    reason = f"runs for more than {SECONDS:g} seconds" if number == signal.SIGPROF else f"was stopped: {signal.strsignal(number)}"
    print(f"hctrain.chat: {place}: the chat template {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
