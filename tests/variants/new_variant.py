"""A new residual variant, frame, optimizer, norm, kind of positions, activation function or MLP is one file and its rows, as CONTRIBUTING.md
says: adds a mock of each to a copy of the sources, builds that, and uses it in the programs. Nothing else is edited. CMAKE in the environment is
cmake."""
import os
import shutil
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCES / "tests/support"))
import programs
from programs import FAILED, WRONG_USAGE

LEAVES = """
static float mock_start(int64_t index, const struct residual_init *place) {
    (void)index;
    return (float)place->settings->values[residual_setting_find("mock_start")].real;
}

static const struct residual_leaf mock_leaves[] = {LOGIT_LEAVES(one, mock_start)};

"""

ROW = """    {.name = "mock",
     .summary = "a step towards the mean of the streams",
     .source = "nobody, for tests",
     .streams = STREAMS(2, 2) | STREAMS(4, 4),
     .invariants = INVARIANTS_DOUBLY_STOCHASTIC,
     .leaves = mock_leaves,
     .settings = {{"mock_largest", RESIDUAL_FLOAT, "0.5", -1, 1, "mock: the largest strength", "MOCK_LARGEST", false},
                  {"mock_start", RESIDUAL_FLOAT, "-1", -9, 9, "mock: b_res at the start", NULL, false}}},
"""

FRAME_ROW = """    {.name = "mock_alone",
     .summary = "no residual connection: each branch reads what the one before it wrote",
     .source = "nobody, for tests",
     .frame = "mock",
     .streams = STREAMS(1, 1)},
"""

REFERENCE = """static void mock(const struct reference_map *map, const double *z, double *res) {
    const size_t n = map->streams;
    const double largest = map->settings->values[residual_setting_find("mock_largest")].real;
    const double s = largest * logistic(scalar(map, "alpha_res") * z[0] + leaf(map, "b_res")[0]);
    for (size_t k = 0; k < n * n; k++) {
        res[k] = s / (double)n + (k / n == k % n ? 1.0 - s : 0.0);
    }
}

"""

STEP = """/* The sign of a decaying sum of gradients; state 0 has the sum. */
static void mock_sign(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
                      struct optimizer_range range) {
    const struct parameters *parameters = &gpt->parameters;
    struct operations *operations = &gpt->operations;
    const size_t count = range.count, lowp = parameters->weights_lowp == parameters->weights ? 0 : count;
    RUN_ELEMENTS(mock_sign, count, operations->policy.arena_vector, ARG_IN_OUT(parameters->weights, count),
                 ARG_OUT(parameters->weights_lowp, lowp), ARG_IN(parameters->gradients, count),
                 ARG_IN_OUT(parameters->states[0], count), ARG_U64(range.first), ARG_U64(range.states_first[0]),
                 ARG_U64(count), ARG_F32((float)optimizer_rate(settings, iteration)),
                 ARG_F32((float)settings->mock_memory), ARG_IN(gpt->gradient_norm, 1));
}

static void mock_options(struct optimizer_settings *settings, struct option_table *table) {
    const struct option_spec rows[] = {
        FLOAT("mock_memory", &settings->mock_memory, "0.5", 0, 0.999, "mock_sign: what stays of the sum"),
    };
    options_append(table, rows, COUNT(rows));
}

static const struct optimizer optimizer_mock_sign = {
    .name = "mock_sign", .updates = "all weights", .states = {"mock_sum"}, .options = mock_options, .step = mock_sign};

"""

MODEL = ("--n-layer", "2", "--n-head", "2", "--n-embd", "16", "--block-size", "32", "--batch-size", "4", "--device", "pocl")
TARGETS = "hc_train hc_eval hc_sample hc_export hc_bench hc_probe hc_prepare test_operations test_residual".split()


def insert(tree, file, *pairs):
    """Puts each text before its marker, which stands in the file once."""
    text = (tree / file).read_text()
    for marker, addition in pairs:
        assert text.count(marker) == 1, f"{file}: '{marker}' stands there {text.count(marker)} times"
        text = text.replace(marker, addition + marker)
    (tree / file).write_text(text)


def derive(tree, new, known, old_text, new_text):
    """A kernel file that is another one but for a text."""
    text = (tree / "cl" / known).read_text()
    assert old_text in text
    (tree / "cl" / new).write_text(text.replace(old_text, new_text))


