# shellcheck shell=sh
# For scripts that prepare data, which have `root`, this project's folder, and `fail`, which prints its argument and exits:
#   . "$root/data/find_prepare.sh"
#   find_prepare [HC_PREPARE]
# sets `prepare` to that program, or without one to build/hc_prepare, or else to the one on the PATH.
find_prepare() {
    prepare=${1-$root/build/hc_prepare}
    [ $# -gt 0 ] || [ -x "$prepare" ] || prepare=$(command -v hc_prepare) ||
        fail "no hc_prepare; build it first (cmake --preset release && cmake --build --preset release), or put it on the PATH"
    [ -x "$prepare" ] || fail "$prepare is not a program"
}
