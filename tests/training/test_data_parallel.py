"""hc_train under mpirun: ranks that agree with one process, with themselves and after resuming on other numbers of ranks, and jobs in which
something goes wrong."""
import array
import contextlib
import os
import random
import re
import resource
import signal
import sys
import time
import unittest
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "support"))
import programs
from programs import FAILED, INTERRUPTED, WRONG_USAGE

ITERATIONS = 20
ANY_ERROR = tuple(range(1, 256))
SOON = 45  # seconds in which a job that has lost a rank must have ended
TCP = {"HCTRAIN_RANKS_PER_HOST": 1, "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo"}
BY_RANK = str(TESTS / "support/by_rank.sh")  # of two commands with "," between them rank 0 runs the first, rank 1 the second

RESUME = "--init-from resume"
EVALUATE = "--eval-iters 3 --eval-interval 7 --residual "
MUON = "--optimizer muon --mlp swiglu --residual mhc --grad-clip "
FROZEN = r"alone --freeze wte|h\.0\. --freeze-alpha-res --max-iters 6; "
THAWED = RESUME + " --freeze= --no-freeze-alpha-res"
# of states in bf16 rounding depends on an element's place alone; frozen parameters lie between those that Muon and AdamW update
BF16_STATES = "--moments bf16 --grad-clip 0 --optimizer muon --freeze h.0.attn|ln_2|c_fc"
BF16_WEIGHTS = "--dtype bf16 --master bf16 --grad-clip 0"

# Runs that agree: options of all of them, and of each run the jobs one after the other, with ";" between them. Their losses and norms agree with
# those of the first run up to the tolerance, or, if it is 0, bit for bit. With SAME_WEIGHTS all last checkpoints have the same bits.
SAME_WEIGHTS = True
AGREEMENTS = {
    # also with dropout, which depends on a row's place in the global batch
    "any number of ranks": (1e-5, "--train-batches sequential --dropout 0.2 " + EVALUATE + "mhc", ["alone", "2", "4"]),
    # on one host and on two sums are added in the same order
    "hosts": (0, "--residual mhc", ["4", "4/2"], SAME_WEIGHTS),
    # a checkpoint does not say how many ranks shared the states
    "sharded states resumed anywhere": (1e-5, "", ["alone", f"4 --shard-optimizer --max-iters 6; 2 {RESUME} --max-iters 11; "
                                                            f"alone {RESUME} --max-iters 15; 4 {RESUME}"]),
    "Muon clips by the norm of all ranks": (1e-5, MUON + "0.1", ["alone", "2 --shard-optimizer"])}
