"""The command line: python -m hctrain.convert"""
from __future__ import annotations

import argparse
import io
import sys

from .. import convert
from ..files import Error, on_stop, printable


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hctrain.convert", description=convert.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    direction = parser.add_mutually_exclusive_group(required=True)
    direction.add_argument("--from", dest="layout", choices=convert.FROM, help="the layout of SOURCE")
    direction.add_argument("--to", dest="target", choices=convert.TO, help="the layout of what is written; SOURCE is a checkpoint of hctrain's")
    parser.add_argument("source", metavar="SOURCE", help="a folder, or a file of weights")
    parser.add_argument("--into", metavar="CHECKPOINT", help="with --from deepseek_v4: the checkpoint of mhc whose hyper-connections are replaced")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="what is written; it must not exist")
    arguments = parser.parse_args()
    if "" in (arguments.source, arguments.into, arguments.out):
        parser.error("an empty name is not that of a file or folder")
    if (arguments.into is None) == (arguments.layout == "deepseek_v4"):
        parser.error("--into CHECKPOINT goes with --from deepseek_v4, and only with it")
    on_stop()  # what is half written is removed
    try:
        if arguments.target:
            convert.convert_to(arguments.target, arguments.source, arguments.out)
            words = f"{arguments.target}'s layout"
        else:
            config = convert.convert_from(arguments.layout, arguments.source, arguments.out, arguments.into)
            words = (f"{config['residual']}, {config['n_streams']} streams, {config['n_layer']} layers, {config['n_embd']} channels, "
                     f"h_res_transposed {str(config.get('h_res_transposed', False)).lower()}")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        print(f"{printable(arguments.out)}: {words}", flush=True)
        return 0
    except Error as error:
        print(f"hctrain.convert: {error}", file=sys.stderr)
    except OSError as error:
        print(f"hctrain.convert: {printable(arguments.out)} is complete, but nothing can be printed: {error.strerror}", file=sys.stderr)
    except KeyboardInterrupt:
        print("hctrain.convert: interrupted; nothing was written", file=sys.stderr)
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
