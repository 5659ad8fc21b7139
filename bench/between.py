"""Documents some of whose lines a script writes: those between the line that names the script and the one that ends them."""
END = "<!-- to here -->\n"


def split(document, script):
    """What stands before the lines that the script writes into the document (a Path), and behind them; ends with a message if they have no place."""
    begin = f"<!-- {script} writes from here -->\n"
    before, found, rest = document.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{document}: no lines between \"{begin.strip()}\" and \"{END.strip()}\"")
    return before + found, ended + after


def write_between(document, script, text):
    """Puts text (whole lines) in the place of what the script wrote into the document before."""
    before, after = split(document, script)
    document.write_text(before + text + after, encoding="utf-8")
