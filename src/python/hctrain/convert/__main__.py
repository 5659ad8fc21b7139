"""The command line: python -m hctrain.convert"""
from __future__ import annotations

import argparse
import sys

from .. import convert
from ..files import Error, printable


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hctrain.convert", description=convert.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    direction = parser.add_mutually_exclusive_group(required=True)
    direction.add_argument("--from", dest="source", choices=convert.FROM, help="the layout of SOURCE")
    direction.add_argument("--to", dest="target", choices=convert.TO, help="the layout of what is written; SOURCE is a checkpoint of hctrain's")
    parser.add_argument("folder", metavar="SOURCE", help="a folder, or a file of weights")
    parser.add_argument("--into", metavar="CHECKPOINT", help="with --from deepseek_v4: the checkpoint of mhc whose hyper-connections are replaced")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="what is written; it must not exist")
    arguments = parser.parse_args()
    try:
        if arguments.target:
            if arguments.into:
                parser.error("--into goes with --from deepseek_v4")
            convert.convert_to(arguments.target, arguments.folder, arguments.out)
            print(f"{printable(arguments.out)}: {arguments.target}'s layout")
            return 0
        config = convert.convert_from(arguments.source, arguments.folder, arguments.out, arguments.into)
        counts = ", ".join(f"{config[name]} {words}" for name, words in (("n_streams", "streams"), ("n_layer", "layers"), ("n_embd", "channels")))
        print(f"{printable(arguments.out)}: {config['residual']}, {counts}, h_res_transposed {str(config.get('h_res_transposed', False)).lower()}")
        return 0
    except Error as error:
        print(f"hctrain.convert: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("hctrain.convert: interrupted; nothing was written", file=sys.stderr)
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
