"""A device on Vulkan that fails under hc_train, mocked by tests/support/faulty_vulkan.c, and compilers, caches and drivers that are not as they
should be: what is reported, that nothing ends by a signal or hangs, and that no checkpoint suffers."""
import hashlib
import os
import signal
import struct
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import FAILED

SMALL = """device = vulkan
residual = rc
gemm = portable
max_iters = 3
checkpoint_interval = 1
keep_checkpoints = 3
"""
FAULTY = {"LD_PRELOAD": programs.BUILD / "tests/libfaulty_vulkan.so", "XDG_CACHE_HOME": "@cache"}
COLD = {"XDG_CACHE_HOME": "@cold"}
LAYER = {"VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation"}
APART = {"VK_LAYER_ENABLES": "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT"}
LAYER_FILE = Path("/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json")
AT_START, WHILE_TRAINING, PASSED_OVER = range(3)  # a later call happens; the last where it happens once

FAILING = [("vkCreateDevice", -3, "cannot create a context: CL_INVALID_OPERATION (vkCreateDevice: VK_ERROR_INIT", AT_START),
           ("vkCreateSemaphore", -2, "cannot create a command queue: CL_MEM_OBJECT_ALLOCATION_FAILURE", AT_START),
           ("vkCreateCommandPool", -1, "cannot create a command queue: CL_OUT_OF_HOST_MEMORY", AT_START),
           ("vkAllocateCommandBuffers", -2, "cannot create a command queue: CL_MEM_OBJECT_ALLOCATION_FAILURE", AT_START),
           ("vkCreateDescriptorPool", -1000161000, "cannot create a command queue: CL_MEM_OBJECT_ALL", AT_START),
           ("vkCreateBuffer", -1, "choose a smaller batch_size", AT_START),
           ("vkAllocateMemory", -2, "VK_ERROR_OUT_OF_DEVICE_MEMORY (-2)): the device has no memory left: choose", AT_START),
           ("vkBindBufferMemory", -2, "VK_ERROR_OUT_OF_DEVICE_MEMORY", AT_START),
           ("vkMapMemory", -5, "VK_ERROR_MEMORY_MAP_FAILED (-5)): the host, or the device, has no memory left", AT_START),
           ("vkCreateShaderModule", -1, "vkCreateShaderModule: VK_ERROR_OUT_OF_HOST_MEMORY", PASSED_OVER),
           ("vkCreateDescriptorSetLayout", -1, "cannot create kernel", AT_START),
           ("vkCreatePipelineLayout", -1, "cannot create kernel", AT_START),
           ("vkCreateComputePipelines", -13, "VK_ERROR_UNKNOWN (-13); another version of the device's driver", AT_START),
           ("vkAllocateDescriptorSets", -1000069000, "VK_ERROR_OUT_OF_POOL_MEMORY", WHILE_TRAINING),
           ("vkBeginCommandBuffer", -1, "VK_ERROR_OUT_OF_HOST_MEMORY", WHILE_TRAINING),
           ("vkEndCommandBuffer", -2, "VK_ERROR_OUT_OF_DEVICE_MEMORY", WHILE_TRAINING),
           ("vkQueueSubmit", -2, "VK_ERROR_OUT_OF_DEVICE_MEMORY", PASSED_OVER),
           ("vkQueueSubmit", -4, "the device was lost", WHILE_TRAINING),
           ("vkWaitSemaphores", -1, "VK_ERROR_OUT_OF_HOST_MEMORY", WHILE_TRAINING),
           ("vkWaitSemaphores", -4, "the device was lost", WHILE_TRAINING),
           ("vkGetSemaphoreCounterValue", -4, "the device was lost", WHILE_TRAINING)]


def fault(function, code, call, how):
    return {"HC_VULKAN_FAULT": f"{function} {code} {call} {how}"}


