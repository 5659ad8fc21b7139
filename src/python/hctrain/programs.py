"""Where hctrain's programs are (hc_train, hc_prepare, ...), and the environment in which they run."""

from __future__ import annotations

import os
import sys
from pathlib import Path


PACKAGE = Path(__file__).resolve().parent
IN_PYTHON = ("hc_analyze", "hc_sweep")


def folder() -> Path:
    """The folder of the programs: HCTRAIN_PROGRAMS if that is set, else the installed package's own, else build/ of the checkout."""
    chosen = os.environ.get("HCTRAIN_PROGRAMS")
    installed = PACKAGE / "bin"
    return Path(chosen) if chosen else installed if installed.is_dir() else PACKAGE.parents[2] / "build"


def path(name: str) -> Path:
    """The file of a program such as "hc_train"; raises FileNotFoundError if it is not there."""
    program = folder() / name
    if os.sep in name or not os.access(program, os.X_OK) or program.is_dir():
        raise FileNotFoundError(f"there is no program {name!r} in {str(folder())!r}; HCTRAIN_PROGRAMS can name the folder of hctrain's programs")
    return program


def environment() -> dict[str, str]:
    """This process's environment. That of an installed package has PREFIX/bin first on PATH: there is what pip installed, such as mpirun."""
    commands = PACKAGE.parents[3] / "bin"  # PACKAGE is PREFIX/lib/python3.N/site-packages/hctrain
    if not (PACKAGE / "bin").is_dir() or not commands.is_dir():
        return dict(os.environ)
    return {**os.environ, "PATH": os.pathsep.join([str(commands), os.environ.get("PATH", os.defpath)])}


def main() -> None:
    """Becomes the program that has the name of this script: what pip installs as hc_train, hc_prepare, ..."""
    name = Path(sys.argv[0]).name
    try:
        program = str(path(name))
        start = [sys.executable, program] if name in IN_PYTHON else [program]
        os.execve(start[0], [*start, *sys.argv[1:]], environment())
    except OSError as error:
        sys.exit(f"{name}: {error}")
