"""Broken pipes, full devices, caches that cannot be written, too little memory."""
import os
import signal
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import FAILED, INTERRUPTED


class HcTrain(programs.Case):
    def test_training_goes_on_where_messages_find_no_room(self):
        with open("/dev/full", "w") as full:
            self.train("mute", errors=full)
        self.assertTrue(self.has("mute/ckpt-20"))

    def test_run_whose_reader_died_can_be_interrupted(self):
        reading, writing = os.pipe()
        run = self.start(*self.training("unread", "--max-iters", "100000", "--checkpoint-interval", "3"), errors=writing)
        os.close(writing)
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            self.assertTrue(pipe.readline().endswith(b"\n"))
        run.wait_for(lambda: self.newest("unread", 1))
        self.ended(run.interrupt(), INTERRUPTED)
        at = self.newest("unread", 1)
        self.assertEqual(self.lines("unread/metrics.jsonl"), at)
        self.resume("unread", "--max-iters", at + 1)

    def test_caches_that_cannot_be_written_are_no_missing_device(self):
        """Trains, or says which folder it cannot write. Paths are below a file: nobody can make them, root included."""
        self.put("a-file", "")
        self.put("a-home/.cache", "")
        usual = {"POCL_CACHE_DIR": None, "XDG_CACHE_HOME": "@a-file/cache", "HOME": "@a-file/home"}
        rows = [("no-cache-at-all", "a-file", {"TMPDIR": "@a-file/tmp"}),
                ("no-cache-of-pocl", "a-file", {"POCL_CACHE_DIR": "@a-file/pocl"}),
                ("no-cache", "a-file", {}),
                ("no-cache-in-home", ".cache", {"XDG_CACHE_HOME": None, "HOME": "@a-home"}),
                ("no-cache-to-make", "/proc/nowhere", {"XDG_CACHE_HOME": "/proc/nowhere"}),
                ("no-files-in-cache", "/proc/self, which", {"POCL_CACHE_DIR": "/proc/self"})]  # even root
        for run, culprit, environment in rows if programs.WHOLE else rows[:2]:  # each compiles all kernels
            with self.subTest(run):
                ended = self.start(*self.training(run, "--max-iters", "1"), environment={**usual, **environment}).finish()
                self.assertNotIn("no OpenCL device", ended.said)
                if ended.status != 0:
                    self.assertIn(culprit, ended.said, ended.status)

    def test_limit_of_cpu_time_saves(self):
        """With `ulimit -S -t` the signal comes every second."""
        run = self.start(*self.training("cpu-time", "--max-iters", "1000000", "--checkpoint-interval", "1000000"))
        run.wait_for(lambda: self.lines("cpu-time/metrics.jsonl") > 3)
        run.process.send_signal(signal.SIGXCPU)
        self.ended(run.interrupt(signal.SIGXCPU), INTERRUPTED, "interrupted")
        self.assertGreater(self.newest("cpu-time"), 0)

    def test_tasks_of_slurm_without_mpi_are_told(self):
        """Tasks of srun that MPI does not bring together, which may be meant; and a job's script, which is one process by itself."""
        for run, status, says, environment in [
                ("task", 0, "Slurm has started 2 tasks, and MPI knows 1 of them",
                 {"SLURM_NTASKS": 2, "SLURM_STEP_NUM_TASKS": 2, "SLURM_PROCID": 0}),
                ("other", FAILED, "2 processes were started together (PMI_SIZE)", {"PMI_SIZE": 2}),
                ("script", 0, "Slurm has started 2 tasks", {"SLURM_NTASKS": 2, "SLURM_PROCID": 0})]:
            with self.subTest(run):
                self.train(run, "--max-iters", "1", status=status, says=says, environment=environment)
        self.assertFalse(self.has("other"))

    def test_variables_that_hide_devices_are_named(self):
        run = self.train("hidden", "--max-iters", "1", "--device", "cpu", status=(0, 1, 2), environment={"OCL_ICD_VENDORS": "/nowhere\x1b"})
        if run.status != 0:  # a wheel's driver is found without the loader
            self.assertIn("OCL_ICD_VENDORS=/nowhere\\x1b in the environment", run.said)

    @unittest.skipIf(programs.SANITIZED, "needs terabytes of address space")
    def test_too_little_address_space_is_said(self):
        """Of all memory, and of what can be written to, for a driver's compiler, which would end the process or hang; and enough."""
        for limit, is_enough in [("ulimit -v 600000", False), ("ulimit -d 600000", False),
                                 (f"ulimit -v {(1500 + 80 * len(os.sched_getaffinity(0))) * 1024}", True)]:
            with self.subTest(limit):
                words = self.command(*self.training("enough" if is_enough else "cramped", "--max-iters", "1", "--device", "cpu"))
                self.call("/bin/sh", "-c", limit + '; exec "$0" "$@"', *words, status=0 if is_enough else FAILED, says="" if is_enough else limit[:9])

    def test_names_of_runs_may_be_in_any_language(self):
        name = "прогон-実験"
        self.put(f"{name}/metrics.jsonl", '{"iter":0,"loss":5.5,"grad_norm":1}\n')
        self.call("hc_analyze", "--out", "@named-report", f"@{name}")
        self.assertEqual(self.json("named-report/analysis.json")["runs"][0]["name"], name)
        page = self.text("named-report/report.html")
        self.assertIn(name, page)
        self.assertNotIn("???", page)


if __name__ == "__main__":
    programs.main()
