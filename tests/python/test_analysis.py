"""hc_analyze on the records of runs, without a device: its numbers, files and page, and what it says of bad input. What it measures of checkpoints is held to
numpy by test_analysis_numpy.py, the page in a browser by check_report.py."""
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

import small
from hctrain import programs
from hctrain.analysis import command, comparison, inputs, kinds, main, page, plots

STEPS = 250
CONFIG = {"residual": "shc", "n_streams": 4, "n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 8, "vocab_size": 256}


class Case(small.InFolder):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "out"

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def make_run(self, name, settings=None):
        """Steps with losses 5 - i / 100, evaluations at 0 and 100."""
        lines = []
        for i in range(STEPS):
            if i % 100 == 0:
                lines.append({"iter": i, "train_loss": 4.5, "val_loss": 3.25 if i == 100 else 3.5, "time": 1})
            loss = 5 - i / 100 if i + 1 < STEPS else None  # the last one has no targets
            lines.append({"iter": i, "loss": loss, "grad_norm": 12.5 if i == 7 else 0.5, "tokens_per_sec": 100})
        self.write(f"{name}/metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines) + '{"iter":250,"lo')  # it goes on
        if settings is not None:
            self.write(f"{name}/settings.conf", settings)

    def make_seed(self, name, settings, loss, last=9):
        """A run whose last validation loss, and lowest one but for 0.5, is at iteration `last`."""
        self.write(f"{name}/settings.conf", settings)
        self.write(f"{name}/metrics.jsonl", f'{{"iter":{last - 1},"val_loss":{loss - 0.5}}}\n{{"iter":{last},"val_loss":{loss}}}\n')

    def call(self, *words, status=0):
        """hc_analyze in this process: what it says."""
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(main(["--out", str(self.out), *map(str, words)]), status, said.getvalue())
        return said.getvalue()

    def read(self, *names, baselines=("rc", "identity")):
        """The analysis of runs, without files, and its tables."""
        runs = inputs.read_inputs([str(self.folder / name) for name in names], inputs.Measuring(None), False)
        found = {"samples": 0, "runs": runs, "comparison": comparison.compare(runs, list(baselines))}
        return found, page.tables(found)


class Records(Case):
    def test_numbers_tables_and_plots(self):
        self.make_run("one")
        self.make_run("two")
        self.write("one/eval-wiki.json", '{"word_perplexity": 123.456}')
        self.call(self.folder / "one", f"{self.folder}/two/")
        for name in ("loss.svg", "loss-narrow.svg", "loss.png", "gradient_norm.svg"):
            self.assertTrue((self.out / "figures" / name).exists(), name)
        csv, text = (self.out / "figures/loss.csv").read_text(), (self.out / "report.html").read_text()
        run = json.loads((self.out / "analysis.json").read_text())["runs"][1]
        self.assertEqual(run["name"], "two")
        self.assertEqual(run["record"]["final"]["iter"], STEPS)
        self.assertAlmostEqual(run["record"]["final"]["train_loss"], 5 - (50 + 248) / 200, places=9)  # of the last 200, of which the last one has no loss
        self.assertEqual((run["record"]["final"]["best_val_loss"], run["record"]["final"]["val_loss"]), (3.25, 3.5))
        self.assertIn("run,split,iteration,loss\none,train,0,5\none,train,1,4.99\n", csv)
        self.assertIn("two,val,100,3.25\n", csv)
        for part in ("one: largest 12.5, above 5 in 1 steps", '<th><button type="button">wiki</button></th>', "<td>123.46</td>",
                     '<source media="(max-width: 40rem)" width="350"', "<td>two</td>"):
            self.assertIn(part, text)
        self.assertNotIn("http-equiv", text)

    def test_damage_is_named(self):
        self.write("bad/metrics.jsonl", '{"iter":0,"loss":1}\nnonsense\n')
        self.assertIn("bad/metrics.jsonl: lines that cannot be read are left out: 1; the first is line 2", self.call(self.folder / "bad"))
        self.write("bad/metrics.jsonl", '{"loss":1}\n')
        self.assertIn("nothing to show: looked for lines of metrics.jsonl", self.call(self.folder / "bad", status=1))
        self.write("bad/eval-x.json", "{")
        self.assertIn("bad/eval-x.json: this is not JSON", self.call(self.folder / "bad", status=1))
        self.assertIn("nowhere", self.call(self.folder / "nowhere", status=1))
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as end:
            main([str(self.folder / "bad")])
        self.assertEqual(end.exception.code, 2)

    def test_names_cannot_write_the_page(self):
        self.make_run("<b>'$x_\u202e", "seed = 1\n# device: cpu-x <b>\n")
        self.call(self.folder / "<b>'$x_\u202e")
        text = (self.out / "report.html").read_text()
        self.assertNotIn("<b>", text)
        self.assertIn("<td>&lt;b&gt;&#x27;$x_\\xe2\\x80\\xae</td>", text)
        self.assertIn('<td class="text">cpu-x &lt;b&gt;</td>', text)

    def test_numbers_that_are_none(self):
        """Of a hostile file no number is infinite, and none ends the program."""
        self.write("odd/metrics.jsonl", '{"iter":0,"loss":1e999}\n{"iter":0,"loss":NaN}\n{"iter":1,"loss":1e308}\n{"iter":2,"loss":2}\n{"iter":3,"val_loss":3}\n')
        self.write("odd/eval-a.json", '{"word_perplexity": 1e999, "bits_per_byte": true, "results": 3}')
        self.assertIn("left out: 2", self.call(self.folder / "odd"))
        json.loads((self.out / "analysis.json").read_text())

    def test_odd_records(self):
        """What others may have written ends the report by a sentence, or is left out."""
        self.make_run("odd", 'learning_rate = 1e999\nresidual = "a\\x1b[31m"\n')
        self.write("odd/eval-t.json", '{"results":{"t\\u001b":{"acc,none":0.5,"acc_stderr,none":NaN}}}')
        self.write("odd/eval-old.json", '{"task": "piqa", "acc": 0.25}')
        self.write("odd/h_statistics.jsonl", '{"iter":0,"stream_cosine":0.5}\n{"iter":1,"stream_cosine":0.5}\n{"iter":2,"stream_cosine":[]}\n')
        self.assertIn("left out: 1", self.call(self.folder / "odd"))
        text = (self.out / "report.html").read_text()
        self.assertIn("<td>0.5000</td>", text)
        self.assertIn("<td>0.2500</td>", text)
        self.assertNotIn("\x1b", text)
        for bad in ("[" * 5000 + "]" * 5000, '{"residual": ' + "[" * 900 + "]" * 900 + "}"):
            self.write("deep/ckpt-1/config.json", bad)
            self.assertIn("hc_analyze: ", self.call(self.folder / "deep", status=1))
        self.write("huge/metrics.jsonl", "".join(f'{{"iter":{i},"loss":1e308}}\n' for i in range(9)))
        self.write("only/h_statistics.jsonl", '{"iter":0,"row_max_median":1}\n{"iter":1,"row_max_median":1}\n')
        self.call(self.folder / "huge", self.folder / "only")

    def test_words(self):
        """Runs stand before options or behind; empty names are refused."""
        self.make_run("a")
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(main([str(self.folder / "a"), "--out", str(self.out), str(self.folder / "a")]), 0)
            for words in (["--out", "", "x"], ["--out", "x", ""], ["--out", "x", "--watch", "9" * 30, "y"], ["--out", "x", "y", "--n\x1b"]):
                with self.assertRaises(SystemExit):
                    main(words)
        self.assertNotIn("\x1b", said.getvalue())

    def test_a_run_that_has_not_begun_is_a_row(self):
        self.write("begun/settings.conf", "seed = 1\n")
        _, text = self.read("begun")
        self.assertIn("<td>begun</td>", text)

    def test_data_are_asked_for(self):
        """Checkpoints with streams have matrices that only data can measure; without streams, or without a checkpoint, there is nothing to say."""
        words = "H_res was not measured: give --data-dir DIR with the token files of these runs\n"
        self.make_run("lacking")
        self.assertNotIn(words, self.call(self.folder / "lacking"))
        for config, lacks in (({**CONFIG, "residual": "rc", "n_streams": 1}, False), (CONFIG, True)):
            self.write("lacking/ckpt-9/config.json", json.dumps(config))
            self.assertEqual(words in self.call(self.folder / "lacking"), lacks)


class Folders(Case):
    def test_a_folder_of_runs_stands_for_them(self):
        """Numbers in their names count by value; where there is nothing, what was looked for."""
        (self.folder / "all/other").mkdir(parents=True)
        self.make_run("all/shc-10")
        self.make_run("all/shc-2")
        found, text = self.read("all")
        self.assertEqual([run["name"] for run in found["runs"]], ["shc-2", "shc-10"])
        self.assertNotIn("<td>other</td>", text)
        with self.assertRaisesRegex(inputs.Error, "all/other: no run is here: neither this folder nor one in it has metrics.jsonl"):
            self.read("all/other")

    def test_evaluations_are_a_run(self):
        """A folder of evaluations alone is a run, unless runs are in it."""
        self.write("documents/eval-wiki.json", '{"word_perplexity": 123.456}')
        self.assertIn("<td>documents</td><td></td><td>123.46</td>", self.read("documents")[1])
        self.make_run("documents/inner")
        text = self.read("documents")[1]
        self.assertIn("<td>inner</td>", text)
        self.assertNotIn("<td>documents</td>", text)

    def test_tasks_have_a_table(self):
        """Columns are those that some run has numbers for, in the order of names."""
        for run, name in (("run-10", "ptb"), ("run-2", "wiki-9"), ("run-10", "wiki-10")):
            self.write(f"tasks/{run}/eval-{name}_2026-11-28T16-35-12.5.json", json.dumps({"results": {name: {"alias": name, "acc,none": 0.5}}}))
        self.write("tasks/run-2/eval-some.json", '{"results": {"PIQA": {"acc,none": 0.625, "acc_stderr,none": 0.03125, "acc_norm,none": 0.75}, "odd": 1}}')
        self.write("tasks/run-10/eval-words.json", '{"results": {"words": {"acc,none": 0.5, "perplexity,none": 12.25, "perplexity_stderr,none": "N/A"}}}')
        text = self.read("tasks")[1]
        heads = re.findall(r">([^<>]+)</button>", text[text.index("<h2>Downstream tasks</h2>"):])
        self.assertEqual(heads, ["run", "variant", "PIQA", "&plusmn;", "acc_norm", "ptb", "wiki-9", "wiki-10", "words", "perplexity"])
        self.assertIn("<td>run-2</td><td></td><td>0.6250</td><td>0.0312</td><td>0.7500</td><td></td><td>0.5000</td>", text)
        self.assertNotIn("<h2>Perplexity of documents</h2>", text)

    def test_watching_begins_before_the_run(self):
        """--watch waits for runs whose folders are not there or are empty, and for what will be in them."""
        (self.folder / "empty").mkdir()
        self.assertIn("new", self.call(self.folder / "new", status=1))
        process = subprocess.Popen([sys.executable, programs.path("hc_analyze"), "--out", self.out, "--watch", "1", self.folder / "new", self.folder / "empty"],
                                   stderr=subprocess.PIPE, text=True)
        report = self.out / "report.html"

        def wait_for(part):
            until = time.monotonic() + 120
            while not (report.exists() and part in report.read_text()):
                self.assertLess(time.monotonic(), until, part)
                time.sleep(0.05)

        wait_for('<meta http-equiv="refresh" content="1">')
        self.write("new/metrics.jsonl", "")
        wait_for("<td>new</td>")
        self.write("new/metrics.jsonl", '{"iter":0,"loss":4.25}\n')
        wait_for("<td>4.2500</td>")
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 0, said)
        self.assertIn("new: it is not there yet", said)
        self.assertIn("empty: no run is here yet", said)
        self.assertNotIn("Traceback", said)


class Kinds(Case):
    def test_repeats_are_of_one_kind(self):
        """Runs that differ in the seed alone, or in when they write what, have one entry in legends."""
        settings = {"a": 'seed = 1\nresidual = "shc"\neval_interval = 100\n', "b": 'seed = 1\nresidual = "rc"\n',
                    "c": 'seed = 2\nresidual = "shc"\neval_interval = 50\nstatistics_interval = 10\n', "d": "", "e": ""}
        for name, text in settings.items():
            self.make_run(name, text)
        runs = self.read(*settings)[0]["runs"]
        self.assertEqual([run["kind"] for run in runs], [0, 1, 0, 3, 4])
        self.assertEqual([kinds.legend(runs, index) for index in range(5)], ["shc (2 runs)", "b", "", "d", "e"])

    def test_data_have_several_paths(self):
        for name, data, loss in (("rc-1", "/dev/..", 3.0), ("rc-2", "/", 3.5), ("rc-3", "/dev", 9.0)):
            self.make_seed(f"paths/{name}", f'residual = "rc"\nseed = {name[-1]}\ndata_dir = "{data}"\n', loss)
        found = self.read("paths")[0]
        self.assertEqual([run["kind"] for run in found["runs"]], [0, 0, 2])
        self.assertAlmostEqual(found["comparison"]["variants"][0]["final"]["half_width"], 12.7062 * 0.25, places=4)

    def test_runs_of_a_sweep_can_be_told_apart(self):
        """Names keep their commas. Kinds of a variant have shades and dashes of their own, and seeds have not. A step without a loss is no part of a mean."""
        lines = '{"iter":0,"loss":5}\n{"iter":248,"loss":null}\n{"iter":249,"loss":4}\n{"iter":250,"val_loss":3.25}\n'
        for name in ("residual=mhc,seed=1", "residual=mhc,seed=2", "residual=mhc,learning_rate=1e-2,seed=1", "residual=rc,seed=1"):
            self.write(f"s/{name}/settings.conf", name.replace(",", "\n").replace("=", " = "))
            self.write(f"s/{name}/metrics.jsonl", lines)
        runs = self.read("s")[0]["runs"]
        self.assertEqual([kinds.style(runs, run).colour for run in runs], ["#15537e", "#a5c8e1", "#a5c8e1", "#888888"])
        self.assertEqual(len({kinds.style(runs, run) for run in runs}), 3)
        self.assertEqual(runs[0]["record"]["final"]["train_loss"], 4.5)
        picture = plots.losses(runs)
        self.assertIn('"residual=mhc,seed=1",val,250,3.25\n', picture.csv())
        last = plots._later_means(kinds.repeats(runs, 0), "evaluations", "val_loss", 250, 0)  # pylint: disable=protected-access
        self.assertEqual(last, ([250.0], [3.25]))  # the last point of the zoomed panel

    def test_means_over_seeds(self):
        """Plots of H_res show means over seeds, in panels with one axis, which is fitted to them."""
        for name, seed, last in (("mhc", 1, 0.97), ("shc", 1, 0.90), ("shc", 2, 0.92)):
            self.make_run(f"h/{name}-{seed}", f'residual = "{name}"\nseed = {seed}\n')
            self.write(f"h/{name}-{seed}/h_statistics.jsonl", '{"iter":0,"row_max_median":1,"stream_cosine":[1,1]}\n'
                       f'{{"iter":10,"row_max_median":{last},"stream_cosine":[1,{last}]}}\n')
        means = kinds.seed_means(self.read("h")[0]["runs"])
        picture = plots.similarity(means)
        self.assertIn("mhc-1,10,1,0.97\nshc (2 runs),0,0,1\n", picture.csv())
        self.assertIn("shc (2 runs),10,1,0.91\n", picture.csv())
        self.assertEqual([round(end, 6) for end in plots._shared_range([0.91, 1.0])], [0.9055, 1.0045])  # pylint: disable=protected-access
        self.assertIn("shc (2 runs): median 0.910", plots.dynamics(means).text)

    def test_every_connection_has_a_colour(self):
        listed = subprocess.run([programs.path("hc_train"), "--list-residuals"], stdout=subprocess.PIPE, text=True, check=True, env=programs.environment()).stdout
        self.assertEqual(list(kinds.COLOURS), [line.split()[0] for line in listed.splitlines()])
        self.assertEqual(len(set(kinds.COLOURS.values())), len(kinds.COLOURS))
        settings = {name.strip() for text in re.findall(r"settings: (.*)", listed) for name in text.split(",")}
        self.assertLessEqual(settings, set(comparison.OF_CONNECTION))


class Comparison(Case):
    def test_variants_are_compared_at_the_same_seed(self):
        """Differences of 0.01 to 0.03 between runs of the same seed have a deviation of 0.01 and, at t = 4.3027, an interval of 0.0248, though seeds are 0.1
        apart. Of two kinds of rc the one that has as large a rate is the baseline."""
        cases = [("rc-1", "rc", 1, 1, 3.1), ("rc-2", "rc", 1, 2, 3.2), ("rc-3", "rc", 1, 3, 3.3), ("fast", "rc", 2, 1, 9.0), ("shc-3", "shc", 1, 3, 3.33),
                 ("shc-1", "shc", 1, 1, 3.11), ("shc-2", "shc", 1, 2, 3.22), ("copy", "shc", 1, 2, 7.0), ("young", "shc", 1, 4, 7.0), ("hc-1", "hc", 1, 1, 3.0),
                 ("mhc-5", "mhc", 1, 5, 3.0)]
        for name, residual, rate, seed, loss in cases:
            self.make_seed(name, f'residual = "{residual}"\nlr = {rate}\nseed = {seed}\n', loss, 5 if name == "young" else 9)
        found, text = self.read(*(case[0] for case in cases))
        variants = found["comparison"]["variants"]
        shc, to_rc = variants[2], variants[2]["differences"]["rc"]
        self.assertEqual((len(shc["left_out"]), to_rc["pairs"]), (2, 3))
        for estimate, mean, half_width in ((shc["final"], 3.22, 0.273257), (to_rc["final"], 0.02, 0.024841), (to_rc["best"], 0.02, 0.024841)):
            self.assertAlmostEqual(estimate["mean"], mean, places=6)
            self.assertAlmostEqual(estimate["half_width"], half_width, places=5)
        self.assertAlmostEqual(variants[3]["differences"]["rc"]["final"]["mean"], -0.1)
        self.assertNotIn("half_width", variants[3]["differences"]["rc"]["final"])
        self.assertEqual(variants[0]["differences"], {})
        for part in ("<td>3.2200 &plusmn; 0.2733</td><td>2.7200</td><td>+0.0200 &plusmn; 0.0248</td>", "<td>-0.1000 (one pair)</td>",
                     "copy is left out: another run has its seed. young is left out: its last evaluation is earlier.",
                     "<tr><td>rc-1</td>", "<tr><td>fast</td>",  # two kinds of rc are told apart by their first runs
                     "mhc has no difference to rc: no runs of the same seed.", "Too few pairs: one alone has no interval.", "Evaluation batches of these runs depend on the seed"):
            self.assertIn(part, text)
        self.assertIn("--baselines: 'nonsense' is not a residual connection", self.call("--baselines", "hc, nonsense", self.folder / "rc-1", status=1))

    def test_baselines_are_of_runs_that_compare(self):
        """They may have other settings of the residual connection and of what does not change training, and another learning rate, which the report says; with
        others that differ there is no number, and the report says why."""
        cases = [("n_layer = 24\nn_streams = 4\nlog_interval = 1\nsinkhorn_iters = 20\n", "n_layer = 24\nn_streams = 2\nlog_interval = 5\nsinkhorn_iters = 5\n", None, True),
                 ('learning_rate = 0.004\ndtype = "bf16"\n', 'learning_rate = 0.016\ndtype = "fp32"\n',
                  "hc is compared with rc although a has another learning_rate (0.004 instead of 0.016), another dtype (bf16 instead of fp32).", True),
                 ("n_layer = 12\n", "n_layer = 24\n", "hc has no difference to rc: a has another n_layer (12 instead of 24).", False),
                 ("", '<b> = "<i>"\n', "hc has no difference to rc: a has another &lt;b&gt; (none instead of &lt;i&gt;).", False),
                 ('eval_batches = "auto"\neval_iters = 20\n', 'eval_batches = "auto"\neval_iters = 40\n', "another eval_iters (20 instead of 40)", False),
                 ('eval_batches = "whole"\neval_iters = 20\n', 'eval_batches = "whole"\neval_iters = 40\n', None, True),
                 ('eval_batches = "by_seed"\n', "", None, True),
                 ('data_dir = "/nowhere/a"\n', 'data_dir = "/nowhere/b"\n', "another data_dir (/nowhere/a", False),
                 ('data_dir = "/nowhere/a"\n', 'data_dir = "/nowhere/a"\n', None, True),
                 ('data_dir = "/"\n', 'data_dir = "/dev/.."\n', None, True)]
        for rc, hc, says, has_number in cases:
            self.make_seed("pair/a", f'residual = "rc"\nseed = 1\n{rc}', 3.0)
            self.make_seed("pair/b", f'residual = "hc"\nseed = 1\n{hc}', 4.0)
            text = self.read("pair")[1]
            self.assertEqual("<td>+1.0000 (one pair)</td>" in text, has_number, (rc, hc))
            if says:
                self.assertIn(says, text)
            else:
                self.assertNotRegex(text, "has no difference to|is compared with")

    def test_time_budgets(self):
        """Runs that the clock ends compare at their ends, whatever the iterations; one whose time is not up does not."""
        for name, residual, last, seconds, loss in (("a", "rc", 9, 60.5, 3.0), ("b", "hc", 7, 60.25, 4.0), ("c", "mhc", 8, 50, 4.0)):
            self.write(f"{name}/settings.conf", f'residual = "{residual}"\nseed = 1\nmax_seconds = 60\n')
            self.write(f"{name}/metrics.jsonl", f'{{"iter":{last},"val_loss":{loss},"time":{seconds},"val_bits_per_byte":1.125}}\n')
        text = self.read("a", "b", "c")[1]
        for part in ("<td>+1.0000 (one pair)</td>", "mhc has no difference to rc: its last evaluation is at another time", "<td>1.1250</td>"):
            self.assertIn(part, text)

    def test_evaluation_batches(self):
        """Runs whose batches do not depend on the seed are not said to, and are not compared with those of others."""
        self.make_seed("fixed-1", 'residual = "rc"\nseed = 1\neval_batches = "whole"\n', 3.0)
        self.make_seed("fixed-2", 'residual = "hc"\nseed = 1\neval_batches = "whole"\n', 4.0)
        self.make_seed("by-seed", 'residual = "hc"\nseed = 1\n', 4.0)
        text = self.read("fixed-1", "fixed-2")[1]
        self.assertIn("<td>+1.0000 (one pair)</td>", text)
        self.assertNotIn("depend on the seed", text)
        text = self.read("fixed-1", "by-seed")[1]
        self.assertIn("depend on the seed", text)
        self.assertNotIn("one pair", text)

    def test_baselines_are_of_the_same_size(self):
        """With baselines of two sizes, each variant is compared with the one of its size, and with none where it has none."""
        self.make_seed("sizes/rc-M", 'residual = "rc"\nseed = 1\nn_layer = 12\nlearning_rate = 1\n', 3.0)
        self.make_seed("sizes/hc-L", 'residual = "hc"\nseed = 1\nn_layer = 24\nlearning_rate = 1\n', 2.0)
        self.make_seed("sizes/hc-M", 'residual = "hc"\nseed = 1\nn_layer = 12\nlearning_rate = 2\n', 2.5)
        text = self.read("sizes")[1]
        self.assertIn("<td>-0.5000 (one pair)</td>", text)
        self.assertNotIn("<td>-1.0000 (one pair)</td>", text)
        self.assertIn("hc-L has no difference to rc: rc-M has another n_layer (12 instead of 24).", text)
        self.make_seed("sizes/rc-L", 'residual = "rc"\nseed = 1\nn_layer = 24\nlearning_rate = 3\n', 2.9)
        text = self.read("sizes")[1]
        self.assertIn("<td>-0.5000 (one pair)</td>", text)
        self.assertIn("<td>-0.9000 (one pair)</td>", text)
        self.assertIn("hc-L is compared with rc although rc-L has another learning_rate (3 instead of 1).", text)


class Pictures(Case):
    def test_of_a_benchmark(self):
        self.make_run("one")
        cases = [{"residual": name, "n_streams": n, "tokens_per_second": 100.5 / n, "auxiliary": 10 * n} for name in ("shc", "new") for n in (4, 2)]
        self.write("bench.json", json.dumps({"cases": cases}))
        self.call("--bench", self.folder / "bench.json", self.folder / "one")
        self.assertEqual((self.out / "figures/throughput.csv").read_text(), "residual,n_streams,tokens_per_second\nshc,2,50.25\nshc,4,25.125\nnew,2,50.25\nnew,4,25.125\n")
        self.assertIn('<section id="auxiliary">', (self.out / "report.html").read_text())
        os.mkfifo(self.folder / "pipe")
        self.assertIn("pipe is not a file", self.call("--bench", self.folder / "pipe", self.folder / "one", status=1))
        self.write("bench.json", "{}")
        self.assertIn("bench.json has no cases", self.call("--bench", self.folder / "bench.json", self.folder / "one", status=1))

    def test_without_matplotlib_there_are_numbers(self):
        self.make_run("one")
        hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "matplotlib"}
        sys.modules["matplotlib"] = None
        try:
            self.assertIn("python3-matplotlib", self.call(self.folder / "one", status=1))
        finally:
            del sys.modules["matplotlib"]
            sys.modules.update(hidden)
        self.assertTrue((self.out / "analysis.json").exists())

    def test_curves_of_many_points_are_thinned(self):
        xs, ys = plots._thinned([(i, float(i % 2)) for i in range(6001)])  # pylint: disable=protected-access
        self.assertEqual((len(xs), xs[0], ys[1]), (546, 5.0, 6 / 11))


class Command(unittest.TestCase):
    def test_help_and_version(self):
        done = subprocess.run([sys.executable, programs.path("hc_analyze"), "--help"], stdout=subprocess.PIPE, text=True, check=True)
        self.assertIn("--all-checkpoints", done.stdout)
        self.assertRegex(command.version(), r"^\d+\.\d+\.\d+$")


if __name__ == "__main__":
    unittest.main()
