#!/usr/bin/env python3
"""Makes a wheel of a build (ci/wheel.sh), installs it in a fresh environment without network, and runs its programs in a folder that
has nothing: with this system's MPI and OpenCL, and with OpenBLAS from PyPI. The Python module passes its tests there.

  run_wheel.py BUILD
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import small_runs  # noqa: E402

SKIPPED = 77
TOOLS = [folder for folder in (Path("/usr/local/lib/wheel-tools"), Path.home() / ".local/lib/wheel-tools") if (folder / "bin/auditwheel").exists()]
SMALL = ["--config", "configs/tiny.conf", "--data-dir", "data", "--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--block-size", "48", "--batch-size", "4",
         "--gradient-accumulation-steps", "2", "--max-iters", "4", "--eval-iters", "1", "--device", "pocl"]


def output(command: list, **more) -> str:
    """What a command prints; an error with all of that if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False, **more)
    assert done.returncode == 0, f"{command} failed: {done.stdout}"
    return done.stdout


def install(build: Path, folder: Path) -> Path:
    """The environment with the wheel."""
    output(["sh", ROOT / "ci/wheel.sh", folder / "wheel"], env={**os.environ, "BUILD": str(build)})
    output([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", folder / "venv"])  # where numpy is
    output([TOOLS[0] / "bin/python", "-m", "pip", "--python", folder / "venv", "install", "-q", "--no-deps", "--no-index", *(folder / "wheel").glob("hctrain-*.whl")])
    return folder / "venv"


def check_libraries(venv: Path) -> None:
    """Where libraries come from: the wheel, this system, and packages that pip installs beside it."""
    package = next(venv.glob("lib/python3*/site-packages"))
    text = output([venv / "bin/hc_train", "--version"])
    files = {line[:15].strip(): line.split()[-1] for line in text.splitlines()[1:]}
    assert all(Path(files[name]).parent == package / "hctrain.libs" for name in ("OpenCL loader", "CLBlast")), text
    assert not Path(files["MPI"]).is_relative_to(venv), text
    blas = next(TOOLS[0].glob("lib/python3*/site-packages/scipy_openblas32"))
    (package / "scipy_openblas32").symlink_to(blas)
    text = output([venv / "bin/hc_train", "--version"])
    assert f": {blas.resolve()}/lib/libscipy_openblas.so\n" in text, text
    licences = {path.name for path in package.glob("hctrain-*.dist-info/licenses/*")}
    bundled = [path.name for path in (package / "hctrain.libs").iterdir()]
    assert "LICENSE" in licences and len(licences) == len(bundled) + 1, (licences, bundled)


def check_driver(venv: Path, folder: Path) -> None:
    """A driver for CPUs that no ICD file names: the one that PyPI's intel-opencl-rt would put in lib/, for which PoCL stands in."""
    (folder / "vendors").mkdir()
    none = {**os.environ, "OCL_ICD_VENDORS": str(folder / "vendors")}
    found = subprocess.run([venv / "bin/hc_devices"], env=none, stdout=subprocess.PIPE, text=True, check=False).stdout
    assert "Portable Computing Language" not in found, found
    path = next(Path("/usr/lib").glob("*/libpocl.so.2"))
    (venv / "lib/libintelocl.so").symlink_to(path)
    (venv / "lib/pocl").symlink_to(path.parent / "pocl")  # its parts, which it looks for beside itself
    assert "Portable Computing Language" in output([venv / "bin/hc_devices"], env=none)


def check_programs(venv: Path, folder: Path) -> None:
    """Every program, from a text to an exported model."""
    programs = venv / "bin"
    small_runs.make_text(folder, programs)
    output([programs / "hc_train", *SMALL, "--out-dir", "one"], cwd=folder)
    ranks = [shutil.which("mpirun"), "-np", "2", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    text = output([*ranks, programs / "hc_train", *SMALL, "--out-dir", "two"], cwd=folder)
    assert "ranks    2, hosts 1" in text, text
    assert len(output([programs / "hc_sample", "--checkpoint", "one/ckpt-best", "--prompt", "1 green", "--max-new-tokens", "8", "--device", "pocl"], cwd=folder)) > 8
    output([programs / "hc_eval", "--checkpoint", "two/ckpt-best", "--device", "pocl", "text"], cwd=folder)
    output([programs / "hc_export", "--checkpoint", "one/ckpt-best", "--format", "torch", "--out", "exported"], cwd=folder)
    assert list((folder / "exported").glob("*.safetensors")), list((folder / "exported").iterdir())
    table = output([programs / "hc_sweep", *SMALL, "--vary", "residual=rc,shc", "--seeds", "1", "--out", "sweep"], cwd=folder)
    assert "`shc`" in table and "missing" not in table, table
    output([programs / "hc_analyze", "--out", "report", "--data-dir", "data", "--device", "pocl", "sweep"], cwd=folder)
    assert (folder / "report/report.html").exists()


def check_module(venv: Path, folder: Path) -> None:
    """The tests of the Python module, with the programs that it brings."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HCTRAIN_PROGRAMS")}
    path = output([venv / "bin/python", "-c", "import hctrain; print(hctrain.__file__, hctrain.programs.path('hc_train'), sep='\\n')"], cwd=folder, env=environment)
    assert all(Path(line).is_relative_to(venv) for line in path.splitlines()), path
    output([venv / "bin/python", "-m", "unittest", "discover", ROOT / "tests/python"], cwd=folder, env={**environment, "PYTHONDONTWRITEBYTECODE": "1"})


def main() -> int:
    if not TOOLS:
        print("SKIPPED: auditwheel is not here; ci/setup.sh tests installs it")
        return SKIPPED
    build = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        venv = install(build, folder)
        check_libraries(venv)
        check_driver(venv, folder)
        check_programs(venv, folder)
        check_module(venv, folder)
    blas = next(TOOLS[0].glob("lib/python3*/site-packages/scipy_openblas32/lib"))
    print(output([build / "tests/test_gemm", "test_cblas"], env={**os.environ, "LD_LIBRARY_PATH": str(blas)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
