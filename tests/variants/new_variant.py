"""A new residual variant, frame, optimizer, norm, kind of positions, activation function or MLP is one file and its rows, as CONTRIBUTING.md
says: adds a mock of each to a copy of the sources, builds that, and uses it in the programs. Nothing else is edited.

    new_variant.py SOURCES SCRATCH CMAKE
"""
import json
import os
import shutil
import subprocess
import sys

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


def insert(tree, file, *pairs):
    """Puts each text before its marker, which stands in the file once."""
    path = os.path.join(tree, file)
    with open(path, encoding="utf-8") as opened:
        text = opened.read()
    for marker, addition in pairs:
        assert text.count(marker) == 1, f"{path}: '{marker}' stands there {text.count(marker)} times"
        text = text.replace(marker, addition + marker)
    with open(path, "w", encoding="utf-8") as opened:
        opened.write(text)


def derive(tree, new, known, old_text, new_text):
    """A kernel file that is another one but for a text."""
    with open(os.path.join(tree, "cl", known), encoding="utf-8") as file:
        text = file.read()
    assert old_text in text
    with open(os.path.join(tree, "cl", new), "w", encoding="utf-8") as file:
        file.write(text.replace(old_text, new_text))


def copy_sources(sources, tree):
    for folder in ("cl", "src", "runtime", "tests", "cmake", "configs"):
        shutil.copytree(os.path.join(sources, folder), os.path.join(tree, folder), ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(os.path.join(sources, name), tree)
    mocks = os.path.join(tree, "tests/variants")
    for name in ("hc_mock.cl", "mock_sign.cl", "activation_mock_silu.cl"):
        shutil.copy(os.path.join(mocks, "mock", name), os.path.join(tree, "cl"))
    shutil.copy(os.path.join(mocks, "frame_mock.c"), os.path.join(tree, "src/model"))


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


class Tree:
    def __init__(self, scratch, cmake):
        self.scratch, self.cmake = scratch, cmake
        self.build = os.path.join(scratch, "build")

    def run(self, *words, status=0):
        """What the command printed, on both streams; its exit status must be the one given."""
        done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", cwd=self.scratch, check=False)
        if done.returncode != status:
            sys.exit("%s: exit status %d, not %d\n%s" % (" ".join(map(str, words)), done.returncode, status, done.stdout))
        return done.stdout

    def program(self, name, *words, status=0):
        return self.run(os.path.join(self.build, name), *words, status=status)

    def compile(self, tree):
        """Without optimising, which takes a third of the time."""
        targets = "hc_train hc_eval hc_sample hc_export hc_bench hc_probe hc_prepare test_operations test_residual".split()
        self.run(self.cmake, "-S", tree, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug",
                 "-DCMAKE_C_FLAGS_DEBUG=-O0")
        self.run(self.cmake, "--build", self.build, "--target", *targets)


def compare(tree, *words, status=0):
    return tree.program(sys.executable, os.path.join(sys.argv[1], "bench/compare.py"), "--hc-bench", os.path.join(tree.build, "hc_bench"), *words, status=status)


def expect(text, *parts):
    for part in parts:
        if part not in text:
            sys.exit("'%s' is missing in:\n%s" % (part, text))


def try_reference(tree):
    print("one row of the table, one reference")
    tree.program("tests/test_residual")
    expect(tree.program("tests/test_operations", "--device", "pocl", "--filter", "(mock"), "map (mock S=2)", "map (mock S=4)",
           "projections (mock S=4)", "4 cases, 0 failed")


def try_words(tree):
    print("in words")
    line = [line for line in tree.program("hc_train", "--list-residuals").splitlines() if line.split()[0] == "mock"]
    expect("".join(line), "2 or 4", "exact row sums, column sums, spectral norms, signs; settings: mock_largest, mock_start")
    expect(tree.program("hc_train", "--help"), ", mock;", "mock: the largest strength", "adamw, muon, mock_sign;", "mock_sign: of all weights", "mock-memory")
    wrong = ("--residual", "mock", "--n-streams", "3", "--data-dir", "data", "--out-dir", "no")
    expect(tree.program("hc_train", *wrong, *MODEL, status=2), "n_streams = 3: 'mock' needs 2 or 4 streams")
    expect(compare(tree, "mock:3", *MODEL, status=2), "'mock' needs 2 or 4 streams")


def losses_of(tree, run):
    with open(os.path.join(tree.scratch, run, "metrics.jsonl"), encoding="utf-8") as file:
        return [record["loss"] for record in map(json.loads, file) if "loss" in record]


def try_training(tree):
    print("20 iterations, and on to 24")
    run = ("hc_train", "--data-dir", "data", "--out-dir", "run", "--eval-iters", "2", "--eval-interval", "10",
           "--checkpoint-interval", "10", "--statistics-interval", "5")
    mock = ("--residual", "mock", "--n-streams", "2", "--mock-largest", "0.25", "--mock-start", "1.5")
    if "exact" in tree.program(*run, *mock, "--max-iters", "20", *MODEL):
        sys.exit("an invariant is called violated that holds")
    with open(os.path.join(tree.scratch, "run/ckpt-20/config.json")) as file:
        config = json.load(file)
    assert config["residual"] == "mock" and config["mock_largest"] == 0.25 and config["mock_start"] == 1.5, config
    expect(tree.program(*run, "--init-from", "resume", "--mock-largest", "0.5", "--device", "pocl", status=1), "mock_largest")
    tree.program(*run, "--init-from", "resume", "--max-iters", "24", "--device", "pocl")
    losses = losses_of(tree, "run")
    assert len(losses) >= 24 and losses[-1] < losses[0], losses
    broken = tree.program("hc_train", "--data-dir", "data", "--out-dir", "broken", "--residual", "mock", "--n-streams", "2",
                          "--mock-largest", "-0.5", "--statistics-interval", "1", "--eval-iters", "0", "--max-iters", "3", *MODEL)
    expect(broken, "spectral norms of H_res are exact with 'mock', but one is 1.", "signs of H_res are exact with 'mock', but one is -0.",
           " in transformer.h.", " at iteration 0")
    assert broken.count(" are exact with ") == 2 and "row sums of" not in broken, broken


def try_frame(tree):
    print("another frame")
    run = ("hc_train", "--data-dir", "data", "--eval-iters", "0", "--checkpoint-interval", "10", "--max-iters", "20", *MODEL)
    tree.program(*run, "--residual", "rc", "--out-dir", "plain")
    tree.program(*run, "--residual", "mock_alone", "--out-dir", "alone", "--recompute", "layer", "--dtype", "bf16", "--dropout", "0.1")
    losses = losses_of(tree, "alone")
    assert losses[-1] < losses[0] and losses != losses_of(tree, "plain"), losses
    tree.program("hc_train", "--out-dir", "alone", "--init-from", "resume", "--max-iters", "22")
    tree.program("hc_sample", "--checkpoint", "alone/ckpt-22", "--device", "pocl", "--prompt", "ab", "--max-new-tokens", "8")
    tree.program("hc_analyze", "--out", "analysis_alone", "--data-dir", "data", "--device", "pocl", "alone")


def try_optimizer(tree):
    print("another optimizer")
    run = ("hc_train", "--data-dir", "data", "--eval-iters", "0", "--checkpoint-interval", "10", *MODEL)
    mock = ("--optimizer", "mock_sign", "--mock-memory", "0.8")
    tree.program(*run, *mock, "--out-dir", "whole", "--max-iters", "20")
    tree.program(*run, *mock, "--out-dir", "parts", "--max-iters", "10", "--lr-decay-iters", "20")
    tree.program("hc_train", "--out-dir", "parts", "--init-from", "resume", "--max-iters", "20")
    tree.program(*run, "--out-dir", "adamw", "--max-iters", "20")
    whole = losses_of(tree, "whole")
    assert whole[-1] < whole[0] and whole == losses_of(tree, "parts") and whole != losses_of(tree, "adamw"), whole


def try_norm_and_activation(tree):
    print("another norm, another activation")
    run = ("hc_train", "--data-dir", "data", "--eval-iters", "0", "--max-iters", "20", *MODEL)
    known = losses_of(tree, "adamw")
    for option, word, dtype in (("norm", "mocknorm", "bf16"), ("activation", "mock_silu", "fp32"), ("mlp", "mock_glu", "bf16"),
                                ("position", "mock_turn", "fp32")):
        expect(tree.program("hc_train", "--help"), word)
        tree.program(*run, "--" + option, word, "--dtype", dtype, "--out-dir", word)
        losses = losses_of(tree, word)
        assert losses[-1] < losses[0] and losses != known, losses
        tree.program("hc_train", "--out-dir", word, "--init-from", "resume", "--max-iters", "22")
        shutil.rmtree(os.path.join(tree.scratch, word))
    os.mkdir(os.path.join(tree.scratch, "plain"))
    with open(os.path.join(tree.scratch, "plain/config.json"), "w", encoding="utf-8") as file:
        json.dump({"residual": "rc", "n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 9, "block_size": 8, "activation": "mock_silu"}, file)
    expect(tree.program("hc_export", "--checkpoint", "plain", "--out", "none", status=1), "which Hugging Face's gpt2 cannot compute")


def try_programs(tree):
    print("evaluation, sampling, export, analysis, bench")
    checkpoint = ("--checkpoint", "run/ckpt-24")
    tree.program("hc_eval", *checkpoint, "--data", "data", "--device", "pocl")
    tree.program("hc_sample", *checkpoint, "--device", "pocl", "--prompt", "ab", "--max-new-tokens", "8")
    tree.program("hc_export", *checkpoint, "--out", "exported", "--format", "torch")
    assert os.path.exists(os.path.join(tree.scratch, "exported/model.safetensors"))
    bench = ("--steps", "1", "--warmup", "1", "--json", "bench.json")
    expect(compare(tree, "rc,mock:2", *bench, *MODEL), "mock")
    tree.program("hc_analyze", "--out", "analysis", "--bench", "bench.json", "--data-dir", "data", "--device", "pocl", "run")
    with open(os.path.join(tree.scratch, "analysis/figures/throughput.csv"), encoding="utf-8") as file:
        expect(file.read(), "mock,2,")


def main():
    sources, scratch, cmake = sys.argv[1:4]
    shutil.rmtree(scratch, ignore_errors=True)
    copy = os.path.join(scratch, "hctrain")
    os.makedirs(copy)
    copy_sources(sources, copy)
    add_all(copy)
    tree = Tree(scratch, cmake)
    print("building", flush=True)
    tree.compile(copy)
    with open(os.path.join(scratch, "text.txt"), "w") as file:
        file.write("abcabdabe" * 2000)
    tree.program("hc_prepare", "--out", "data", "text.txt")
    try_reference(tree)
    try_words(tree)
    try_training(tree)
    try_frame(tree)
    try_optimizer(tree)
    try_norm_and_activation(tree)
    try_programs(tree)
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
