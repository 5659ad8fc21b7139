"""Documents some of whose lines a script writes: those between the line that names the script and the one that ends them."""
END = "<!-- to here -->\n"


def write_between(document, script, text):
    """Puts text (whole lines) in the place of what the script wrote into the document (a Path) before."""
    begin = f"<!-- {script} writes from here -->\n"
    page = document.read_text(encoding="utf-8")
    if page.count(begin) != 1 or END not in page.partition(begin)[2]:
        raise SystemExit(f"{document}: no lines between \"{begin.strip()}\" and \"{END.strip()}\"")
    before, _, rest = page.partition(begin)
    document.write_text(before + begin + text + END + rest.partition(END)[2], encoding="utf-8")
