#!/usr/bin/env python3
"""Plain English from the dictionary GCIDE (The Collaborative International Dictionary of English), for hc_prepare.

  data/gcide/strip_markup.py FILE >TEXT      FILE: as dict's database has it, perhaps compressed by gzip or dictzip; - is standard input

The database has notices in front, headwords at the beginning of a line followed by their pronunciation between backslashes,
etymologies, labels and sources in [brackets], references in {braces}, letters with accents as ['e], text wrapped and indented.
Kept are headwords, parts of speech, definitions and quotations: a line for each paragraph, a blank line between entries, runs of
blanks as one, ASCII letters for accented ones. Bytes beyond ASCII stay as they are.

Memory stays small whatever the input is: lines and paragraphs that are too long are cut, and so is what a bracket can hold.
"""
import gzip
import io
import re
import sys
import zlib

MOST_LINE_BYTES = 1 << 20
MOST_PARAGRAPH_BYTES = 1 << 18
MOST_BRACKET_BYTES = 4096  # from a bracket to the one that closes it, mostly an etymology
MOST_PRONUNCIATION_BYTES = 200
MOST_PARENTHESIS_BYTES = 80
MOST_ENTITY_BYTES = 8
BLANKS = b" \t\r\v\f"

# ---- letters: [ae], ['e], [imac]

ENTITIES = {
    b"ae": b"ae", b"AE": b"AE", b"oe": b"oe", b"OE": b"OE", b"imac": b"i", b"aum": b"a", b"asl": b"a", b"add": b"a", b"udd": b"u",
    b"eth": b"th", b"thorn": b"th", b"yogh": b"y", b"th": b"th", b"ng": b"ng", b"deg": b" deg.", b"alpha": b"alpha", b"beta": b"beta",
    b"gamma": b"gamma", b"delta": b"delta", b"Delta": b"Delta", b"theta": b"theta", b"phi": b"phi", b"pi": b"pi", b"tau": b"tau",
    b"prime": b"'", b"bprime": b"'", b"sect": b"section ", b"frac12": b"1/2", b"frac14": b"1/4", b"frac34": b"3/4",
}


def entity_text(entity):
    """The ASCII text for an entity, empty if it is none."""
    if entity in ENTITIES:
        return ENTITIES[entity]
    letters = entity.translate(None, b"'\"`^~=.-,_*\0")
    # An accent and its letter or two; a letter and a point alone is an abbreviation: [R.], [F.].
    accented = len(letters) < len(entity) <= MOST_ENTITY_BYTES and not entity.endswith(b".")
    return letters if accented and len(letters) <= 2 and letters.isalpha() else b""


# ---- what is left out

# Words that editors put into quotations, "[They] were": not a label; the sentence continues.
EDITORIAL = re.compile(rb"\[[A-Za-z ']*\] [a-z]")

# A bracket that names the source of what is before it.
SOURCE = re.compile(rb"1913|Webster|WordNet|PJC|Century|RDH|RHUD|AS|MW")

GAPS = re.compile(rb"[?;, 0-9]*")


def is_pronunciation(content, is_head):
    """"(l[.a]mz)", "(?; 277)", "(-n[=e])": what stands in parentheses beside a headword to say how it is spoken."""
    if b"?" in content and GAPS.fullmatch(content):
        return True
    accents = b"[" in content or b'"' in content
    if not is_head:
        return accents and b"*" in content
    one_word = b" " not in content or b";" in content
    return b"*" in content or b"`" in content or (one_word and (accents or b"?" in content))


# ---- a paragraph

BRACKETS = re.compile(rb"[][(){}]")
OPENING = {b"]": b"[", b")": b"(", b"}": b"{"}


def closing_places(text):
    """Where each bracket of the text is closed, brackets of its kind inside counted: opening place to closing place."""
    places = {}
    still_open = {b"[": [], b"(": [], b"{": []}
    for match in BRACKETS.finditer(text):
        bracket = match[0]
        if bracket in still_open:
            still_open[bracket].append(match.start())
        elif still_open[OPENING[bracket]]:
            places[still_open[OPENING[bracket]].pop()] = match.start()
    return places


MARKUP = re.compile(rb"[][\\({}]")


def take_markup(text, at, end, is_head):
    """The text for the markup at text[at], and the position after the markup. end: where the bracket there is closed, else 0."""
    mark = text[at:at + 1]
    content = text[at + 1:end]
    if mark == b"\\" and is_head:
        return b"", text.find(b"\\", at + 1, at + 1 + MOST_PRONUNCIATION_BYTES) + 1 or at + 1
    if mark == b"[" and 0 < end < at + MOST_BRACKET_BYTES:
        letters = entity_text(content)
        if not letters and not is_head and EDITORIAL.match(text, at):
            return text[at:end + 1], end + 1
        return letters, end + 1
    if mark == b"(":
        spoken = 0 < end < at + MOST_PARENTHESIS_BYTES and is_pronunciation(content, is_head)
        return (b"", end + 1) if spoken else (mark, at + 1)
    if mark == b"{" and 0 < end < at + MOST_PARENTHESIS_BYTES and b"[" not in content:
        # a reference, without the marks of its syllables: {Di*chot"o*mous*ly}
        syllables = b"*" in content or b'"' in content
        return content.translate(None, b"*\"`\0") if syllables else content, end + 1
    return b"", at + 1