class VulkanFaults(programs.Case):
    @classmethod
    def begin(cls):
        """The first run compiles, and the second one counts calls."""
        super().begin()
        cls.put("small.conf", SMALL)
        variables = [f"{name}={cls.word(str(value))}" for name, value in FAULTY.items()]
        cls.made("/usr/bin/env", *variables, *cls.command(*cls.small_run("hc_train", "unharmed")))
        cls.made("/usr/bin/env", *variables, "HC_VULKAN_COUNTS=@counts", *cls.command(*cls.small_run("hc_train", "counted")))
        cls.calls = {name: int(count) for name, count in map(str.split, cls.text("counts").splitlines())}

    @staticmethod
    def small_run(program, run, *more):
        return [program, "--config", "@tiny.conf", "--config", "@small.conf", "--data-dir", "@data", "--out-dir", f"@{run}", *more]

    def run_in(self, run, variables, *more, program="hc_train", **setup):
        return self.call(*self.small_run(program, run, *more), environment={**FAULTY, **variables}, seconds=3 * programs.SECONDS, **setup)

    def reports(self, says, run, variables, *more, **setup):
        """One message with these texts, at the end of the output."""
        ended = self.run_in(run, variables, *more, status=FAILED, says=says, **setup)
        self.assertIn("hc_", ended.said)
        self.assertNotIn("\nhc_train: ", ended.said.partition("hc_")[2])
        return ended

    def whole_checkpoints(self, run):
        """How far it came: every checkpoint that it left is what a run that nothing happened to has."""
        reached = self.newest(run)
        for i in range(1, (reached or 0) + 1):
            self.same_checkpoint(run, "unharmed", f"ckpt-{i}")
        return reached

    # ---- calls that fail

    def fail_later(self, function, code, says, when):
        """One of the run's last calls, or with a checkpoint there the fifth from then on. How many there are while products are timed before training
        depends on the machine."""
        variables = fault(function, code, 1 + self.calls[function] * 3 // 4, "once")
        if when == WHILE_TRAINING:
            variables = {**fault(function, code, 5, "once"), "HC_VULKAN_AFTER": "@later/ckpt-1"}
        if when == PASSED_OVER:
            self.run_in("later", variables, "--start-over")
        else:
            self.reports(says, "later", variables, "--start-over")
        reached = self.whole_checkpoints("later")
        if when != AT_START:
            self.assertGreaterEqual(reached, 1 if when == WHILE_TRAINING else 3)

    def test_failing_calls_are_reported(self):
        """The first of all calls and those after it, and a later one by itself."""
        for function, code, says, when in FAILING:
            with self.subTest(function, code=code):
                self.assertGreater(self.calls[function], 0)
                self.reports(says, "first", fault(function, code, 1, "on"), "--start-over")
                self.assertIsNone(self.newest("first"))
                if self.calls[function] > 1:
                    self.fail_later(function, code, says, when)

    def test_lost_device_leaves_a_checkpoint(self):
        self.reports(["the device was lost", "--init-from resume goes on from there"], "lost",
                     {**fault("vkQueueSubmit", -4, 2, "on"), "HC_VULKAN_AFTER": "@lost/ckpt-1"})
        self.assertGreaterEqual(self.whole_checkpoints("lost"), 1)
        self.run_in("lost", {}, "--init-from", "resume")
        self.assertEqual(self.whole_checkpoints("lost"), 3)

    def test_profile_does_without_times(self):
        """Times are wanted for the table only."""
        self.reports("cannot create a command queue", "bench", fault("vkCreateQueryPool", -2, 1, "on"), "--profile", program="hc_bench")
        self.run_in("bench", fault("vkGetQueryPoolResults", -1, 1, "on"), "--profile", "--steps", "1", "--warmup", "0", program="hc_bench")

    def test_missing_drivers_are_reported(self):
        self.put("no-loader/libvulkan.so.1", "")
        for says, variables in [("needs Vulkan's loader", {"LD_LIBRARY_PATH": "@no-loader"}),
                                ("there is no Vulkan driver", {"VK_ICD_FILENAMES": "/nonexistent.json"}),
                                ("Vulkan offers no device", fault("vkEnumeratePhysicalDevices", -3, 1, "on"))]:
            self.reports(says, "nothing", variables)

    # ---- the compiler

    def with_compiler(self, script):
        """Variables for one that does this when it compiles, with no cache to help."""
        self.put("bin/clspv", f'#!/bin/sh\n[ "$1" = --version ] && exit\n{script}\n').chmod(0o700)
        return {"PATH": f"{self.path('bin')}:/usr/bin:/bin", **COLD}

    def test_missing_compiler_is_needed_for_new_programs_only(self):
        nothing = {"PATH": "@nothing-here"}
        self.reports(["clspv", "ci/setup.sh vulkan"], "cold", {**nothing, **COLD})
        self.run_in("warm", nothing)
        self.assertEqual(self.whole_checkpoints("warm"), 3)

    def test_failing_compiler_is_reported(self):
        last = "for last; do :; done; "
        for script, *says in [("echo 'no such thing as a kernel'; exit 3", "clspv ended with status 3", "no such thing as a kernel"),
                              ("exit 1", "ended with status 1 and wrote nothing; is there room in"),
                              ("kill -9 $$", "clspv was ended by signal 9 (Killed)"),
                              ("exit 0", "clspv ended with status 0 and wrote nothing"),
                              (last + ': > "$last"', "clspv ended with status 0 and wrote nothing"),
                              (last + 'echo rubbish > "$last"', "it is no SPIR-V")]:
            self.reports(says, "cold", self.with_compiler(script))
        hostile = "printf 'a kernel\\033[31m\\r\\nforged: all is well\\n'; exit 3"
        self.shown(self.reports("a kernel\\x1b[31m", "cold", self.with_compiler(hostile)).said)

    def test_folder_for_compiling_is_named(self):
        self.reports(["cannot make a folder in /nonexistent", "set TMPDIR"], "cold", {**COLD, "TMPDIR": "/nonexistent"})
        # files of the run are smaller than the source of a program
        self.reports("File too large; set TMPDIR", "cold", COLD, file_bytes=1024)

    def test_ctrl_c_ends_a_compiler_that_hangs(self):
        """The first one asks the program to stop, which goes on compiling to do so in order; the second one ends both."""
        variables = self.with_compiler(f"echo $$ >> {self.path('processes')}; exec sleep 1000")
        run = self.start(*self.small_run("hc_train", "hanging"), environment={**FAULTY, **variables}, start_new_session=True)
        for i in (1, 2):
            run.wait_for(lambda: self.lines("processes") >= i)
            os.killpg(run.process.pid, signal.SIGINT)
        self.ended(run.finish(), -signal.SIGINT)
        end = time.monotonic() + programs.SECONDS
        with self.assertRaises(ProcessLookupError):  # nobody is left of them
            while time.monotonic() < end:
                os.killpg(run.process.pid, 0)
                time.sleep(0.01)

    # ---- the cache

    def cached(self):
        return {entry.name: entry.read_bytes() for entry in sorted(self.path("cache/hctrain").iterdir()) if not entry.name.startswith(".")}

    def test_damaged_programs_are_compiled_again(self):
        """Cut, changed in a byte, or whole and no program. What other tests left there is not needed by this run, and stays as it is."""
        def rubbish(data):
            content = b"rubbish\0"
            return data[:72] + hashlib.sha256(content).hexdigest().encode() + struct.pack("=Q", len(content)) + content

        ways = [lambda data: data[:len(data) // 2],
                lambda data: data[:len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1:],
                rubbish]
        whole = self.cached()
        for i, (name, data) in enumerate(whole.items()):
            self.put(f"cache/hctrain/{name}", ways[i % 3](data))
        spoilt = self.cached()
        self.run_in("damaged", {})
        self.assertEqual(self.whole_checkpoints("damaged"), 3)
        now, mended = self.cached(), [0, 0, 0]
        self.assertEqual((list(now), list(spoilt)), (list(whole),) * 2)
        for i, name in enumerate(whole):
            self.assertNotEqual(whole[name], spoilt[name])
            mended[i % 3] += now[name] == whole[name]
            self.assertIn(now[name], (whole[name], spoilt[name]), name)
        self.assertGreaterEqual(min(mended), 2, mended)

    # ---- Vulkan's validation layer

    @unittest.skipUnless(LAYER_FILE.exists(), "no validation layer")
    def test_validation_layer_says_nothing(self):
        """And it is not silent by mistake: it speaks where a call is left out, and where nothing keeps commands apart."""
        for run, complains, variables in [("valid", False, APART),
                                          ("invalid", True, fault("vkEndCommandBuffer", 0, 1, "once")),
                                          ("invalid", True, {**APART, **fault("vkCmdPipelineBarrier", 0, 1, "on")})]:
            ended = self.start(*self.small_run("hc_train", run, "--start-over"), environment={**FAULTY, **LAYER, **variables})
            ended.finish(3 * programs.SECONDS)
            text = ended.printed.decode(errors="surrogateescape") + ended.said
            self.assertEqual("Validation " in text, complains, text[:400])
            if not complains:
                self.ended(ended)
        self.assertEqual(self.whole_checkpoints("valid"), 3)


if __name__ == "__main__":
    programs.main()