MORE_AGREEMENTS = {  # only where all is asked for
    "one rank under mpirun": (0, "", ["alone", "1"], SAME_WEIGHTS),
    "resumed": (0, "", ["2", f"2 --max-iters 8; 2 {RESUME}"], SAME_WEIGHTS),
    "four hosts": (0, "--residual mhc", ["4", "4/1"], SAME_WEIGHTS),
    "any number, rc": (1e-5, "--train-batches random " + EVALUATE + "rc", ["alone", "2", "4"]),
    "any number, shc": (1e-5, "--train-batches random " + EVALUATE + "shc", ["alone", "2", "4"]),
    "any number, gated": (1e-5, EVALUATE + "gated", ["alone", "2", "4"]),
    "any number, attnres": (1e-5, EVALUATE + "attnres --attnres-block 3", ["alone", "2", "4"]),
    "any number, mudd": (1e-5, EVALUATE + "mudd", ["alone", "2", "4"]),
    "any number, frac": (1e-5, EVALUATE + "frac --hc-until 1", ["alone", "2", "4"]),
    "any number, dar": (1e-5, EVALUATE + "dar --attnres-heads 2 --x0-lambdas", ["alone", "2", "4"]),
    "any number, laurel": (1e-5, EVALUATE + "laurel --x0-lambdas --value-embeds", ["alone", "2", "4"]),
    "any number, dense": (1e-5, EVALUATE + "dense --value-embeds --shard-optimizer", ["alone", "2", "4"]),
    "sharded, twice": (0, "--gradient-accumulation-steps 3 --shard-optimizer", ["3/1", "3/1"], SAME_WEIGHTS),
    "bf16 sums, twice": (0, "--gradient-accumulation-steps 3 --allreduce-dtype bf16", ["3/1", "3/1"], SAME_WEIGHTS),
    "over TCP": (0, "", ["2", "2/tcp"], SAME_WEIGHTS),
    "sharded states": (1e-5, "", ["4", "4 --shard-optimizer"]),
    # weights that come from another rank reach the 16-bit copy, too
    "sharded states in fp16": (1e-3, "--dtype fp16", ["2", "2 --shard-optimizer"]),
    "resumed on other numbers of ranks": (1e-5, "", ["2", f"2 --max-iters 6; 4 {RESUME} --max-iters 12; 2 {RESUME}"]),
    # Without clipping, whose norm is summed in another order, not a bit depends on which rank owns which of Muon's matrices, before and after
    # resuming. Some matrices are larger than a bucket.
    "sharded Muon": (1e-6, MUON + "0", ["4", "4 --shard-optimizer", f"4 --max-iters 8; 4/2 {RESUME} --shard-optimizer --max-iters 14; "
                                                                   f"4 {RESUME} --no-shard-optimizer"], SAME_WEIGHTS),
    "sharded bf16 states": (1e-6, BF16_STATES, ["2", f"2 --shard-optimizer --max-iters 9; 2 {RESUME}"], SAME_WEIGHTS),
    "bf16 states": (1e-3, BF16_STATES, ["alone", "2"]),
    "bf16 weights resumed": (0, BF16_WEIGHTS, ["2", f"2 --max-iters 9; 2 {RESUME}"], SAME_WEIGHTS),
    "bf16 weights": (2e-3, BF16_WEIGHTS, ["alone", "2"]),
    # parameters that begin to train later count their steps by themselves
    "thawed": (1e-5, "--residual mhc", [f"{FROZEN} alone {THAWED}", f"{FROZEN} 2 {THAWED} --shard-optimizer --max-iters 9; "
                                                                   f"2 {THAWED} --shard-optimizer"]),
    "upcycled": (1e-5, "--residual mhc --freeze wte|mlp --new-learning-rate 1e-2 --warmup-iters 2 --init-from @plain/ckpt-2",
                 ["alone", "2", "2 --shard-optimizer"])}