# What the text becomes in this order: runs of blanks become one, none is behind an opening parenthesis, before a point that ends a word
# ("Laminas ."), and before closing punctuation; of two commas something between was left out.
TIDYING = [
    (re.compile(rb"[ \t\r\v\f]+"), b" "),
    (re.compile(rb"\( "), b"("),
    (re.compile(rb" \.(?= |\Z)"), b"."),
    (re.compile(rb" (?=[,;:!?)\0])"), b""),
    (re.compile(rb",,+"), b","),
]
LETTER = re.compile(rb"[A-Za-z0-9]")


def strip_paragraph(text, is_head):
    """The paragraph without its markup; empty where no letter is left."""
    closed = closing_places(text)
    parts = []
    at = 0
    while (match := MARKUP.search(text, at)) is not None:
        parts.append(text[at:match.start()])
        part, at = take_markup(text, match.start(), closed.get(match.start(), 0), is_head)
        parts.append(part)
    parts.append(text[at:])
    text = b"".join(parts).lstrip(BLANKS)
    for pattern, replacement in TIDYING:
        text = pattern.sub(replacement, text)
    return text.rstrip(b" ") if LETTER.search(text) else b""


# ---- lines


class Stripper:
    """Takes lines and writes paragraphs."""

    def __init__(self, out):
        self.out = out
        self.wrote_entry = False  # something was written, so that a blank line goes between entries
        self.in_entries = False  # past the notices
        self.begin_paragraph(False)

    def begin_paragraph(self, is_head):
        self.lines = []
        self.bytes = 0
        self.is_head = is_head  # the paragraph begins an entry
        self.backslashes = 0

    def end_paragraph(self):
        text = strip_paragraph(b" ".join(self.lines) + b" ", self.is_head) if self.lines else b""
        if text:
            self.out.write((b"\n" if self.is_head and self.wrote_entry else b"") + text + b"\n")
            self.wrote_entry = True
        self.begin_paragraph(False)

    def take_text(self, text, begins_entry):
        """Ends the paragraph where an entry begins, and appends the text to the paragraph."""
        if begins_entry:
            self.end_paragraph()
            self.begin_paragraph(True)
            self.in_entries = True
        if not self.in_entries:
            return
        if self.bytes > MOST_PARAGRAPH_BYTES:
            self.end_paragraph()
        self.lines.append(text)
        self.bytes += len(text) + 1
        self.backslashes += text.count(b"\\")

    def take_line(self, line):
        text = line.strip(BLANKS)
        if not text:
            self.end_paragraph()
            return
        end = closing_places(text[:MOST_BRACKET_BYTES]).get(0, 0) if text.startswith(b"[") else 0
        if end > 0 and SOURCE.match(text, 1, end):
            # After a source the paragraph continues, an entry begins, or a headword was left there twice.
            text = text[end + 1:].lstrip(BLANKS)
            is_entry = b"\\" in text
            if is_entry or text[:1] in (b"-", b"(", b"[", b"{", b'"', b"\0"):
                self.take_text(text, is_entry and text[:1].isalnum())
            return
        is_spelling_open = self.is_head and self.backslashes % 2 != 0
        is_indented = line[:1] in (b" ", b"\t", b"\r", b"\v", b"\f")
        self.take_text(text, not is_indented and not is_spelling_open and text[:1] not in (b"\\", b"(") and b"\\" in text)


def strip(stream, out):
    """Takes the markup out of a dictionary: bytes of a file into another."""
    stripper = Stripper(out)
    while line := stream.readline(MOST_LINE_BYTES):
        stripper.take_line(line.rstrip(b"\n"))
    stripper.end_paragraph()


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    path = sys.argv[1]
    try:
        with sys.stdin.buffer if path == "-" else open(path, "rb") as file:
            stream = io.BufferedReader(file, 1 << 16)
            if stream.peek(2)[:2] == b"\x1f\x8b":
                stream = io.BufferedReader(gzip.GzipFile(fileobj=stream), 1 << 16)
            elif stream.peek(4)[:4] == b"\x28\xb5\x2f\xfd":
                sys.exit(f"strip_markup.py: {path} is compressed by zstd: zstd -dc FILE | strip_markup.py - takes it")
            strip(stream, sys.stdout.buffer)
            sys.stdout.flush()
    except (OSError, EOFError, zlib.error) as error:
        sys.exit(f"strip_markup.py: {path}: {error}")


if __name__ == "__main__":
    main()
