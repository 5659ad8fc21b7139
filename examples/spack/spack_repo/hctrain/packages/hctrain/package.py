# spack repo add examples/spack/spack_repo/hctrain && spack dev-build hctrain@main      (from the checkout; docs/installing.md)
from spack_repo.builtin.build_systems.cmake import CMakePackage, generator

from spack.package import *


class Hctrain(CMakePackage):
    """A trainer for GPT models with hyper-connections on any OpenCL device, data parallel over MPI."""

    license("MIT")
    version("main")  # the checkout that it is built from

    variant("cpu", default=True, description="bring an OpenCL driver for CPUs, and OpenBLAS for its matrix products")

    depends_on("c", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("opencl-c-headers")
    depends_on("ocl-icd")  # the loader: drivers are the machine's
    depends_on("clblast")
    depends_on("mpi")
    depends_on("jansson")
    depends_on("openssl")
    depends_on("pcre2")
    depends_on("libunistring")
    depends_on("zlib-api")
    depends_on("zstd")
    depends_on("pocl+icd", when="+cpu", type="run")
    depends_on("openblas threads=pthreads", when="+cpu", type="run")

    generator("ninja")

    def cmake_args(self):
        return [self.define("BUILD_TESTING", False)]

    def setup_run_environment(self, env):
        if self.spec.satisfies("+cpu"):
            # it is loaded by name, not linked
            env.prepend_path("LD_LIBRARY_PATH", self.spec["openblas"].prefix.lib)
