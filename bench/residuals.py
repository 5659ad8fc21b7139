"""The residual connections that there are, from hc_train."""
import subprocess


def listed(build):
    """(name, numbers of streams, what it is) of each, in the words of `hc_train --list-residuals`, whose columns are 12 wide. build: a Path."""
    lines = subprocess.run([build / "hc_train", "--list-residuals"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [(line[:12].strip(), line[12:24].strip(), line[24:]) for line in lines]