def copy_sources(tree):
    for folder in ("cl", "src", "runtime", "tests", "cmake", "configs"):
        shutil.copytree(SOURCES / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(SOURCES / name, tree)
    for name in ("hc_mock.cl", "mock_sign.cl", "activation_mock_silu.cl"):
        shutil.copy(SOURCES / "tests/variants/mock" / name, tree / "cl")
    shutil.copy(SOURCES / "tests/variants/frame_mock.c", tree / "src/model")


def add_all(tree):
    insert(tree, "src/variants/residual.c", ("static const struct residual_variant variants[]", LEAVES), ("};\n#define VARIANTS", FRAME_ROW + ROW))
    insert(tree, "tests/support/reference_residual.c", ("/* Every variant:", REFERENCE), ('{"identity", .matrix = identity}', '{"mock", .matrix = mock}, '))
    insert(tree, "src/model/frame.h", ("    FRAME(plain)\n", "    FRAME(mock) \\\n"))
    insert(tree, "src/operations/kernels.h", ("};\n\n/* ---- attention */", "    struct kernel mock_sign;\n"))
    insert(tree, "src/model/optimizer_settings.h", ("    double grad_clip;", "    double mock_memory;\n"))
    insert(tree, "src/model/optimizer.c", ("#include <string.h>", '#include "src/operations/kernels.h"\n'), ("/* ---- the table */", STEP),
           ("};\n\nconst struct optimizer *optimizer_at", ", &optimizer_mock_sign"))
    derive(tree, "norm_mock.cl", "norm_layer.cl", "CHANNELS + NORM_EPSILON)", "CHANNELS + 0.1f)")
    derive(tree, "position_mock_back.cl", "position_rope.cl", "backward ?", "!backward ?")
    insert(tree, "src/operations/kernels.c",
           ("};\n\nstatic struct kernel *kernel_of(",
            '    {.file = "mock_sign.cl", .constants = {VEC_ARENA, ACT}, .kernels = {KERNEL(mock_sign)}},\n'),
           ("};\nstatic const char *const positions[]", ', {"mock", true, 1e-5}'),
           ("};\nstatic const struct {\n    const char *activation;", ', "mock_back"'),
           ("};\nstatic const char *const activations[]", ', {"mock_silu", true}'),
           ("};\n\nbool norm_has_bias", ', "mock_silu"'))
    insert(tree, "src/operations/policy.h", ('"\n#define POSITION_WORDS', "|mocknorm"), ('"\n#define MLP_WORDS', "|mock_turn"),
           ('"\n#define ACTIVATION_WORDS', "|mock_glu"), ('"\nenum norm', "|mock_silu"))


def compare():
    """bench/compare.py with the hc_bench that knows the mocks."""
    return [*programs.COMPARE[:2], "--hc-bench", str(programs.BUILD / "hc_bench")]


class NewVariant(programs.Case):
    @classmethod
    def begin(cls):
        """Builds without optimising, which takes a third of the time; from here on programs are those with the mocks."""
        cmake, tree = os.environ.get("CMAKE", "cmake"), cls.path("hctrain")
        tree.mkdir()
        copy_sources(tree)
        add_all(tree)
        programs.BUILD = cls.path("build")
        os.environ.update(HCTRAIN_PROGRAMS=str(programs.BUILD), PYTHONPATH=str(tree / "src/python"))  # for hc_analyze
        cls.made(cmake, "-S", tree, "-B", programs.BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O0")
        cls.made(cmake, "--build", programs.BUILD, "--target", *TARGETS)
        cls.put("text.txt", "abcabdabe" * 2000)
        super().begin()

    def says(self, *words, has=(), seconds=600, **setup):
        """What a program printed and said, which has these texts."""
        run = self.call(*words, seconds=seconds, **setup)
        text = run.printed.decode(errors="replace") + run.said
        for part in has:
            self.assertIn(part, text)
        return text

    def train_model(self, run, *more, **setup):
        return self.says("hc_train", "--data-dir", "@data", "--out-dir", f"@{run}", "--eval-iters", "0", "--checkpoint-interval", "10", *more, **setup)

    def losses(self, run):
        """They fall."""
        losses = [line["loss"] for line in self.metrics(run) if "loss" in line]
        self.assertLess(losses[-1], losses[0], run)
        return losses

    def test_one_row_of_the_table_and_one_reference(self):
        tests = programs.BUILD / "tests"
        self.says(str(tests / "test_residual"))
        self.says(str(tests / "test_operations"), "--device", "pocl", "--filter", "(mock", has=[
            "map (mock S=2)", "map (mock S=4)", "projections (mock S=4)", "5 cases, 0 failed"])

    def test_words(self):
        [line] = [line for line in self.says("hc_train", "--list-residuals").splitlines() if line.split()[0] == "mock"]
        for part in ("2 or 4", "exact row sums, column sums, spectral norms, signs; settings: mock_largest, mock_start"):
            self.assertIn(part, line)
        self.says("hc_train", "--help", has=[", mock;", "mock: the largest strength", "adamw, muon, mock_sign;", "mock_sign: of all weights", "mock-memory",
                                             "mocknorm", "mock_silu", "mock_glu", "mock_turn"])
        self.train_model("no", "--residual", "mock", "--n-streams", "3", *MODEL, status=WRONG_USAGE, has=["n_streams = 3: 'mock' needs 2 or 4 streams"])
        self.says(*compare(), "mock:3", *MODEL, status=WRONG_USAGE, has=["'mock' needs 2 or 4 streams"])

    def test_variant(self):
        """20 iterations, and on to 24; evaluation, sampling, export, analysis, bench."""
        more = ("--eval-iters", "2", "--eval-interval", "10", "--statistics-interval", "5")
        said = self.train_model("run", *more, "--residual", "mock", "--n-streams", "2", "--mock-largest", "0.25", "--mock-start", "1.5", "--max-iters", "20",
                                *MODEL)
        self.assertNotIn("exact", said)  # an invariant that holds
        config = self.json("run/ckpt-20/config.json")
        self.assertEqual([config[name] for name in ("residual", "mock_largest", "mock_start")], ["mock", 0.25, 1.5])
        self.resume("run", "--mock-largest", "0.5", "--device", "pocl", status=FAILED, says="mock_largest")
        self.resume("run", "--max-iters", "24", "--device", "pocl", seconds=600)
        self.assertGreaterEqual(len(self.losses("run")), 24)
        checkpoint = ("--checkpoint", "@run/ckpt-24")
        self.says("hc_eval", *checkpoint, "--data", "@data", "--device", "pocl")
        self.says("hc_sample", *checkpoint, "--device", "pocl", "--prompt", "ab", "--max-new-tokens", "8")
        self.says("hc_export", *checkpoint, "--out", "@exported", "--format", "torch")
        self.assertTrue(self.has("exported/model.safetensors"))
        self.says(*compare(), "rc,mock:2", "--steps", "1", "--warmup", "1", "--json", "@bench.json", *MODEL, has=["mock"])
        self.says("hc_analyze", "--out", "@analysis", "--bench", "@bench.json", "--data-dir", "@data", "--device", "pocl", "@run")
        self.assertIn("mock,2,", self.text("analysis/figures/throughput.csv"))

    def test_violated_invariants_are_named(self):
        broken = self.train_model("broken", "--residual", "mock", "--n-streams", "2", "--mock-largest", "-0.5", "--statistics-interval", "1",
                                  "--max-iters", "3", *MODEL, has=["spectral norms of H_res are exact with 'mock', but one is 1.",
                                                                   "signs of H_res are exact with 'mock', but one is -0.", " in transformer.h.",
                                                                   " at iteration 0"])
        self.assertEqual(broken.count(" are exact with "), 2, broken)
        self.assertNotIn("row sums of", broken)

    def test_frame(self):
        self.train_model("plain", "--residual", "rc", "--max-iters", "20", *MODEL)
        self.train_model("alone", "--residual", "mock_alone", "--recompute", "layer", "--dtype", "bf16", "--dropout", "0.1", "--max-iters", "20", *MODEL)
        self.assertNotEqual(self.losses("alone"), self.losses("plain"))
        self.resume("alone", "--max-iters", "22", seconds=600)
        self.says("hc_sample", "--checkpoint", "@alone/ckpt-22", "--device", "pocl", "--prompt", "ab", "--max-new-tokens", "8")
        self.says("hc_analyze", "--out", "@analysis_alone", "--data-dir", "@data", "--device", "pocl", "@alone")

    def test_optimizer_norm_positions_and_activations(self):
        mock = ("--optimizer", "mock_sign", "--mock-memory", "0.8")
        self.train_model("adamw", "--max-iters", "20", *MODEL)
        self.train_model("whole", *mock, "--max-iters", "20", *MODEL)
        self.train_model("parts", *mock, "--max-iters", "10", "--lr-decay-iters", "20", *MODEL)
        self.resume("parts", "--max-iters", "20", seconds=600)
        self.assertEqual(self.losses("whole"), self.losses("parts"))
        self.assertNotEqual(self.losses("whole"), self.losses("adamw"))
        for option, word, dtype in (("norm", "mocknorm", "bf16"), ("activation", "mock_silu", "fp32"), ("mlp", "mock_glu", "bf16"),
                                    ("position", "mock_turn", "fp32")):
            self.train_model(word, f"--{option}", word, "--dtype", dtype, "--max-iters", "20", *MODEL)
            self.assertNotEqual(self.losses(word), self.losses("adamw"))
            self.resume(word, "--max-iters", "22", seconds=600)
        self.put_json("only-config/config.json", {"residual": "rc", "n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 9, "block_size": 8,
                                            "activation": "mock_silu"})
        self.says("hc_export", "--checkpoint", "@only-config", "--out", "@none", status=FAILED, has=["which Hugging Face's gpt2 cannot compute"])


if __name__ == "__main__":
    programs.main()
