"""A device that fails under hc_train, mocked by tests/support/faulty_opencl.c: what is reported, and that the run can go on; and a device that
computes nonsense, which no program takes."""
import ctypes
import os
import re
import sys
import unittest
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "support"))
import programs
from programs import FAILED, HOSTILE

FAULTY = {"LD_PRELOAD": programs.BUILD / "tests/libfaulty_opencl.so"}


class DeviceFaults(programs.Case):
    @classmethod
    def begin(cls):
        """The device is known to compute right when it begins to fail. PoCL keeps kernels for all programs."""
        super().begin()
        os.environ.update(XDG_CACHE_HOME=str(cls.path("cache")), POCL_CACHE_DIR=str(cls.path("kernels")))
        cls.made(*cls.training("healthy"))

    def train_where(self, run, variables, *more, status=FAILED, **setup):
        """With variables of faulty_opencl.c."""
        return self.train(run, "--checkpoint-interval", "5", *more, status=status, environment={**FAULTY, **variables}, **setup)

    def test_no_memory_is_reported_with_advice(self):
        for fault, *says in [("clCreateBuffer -4 20", "choose a smaller batch_size", "CL_MEM_OBJECT_ALLOCATION_FAILURE"),
                             ("clEnqueueNDRangeKernel -5 9", "cannot run kernel")]:
            self.train_where("full", {"HC_FAULT": fault}, says=says)

    def test_lost_device_leaves_a_checkpoint(self):
        """In the eighth of 20 iterations, when there is a checkpoint."""
        self.train_where("lost", {"HC_FAULT": "adamw -36 8"}, says=["the device was lost", "--init-from resume goes on from there"])
        self.assertEqual(self.newest("lost"), 5)
        self.train("lost", "--init-from", "resume")
        self.train("unharmed", "--checkpoint-interval", "5")
        self.same_checkpoint("lost", "unharmed", "ckpt-20")

    def test_failure_while_waiting_is_reported(self):
        self.train_where("waiting", {"HC_FAULT": "clFinish -9999 3"}, says="the device was lost")
        self.train_where("each-kernel", {"HC_FAULT": "clFinish -5 300", "HCTRAIN_FINISH_KERNELS": "1"}, says=["cannot finish kernel ", "or a kernel failed"])

    def test_texts_of_devices_and_compilers_are_shown(self):
        """Where no program is in the cache."""
        cold = {"XDG_CACHE_HOME": "@empty-cache"}
        self.shown(self.train_where("named", {**cold, "HC_NAME": "a device" + HOSTILE}, status=(0, 1, 2)).said)
        run = self.train_where("uncompiled", {**cold, "HC_LOG": f"line one{HOSTILE}\nline two"},
                               says=["cannot compile ", "\n  | line one\\x1b[31m\n  | forged", "\n  | line two\n"])
        self.shown(run.said)
        self.train_where("uncompiled", {**cold, "HC_LOG": "<kernel>:3:1: error: it is not to be"},
                         says="  | <kernel>:3:1: error: it is not to be [gemm_panels.cl:2]")

    # ---- a device whose kernels, of one name, compute nothing

    def forget_verdicts(self):
        """Takes the verdicts out of the cache, which are the smallest entries, and leaves the programs."""
        for entry in self.path("cache/hctrain").iterdir():
            if entry.is_file() and entry.stat().st_size < 200:
                entry.unlink()

    def refuses(self, kernel, failed, *words):
        """When nothing is known of the device."""
        self.forget_verdicts()
        with self.subTest(kernel=kernel, words=words):
            self.call(*words, "--device", "pocl", environment={**FAULTY, "HC_FAULT": f"{kernel} 0 1"}, status=FAILED,
                      says=[failed, " failed its self-test against sums on the host: ", "--device cpu"])

    def test_nonsense_is_refused_in_every_class_of_kernels(self):
        # CLBlast's take long to compile in this test's own cache.
        whole = [(kernel, "matrix multiplication by clblast", "--gemm", "clblast") for kernel in ("XgemmDirectTN", "Xgemm")] if programs.WHOLE else []
        for kernel, failed, *more in [("gemm_panels", "matrix multiplication by cblas", "--gemm", "cblas"),
                                      ("gemm_panels", "matrix multiplication by portable", "--gemm", "portable"),
                                      ("attention_forward", "attention"),
                                      ("attention_backward_keys", "attention"),
                                      ("attention_backward_queries", "attention"),
                                      ("loop_turns", "a long loop", "--residual", "mhc_lite", "--n-streams", "6"), *whole]:
            self.refuses(kernel, f"{failed} of device ", *self.training("nonsense", "--start-over", *more))

    def test_every_program_refuses_nonsense(self):
        golden = TESTS / "golden/rc"
        for words in [("hc_bench", "--config", "@tiny.conf"),
                      ("hc_eval", "--checkpoint", "@healthy/ckpt-20", "--data", "@data"),
                      ("hc_sample", "--checkpoint", "@healthy/ckpt-20"),
                      ("hc_probe", "--checkpoint", golden, "--batch", golden / "batch.safetensors", "--out", "@probed")]:
            self.refuses("gemm_panels", "matrix multiplication by ", *words)

    def test_a_verdict_is_kept_for_a_driver(self):
        """What passed is not tested again, until the driver changes; --plan-only computes nothing."""
        fault = {"HC_FAULT": "attention_forward 0 1"}
        self.forget_verdicts()
        self.train("healthy-again")
        self.assertNotIn("self-test", self.train_where("believed", fault, status=(0, 1, 2)).said)
        changed = {**fault, "HC_DRIVER": "2.718"}
        self.train_where("refused", changed, says="driver 2.718) failed its self-test against sums on the host: row 0 of y ")
        self.train_where("planned", changed, "--plan-only", status=0)

    @unittest.skipUnless(programs.WHOLE, "only where all is asked for")
    def test_a_verdict_is_kept_for_a_library(self):
        """Nor is it where CLBlast is another file, as after an update."""
        ctypes.CDLL("libclblast.so.1")
        loaded = re.search(r"/\S*/libclblast\S*", Path("/proc/self/maps").read_text())[0]
        self.put("libclblast.so.1", Path(loaded).read_bytes())
        self.forget_verdicts()
        ours = {"LD_LIBRARY_PATH": self.folder}
        words = ("--gemm", "clblast")
        self.train("by-clblast", *words, environment=ours)
        fault = {**ours, "HC_FAULT": "XgemmDirectTN 0 1"}
        self.assertNotIn("self-test", self.train_where("believed-library", fault, *words, status=(0, 1, 2)).said)
        os.utime(self.path("libclblast.so.1"), (1000000000,) * 2)
        self.train_where("updated", fault, *words, says="matrix multiplication by clblast of device ")


if __name__ == "__main__":
    programs.main()