class DataParallel(programs.Case):
    @classmethod
    def begin(cls):
        super().begin()
        if programs.WHOLE:
            cls.made(*cls.training("plain", "--residual", "rc", "--max-iters", "2"))

    @classmethod
    def training(cls, run, *more):
        """Buckets of 4 KiB: even this model has several. Four micro-batches, so that 1, 2 and 4 ranks can share them."""
        return super().training(run, "--gradient-accumulation-steps", "4", "--batch-size", "2", "--allreduce-bucket", "0.004", *more)

    def start_job(self, run, job, environment=None):
        """hc_train in the folder of a run. A job is "RANKS OPTIONS": how many ranks ("alone": without mpirun), behind "/" how many in a row share
        memory, as on several hosts ("tcp": none, and they talk over TCP alone)."""
        ranks, *more = job.split()
        ranks, _, per_host = ranks.partition("/")
        hosts = TCP if per_host == "tcp" else {"HCTRAIN_RANKS_PER_HOST": per_host or None}
        return self.start(*self.training(run, *more), ranks=None if ranks == "alone" else ranks, environment={**hosts, **(environment or {})})

    def job(self, run, job, status=0, says=(), **setup):
        ended = self.start_job(run, job, **setup).finish(10 * programs.SECONDS)
        self.ended(ended, status, says)
        return ended

    # ---- agreement

    def test_runs_agree(self):
        for name, (tolerance, options, runs, *same_weights) in {**AGREEMENTS, **(MORE_AGREEMENTS if programs.WHOLE else {})}.items():
            with self.subTest(name):
                first, *others = [f"{name}-{i}".replace(" ", "-") for i in range(len(runs))]
                for run, jobs in zip([first, *others], runs):
                    for job in jobs.split(";"):
                        self.job(run, f"{job} {options}")
                for run in others:
                    self.near_metrics(first, run, ITERATIONS, tolerance) if tolerance else self.same_metrics(first, run)
                    if same_weights:
                        self.same_checkpoint(first, run, "ckpt-20")

    def test_bfloat16_sums_are_near(self):
        """Half the bits, so not the same, but the same training."""
        self.job("float", "2")
        self.job("bfloat16", "2/1 --allreduce-dtype bf16")
        self.near_metrics("float", "bfloat16", ITERATIONS, 5e-3)
        self.assertNotEqual(self.metrics("float")[19]["loss"], self.metrics("bfloat16")[19]["loss"])

    def test_observations_are_those_of_all_ranks(self):
        """One process sees the same tokens in one micro-batch that two ranks have in one each."""
        observed = "--statistics-interval 1 --max-iters 1 --residual mhc --gradient-accumulation-steps "
        self.job("observed-on-1", f"alone {observed} 1 --batch-size 4")
        self.job("observed-on-2", f"2 {observed} 2")
        one, two = (self.records(f"observed-on-{i}/h_statistics.jsonl")[0] for i in (1, 2))
        self.assertEqual(one.keys(), two.keys())
        for name, value in one.items():
            pairs = zip(value, two[name], strict=True) if isinstance(value, list) else [(value, two[name])]
            for x, other in pairs:
                self.assertLessEqual(abs(x - other), 1e-5 * abs(x) + (0 if isinstance(value, list) else 1e-9), name)

    @unittest.skipUnless(programs.WHOLE, "only where all is asked for")
    def test_frozen_alpha_res_keeps_its_bits_where_states_are_shared(self):
        self.job("frozen", "2 --residual mhc --shard-optimizer --max-iters 3")
        self.job("frozen", f"2 {RESUME} --freeze-alpha-res --max-iters 6")
        self.kept_alpha_res("frozen", 3, 6, True)

    def test_rank_that_starts_another_process_ends(self):
        """The process that compiles kernels for a single rank is no rank itself, for which mpirun would wait at the end."""
        self.job("first-start", "1 --max-iters 1", environment={"HCTRAIN_BACKGROUND_COMPILE": 1, "POCL_CACHE_DIR": "@first-kernels",
                                                                "XDG_CACHE_HOME": "@first-cache"})

    @unittest.skipUnless(programs.WHOLE, "only where all is asked for")
    def test_ranks_may_begin_with_a_cold_cache(self):
        """Processes that compile the same kernels and write them to the same folders at once."""
        self.job("warm-cache", "4")
        self.job("cold-cache", "4", environment={"POCL_CACHE_DIR": "@cold-kernels", "XDG_CACHE_HOME": "@cold-cache"})
        self.same_run("warm-cache", "cold-cache", "ckpt-20")

    # ---- death and trouble

    def ranks(self, job, count):
        """The processes of so many ranks, in MPI's order, when all are there: children of mpirun."""
        def found():
            ranks = {}
            for folder in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    name, _, rest = (folder / "stat").read_text().rpartition(")")
                    if name.endswith("(hc_train") and int(rest.split()[1]) == job.process.pid:
                        rank = re.search(rb"\0OMPI_COMM_WORLD_RANK=(\d+)", (folder / "environ").read_bytes())
                        ranks[int(rank[1]) if rank else -1] = int(folder.name)
            return sorted(ranks) == [*range(count)] and [ranks[i] for i in range(count)]
        return job.wait_for(found)

    def ends_soon(self, job, ranks, status, says=()):
        """None of its ranks may be left."""
        job.finish(SOON)
        end = time.monotonic() + 2
        while (left := [rank for rank in ranks if Path(f"/proc/{rank}").exists()]) and time.monotonic() < end:
            time.sleep(0.01)
        for rank in left:  # mpirun is gone and would leave them
            os.kill(rank, signal.SIGKILL)
        self.assertFalse(left or job.status == -signal.SIGKILL, f"a job that should have ended within {SOON} s went on: {job.said}")
        self.ended(job, status, says)

    def start_endless(self, run, count, more=""):
        """A run without an end on so many ranks, which has come to 10 lines of metrics, and its ranks."""
        job = self.start_job(run, f"{count} --max-iters 100000 --checkpoint-interval 100000 {more}")
        ranks = self.ranks(job, count)
        job.wait_for(lambda: self.lines(f"{run}/metrics.jsonl") >= 10)
        return job, ranks

    def go_on(self, run, ranks, more="", least=1):
        """The run goes on, on other ranks, for two iterations behind its newest checkpoint; returns its last iteration."""
        at = self.newest(run)
        self.assertGreaterEqual(at, least)
        self.job(run, f"{ranks} {RESUME} --max-iters {at + 2} {more}")
        return at + 2

    def test_killed_rank_ends_the_job_and_it_resumes(self):
        """One of 2, 3 or 4 ranks, over and over, at a random moment after the next checkpoint, in a run that goes on with another number each time;
        what it was is what it would have been."""
        at, chosen = 0, random.Random(5)
        for i, count in enumerate((2, 4, 3, 2, 4) if programs.WHOLE else (2, 4)):
            job = self.start_job("killed", f"{count} --gradient-accumulation-steps 12 --max-iters 100000 --checkpoint-interval 1 --init-from "
                                           f"{'resume' if i else 'scratch'} {'--shard-optimizer' if i % 2 else '--bias=false'}")
            ranks = self.ranks(job, count)
            job.wait_for(lambda: self.newest("killed", at + 1))
            time.sleep(chosen.randrange(60) / 1000)
            os.kill(chosen.choice(ranks), signal.SIGKILL)
            self.ends_soon(job, ranks, ANY_ERROR, "signal 9 (Killed)")
            at = self.newest("killed", at + 1)
        last = f"--gradient-accumulation-steps 12 --max-iters {at + ITERATIONS}"
        self.job("killed", f"2 {RESUME} {last}")
        self.job("unharmed", f"alone {last}")
        self.near_metrics("unharmed", "killed", ITERATIONS, 2e-4)  # after some hundred iterations at a large learning rate

    def test_stopped_rank_is_named_once(self):
        """Three ranks wait for the fourth and one of them says so."""
        job, ranks = self.start_endless("stopped", 4, "--rank-timeout 2")
        os.kill(ranks[2], signal.SIGSTOP)
        self.ends_soon(job, ranks, ANY_ERROR, "for 2 seconds; is it stopped, or its host away?")
        self.assertEqual(job.said.count("hc_train: "), 1, job.said)
        self.assertRegex(job.said, "rank 2 |or 2 |another rank")

    def test_failing_rank_ends_the_job_with_one_message(self):
        """Rank 0 cannot write any more: the other one hears of it and ends."""
        job = self.start_job("taken", "2 --max-iters 100000 --checkpoint-interval 1 --shard-optimizer")
        ranks = self.ranks(job, 2)
        at = job.wait_for(lambda: self.newest("taken", 1))
        taken = [self.path(f"taken/ckpt-{i}") for i in range(at + 1, at + 1000)]
        for path in taken:  # files where folders are to be; some come too late
            path.exists() or path.touch()
        self.ends_soon(job, ranks, FAILED, ["hc_train: rank 0 on ", "cannot save checkpoint"])
        self.assertNotIn("hc_train: rank 1 on ", job.said)
        for path in taken:
            path.is_dir() or path.unlink()
        self.job("taken", f"4 {RESUME}")  # what was saved before is whole

    @unittest.skipUnless(programs.WHOLE, "only where all is asked for")
    def test_unwritable_metrics_end_the_job_with_a_checkpoint(self):
        """The metrics are made longer than a checkpoint's files, so that there is a limit that stops them alone."""
        blank = 300000
        self.job("unwritable", "2 --max-iters 2")
        self.put("unwritable/metrics.jsonl", "\n" * blank + self.text("unwritable/metrics.jsonl"))
        job, ranks = self.start_endless("unwritable", 2, RESUME)
        job.wait_for(lambda: self.lines("unwritable/metrics.jsonl") >= blank + 10)
        resource.prlimit(ranks[0], resource.RLIMIT_FSIZE, (blank, blank))
        self.ends_soon(job, ranks, FAILED, "cannot write to the run's metrics file")
        self.assertEqual(job.said.count("hc_train: "), 1, job.said)
        self.go_on("unwritable", 2, least=3)

    def tokens(self, turned):
        """Of the corpus, as they are or turned round."""
        tokens = array.array("H", self.path("data/train.bin").read_bytes())
        return (tokens[::-1] if turned else tokens).tobytes()

    def test_data_written_over_ends_the_job_with_a_checkpoint(self):
        """All ranks stop before the same iteration, which sees nothing of what was written."""
        self.copy("data", "rewritten")
        with open(self.path("rewritten/train.bin"), "r+b", buffering=0) as file:
            job, ranks = self.start_endless("overwritten", 2, "--data-dir @rewritten")
            file.write(self.tokens(True))
            self.ends_soon(job, ranks, FAILED, "was changed while it was in use")
            file.seek(0)
            file.write(self.tokens(False))
        self.assertEqual(job.said.count("hc_train: "), 1, job.said)
        last = self.go_on("overwritten", 2, "--data-dir @rewritten")
        self.job("not-overwritten", f"2 --max-iters {last}")
        self.same_run("overwritten", "not-overwritten", f"ckpt-{last}")

    def test_signal_to_one_rank_saves_and_stops_all(self):
        """All stop after the same iteration."""
        for number, rank in [(signal.SIGUSR1, 0), (signal.SIGTERM, 1), (signal.SIGINT, 0)][0 if programs.WHOLE else 2:]:
            run = f"signal-{number}"
            job, ranks = self.start_endless(run, 2)
            os.kill(ranks[rank], number)
            self.ends_soon(job, ranks, INTERRUPTED, "interrupted; go on with --init-from resume")
            self.go_on(run, 4)

    def test_signal_while_ranks_start_is_heeded(self):
        """In MPI_Init, which starts threads: a rank that dies there may leave mpirun waiting."""
        job = self.start_job("early", "2 --max-iters 100000")
        ranks = self.ranks(job, 2)
        while len(os.listdir(f"/proc/{ranks[1]}/task")) == 1:
            time.sleep(0.001)
        os.kill(ranks[1], signal.SIGINT)
        self.ends_soon(job, ranks, INTERRUPTED, "interrupted; go on with --init-from resume")

    def test_interrupted_job_resumes_from_its_last_checkpoint(self):
        """Ctrl-C reaches mpirun, which leaves the ranks a second or two."""
        job = self.start_job("ctrl-c", "2 --max-iters 100000 --checkpoint-interval 5")
        ranks = self.ranks(job, 2)
        job.wait_for(lambda: self.newest("ctrl-c", 1))
        job.process.send_signal(signal.SIGINT)
        self.ends_soon(job, ranks, ANY_ERROR)
        self.go_on("ctrl-c", 2, least=5)

    # ---- what is refused

    def test_work_that_cannot_be_divided_is_refused(self):
        self.job("undivided", "3", WRONG_USAGE, "give 3 or a multiple of it")
        self.job("undivided", "3 --gradient-accumulation-steps 1", WRONG_USAGE, "give 3 or a multiple of it")
        # ranks would send each other their shares
        self.job("undivided", "2 --dtype bf16 --master bf16 --shard-optimizer", FAILED, "master = bf16 and shard_optimizer")
        self.assertFalse(self.has("undivided"))

    def refused_by_rank(self, first, second, says, status=FAILED):
        """Two commands in one job, which soon ends."""
        job = self.start(BY_RANK, *self.command(*first), ",", *self.command(*second), ranks=2)
        self.ends_soon(job, [], status, says)
        return job.said

    def unlike(self, says, *more, program="hc_train", status=FAILED):
        """Two ranks that differ in this."""
        return self.refused_by_rank(self.training("unlike"), [program, *self.training("unlike", *more)[1:]], says, status)

    def test_ranks_that_differ_are_refused(self):
        self.unlike(["rank 1 on ", "'learning_rate = 0.02' instead of 'learning_rate = 0.01'"], "--learning-rate", "0.02")
        self.copy("data", "other")
        self.put("other/train.bin", self.tokens(True))
        self.unlike("train.bin is not the same", "--data-dir", "@other")
        self.job("ends", "2 --max-iters 2")
        ends = ("hc_train", "--init-from", "resume", "--out-dir", "@ends", "--device", "pocl")
        self.refused_by_rank([*ends, "--max-iters", "1"], ends, "max_iters given now")
        program = self.put("another", (programs.BUILD / "hc_train").read_bytes() + b"\0")
        program.chmod(0o755)
        self.unlike("the program is not the same", program=str(program))
        self.assertFalse(self.has("unlike"))

    def test_missing_data_on_one_host_is_named(self):
        """An error of one rank is printed once, with its name."""
        said = self.unlike(["hc_train: rank 1 on ", "nowhere/train.bin does not exist"], "--data-dir", "@nowhere")
        self.assertEqual(said.count("hc_train: "), 1, said)
        self.unlike("rank 1 on ", "--n-embd", "many", status=WRONG_USAGE)

    def test_failing_set_up_ends_the_job(self):
        """A rank whose set-up fails while the others go on to talk to it."""
        for command in (["hc_bench", "--gradient-accumulation-steps", "2"], self.training("set-up")):
            said = self.refused_by_rank(command, [*command, "--device", "nonsense"], "rank 1 on ")
            self.assertEqual(said.count("no OpenCL device"), 1, said)

    def test_time_ends_the_job(self):
        """The clock of rank 0 counts: all have the same rates, or the checkpoint would be refused, and stop after the same step."""
        self.job("timed", "2 --max-iters 1000 --max-seconds 2 --eval-iters 2")
        *_, last, evaluated = self.records("timed/metrics.jsonl")
        self.assertGreaterEqual(last["time"], 2)
        self.assertEqual((evaluated["iter"], self.newest("timed")), (last["iter"] + 1, last["iter"] + 1))

    # ---- what a user sees

    def test_one_rank_speaks(self):
        said = self.job("spoken", "4 --profile --eval-iters 2").said
        for text, count in [("device   ", 1), ("ranks    4, hosts 1, micro-batches of each rank 1", 1), ("model    ", 1),
                            ("iter 0      validation loss", 1), ("saved    ", 2), ("computation; ", 1), ("trace    ", 1)]:
            self.assertEqual(said.count(text), count, f"'{text}' in {said}")
        self.assertEqual(self.call("hc_train", "--help", ranks=3).printed.count(b"shard-optimizer"), 1)
        self.assertEqual(self.job("wrong", "3 --n-layre 3", WRONG_USAGE, "hc_train: ").said.count("n-layre"), 1)


if __name__ == "__main__":
    programs.main()
