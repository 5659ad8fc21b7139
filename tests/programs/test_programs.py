"""What all programs have in common: --help, --version and mistakes on the command line leave no trace, and tables of options are sound."""
import re
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "support"))
import programs
from programs import WRONG_USAGE

VERSION = re.search(r"VERSION (\S+)", (TESTS.parent / "CMakeLists.txt").read_text().partition("project(")[2])[1]


class Programs(programs.Case):
    @classmethod
    def begin(cls):
        pass

    def alone(self, program, *argument, **setup):
        """With one argument or none, where its caches would go to the scratch folder "cache". What it prints, and what it says."""
        run = self.call(program, *argument, environment={"XDG_CACHE_HOME": "@cache", "POCL_CACHE_DIR": None}, **setup)
        return run.printed.decode(), run.said

    def test_help_and_version_leave_no_trace(self):
        """That they print at all says that no row is refused: names have underscores, and defaults are what they should."""
        for name in ("train", "bench", "eval", "probe", "sample", "export", "prepare", "devices"):
            program = f"hc_{name}"
            with self.subTest(program):
                version = self.alone(program, "--version")[0]
                self.assertIn(f"{program} {VERSION}\n", version)
                self.assertIn("\nMPI            ", version)
                self.assertIn(f"\nUsage: {program} ", self.alone(program, "--help")[0])
                said = self.alone(program, "--nonsense", status=WRONG_USAGE)[1]
                self.assertEqual(said, f"{program}: unknown option '--nonsense' (--help lists all)\n")
                self.assertFalse(self.has("cache"))
        self.alone("hc_devices", status=(0, 1))  # what uses a device does make the folder: the check above is one
        self.assertTrue(self.has("cache"))

    def test_version_says_where_libraries_are(self):
        version = self.alone("hc_train", "--version")[0]
        for line in ("OpenCL loader  /", "CLBlast        /", "OpenBLAS       OpenBLAS ", "oneDNN         "):  # or none
            self.assertIn(f"\n{line}", version)

    def test_bench_takes_its_options_from_config_files(self):
        """Settings that contradict each other are refused after the config file has been taken."""
        for text, says in [("steps = 1\n", "--step-on-demand uses stdin and stdout"),
                           ("steps = x\n", "bench.conf:1: steps = 'x' is not a whole number")]:
            self.put("bench.conf", text)
            self.call("hc_bench", "--config", "@bench.conf", "--step-on-demand", "--json", "x", status=WRONG_USAGE, says=says)


if __name__ == "__main__":
    programs.main()
