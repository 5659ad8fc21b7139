#!/usr/bin/env python3
"""Parquet files to JSON lines, which hc_prepare and hc_eval read: one object {"text": ...} for each row.

  data/parquet_lines.py [--field text] FILE...          to standard output
  data/parquet_lines.py [--field text] --rows FILE...   prints how many rows there are, reading none of them

Needs pyarrow (pip install pyarrow). Memory stays small however large the files are: rows are read in batches. A row without a text is
an error that names file and row.
"""
import argparse
import json
import sys

import pyarrow.parquet

BATCH_ROWS = 1024


def lines(path, field):
    """The rows of a file as lines of JSON."""
    file = pyarrow.parquet.ParquetFile(path)
    names = file.schema_arrow.names
    if field not in names:
        sys.exit(f"{path}: no column '{field}'; there is {', '.join(names)} (choose with --field)")
    row = 0
    for batch in file.iter_batches(BATCH_ROWS, columns=[field]):
        for text in batch.column(0).to_pylist():
            if not isinstance(text, str):
                sys.exit(f"{path}: row {row} has no text in '{field}'")
            yield json.dumps({"text": text}, ensure_ascii=False)
            row += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--field", default="text", help="the column with the text")
    parser.add_argument("--rows", action="store_true", help="only count the rows")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    try:
        if arguments.rows:
            print(sum(pyarrow.parquet.ParquetFile(path).metadata.num_rows for path in arguments.files))
            return
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        for path in arguments.files:
            for line in lines(path, arguments.field):
                sys.stdout.write(line + "\n")
    except BrokenPipeError:
        sys.exit("the reader of the lines has gone")
    except (OSError, pyarrow.ArrowException) as error:
        sys.exit(f"parquet_lines.py: {error}")


if __name__ == "__main__":
    main()
