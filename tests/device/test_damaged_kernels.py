"""PoCL's cache of compiled kernels, as a power failure leaves it."""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs


class DamagedKernels(programs.Case):
    def sample(self):
        """What it prints and says; hc_sample keeps no programs without a place for them."""
        run = self.call("hc_sample", "--checkpoint", "@run/ckpt-0", "--device", "pocl", "--prompt", "ab", "--max-new-tokens", "20",
                        environment={"POCL_CACHE_DIR": "@kernels", "XDG_CACHE_HOME": "", "HOME": ""})
        return run.printed, run.said

    def test_damaged_kernels_are_compiled_again(self):
        """They are cut off, or the rest of them is zeros. Whole ones are left alone."""
        self.train("run", "--max-iters", "0")
        cache = str(self.path("kernels"))
        text, said = self.sample()
        self.assertNotIn(cache, said)
        for ending, kept, is_zeroed in [(".so", 9000, False), (".so", 9000, True), (".bc", 0, True)]:
            with self.subTest(ending, is_zeroed=is_zeroed):
                self.path("kernels/.hctrain-checked").write_text("an earlier boot")
                damaged = [path for path in self.path("kernels").rglob("*") if ending in path.name and path.is_file()]
                self.assertTrue(damaged)
                for path in damaged:
                    size = path.stat().st_size
                    os.truncate(path, kept if kept < size else 0)
                    if is_zeroed:
                        os.truncate(path, size)
                found, said = self.sample()
                self.assertEqual(found, text)
                self.assertIn(cache, said)
                self.assertEqual(self.path("kernels/.hctrain-checked").read_text(), Path("/proc/sys/kernel/random/boot_id").read_text())
        found, said = self.sample()
        self.assertEqual(found, text)
        self.assertNotIn(cache, said)


if __name__ == "__main__":
    programs.main()
