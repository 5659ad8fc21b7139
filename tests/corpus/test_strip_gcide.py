"""data/gcide/strip_markup.py and the scripts around it: markup goes, whatever the input is the memory stays small, and failures show."""
import gzip
import hashlib
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import programs
from programs import FAILED

SCRIPTS = Path(__file__).resolve().parents[2] / "data/gcide"
TEXT = rb'''
00-database-info
   A notice.

Lamina \Lam"i*na\ (l[a^]m"[i^]*n[.a]), n.; pl. L. {Lamin[ae]}
   (-n[=e]) E. {Laminas} (-n[.a]z). [L. cf. {Lamella} and a long
   [Gr. ?] word.]
   1. A thin plate  or scale ; a layer. --Gray. [Obs.]
      [1913 Webster]

   2. (Bot.) [He] said "[They] were" {Di*chot"o*mous*ly} (so).
   [1913 Webster] Laminar

Laminar \Lam"i*nar\, a. [Cf. F.]
   Thin.
   [1913 Webster] -- {Lam"i*nar*ly}, adv.
   [PJC]

   [PJC]

   [Webster 1913 Suppl.] Roband \Rob"and\, n. (Naut.)
   A piece 90[deg] [unclosed {x}'''
EXPECTED = b'''Lamina, n.; pl. L. Laminae E. Laminas. 1. A thin plate or scale; a layer. --Gray.
2. (Bot.) [He] said "[They] were" Dichotomously (so).

Laminar, a. Thin. -- Laminarly, adv.

Roband, n. (Naut.) A piece 90 deg. unclosed x
'''


class StripGcide(programs.Case):
    @classmethod
    def begin(cls):
        """The corpus is not needed."""

    def strip(self, path, data=b"", status=0, says=""):
        """What is printed."""
        done = subprocess.run([sys.executable, SCRIPTS / "strip_markup.py", path], input=data, capture_output=True, check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(says, done.stderr.decode())
        self.assertEqual(done.stderr == b"", status == 0)
        self.assertNotIn(b"Traceback", done.stderr)
        return done.stdout

    def strip_in_pieces(self, data, piece):
        """When the input comes through a pipe, so many bytes at a time."""
        run = self.start(sys.executable, SCRIPTS / "strip_markup.py", "-", stdin=subprocess.PIPE, bufsize=0)
        with run.process.stdin as pipe:
            for at in range(0, len(data), piece):
                pipe.write(data[at:at + piece])
        self.ended(run.finish())
        return run.printed

    def test_markup(self):
        self.assertEqual(self.strip("-", TEXT), EXPECTED)
        for piece in (1, 7):
            self.assertEqual(self.strip_in_pieces(TEXT, piece), EXPECTED)
        self.assertEqual(self.strip("-"), b"")
        self.assertEqual(self.strip("-", b"a \\"), b"a\n")  # a headword that is not closed
        self.assertEqual(self.strip("-", b"caf\xe9 \\caf\\\n \xff\xc3\xa9 [\xe9] \0"), b"caf\xe9 \xff\xc3\xa9\0\n")  # bytes that are not ASCII

    def test_hostile(self):
        """Lines without an end, brackets in brackets: no more time or memory than for others."""
        for unit in b"[", b"]", b"(", b"{", b"\\", b"[a", b"a\n", b" .", b"[[a]]", b"\0", b"A \\x\n":
            with self.subTest(unit):
                data = b"H \\H\\\n" + unit * (300000 // len(unit))
                self.assertLessEqual(len(self.strip("-", data)), len(data))

    def test_files(self):
        packed = gzip.compress(TEXT)
        for content in TEXT, packed, gzip.compress(TEXT[:300]) + gzip.compress(TEXT[300:]):
            self.assertEqual(self.strip(self.put("dictionary", content)), EXPECTED)
        for content, says in (packed[:-20], "ended before"), (packed + b"more", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd -dc"):
            self.strip(self.put("dictionary", content), status=FAILED, says=says)
        for path in self.folder, self.path("missing"):
            self.strip(path, status=FAILED)

    def test_prepare(self):
        """Token files of a dictionary: meta.json has the dictionary as the source; a damaged one makes no token files."""
        content = gzip.compress(TEXT * 100)
        dictionary = self.put("gcide.dz", content[:-10])
        command, environment = ("sh", SCRIPTS / "prepare.sh", "@out", programs.BUILD / "hc_prepare"), {"GCIDE_DICT": dictionary}
        self.call(*command, environment=environment, status=(1, 2))
        self.assertFalse(self.has("out"))
        self.put("gcide.dz", content)
        self.call(*command, environment=environment)
        meta = self.json("out/meta.json")
        self.assertEqual(meta["strip_markup"], "gcide")
        self.assertEqual(meta["sources"], [{"path": str(dictionary), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}])
        self.assertEqual(meta["train_tokens"] + meta["val_tokens"], len(self.strip(dictionary)))
        self.assertEqual(sorted(path.name for path in self.path("out").iterdir()), ["meta.json", "train.bin", "val.bin"])
        self.assertEqual(self.call(*command, environment=environment).printed.decode(), f"{self.path('out')} is up to date\n")


if __name__ == "__main__":
    programs.main()
