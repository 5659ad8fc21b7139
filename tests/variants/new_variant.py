"""A new residual variant is one kernel file and one row: copies the sources, adds the variant `toy` with settings of its own
as a kernel file, a row of src/variants/residual.c and a reference function for the tests, builds that, and uses it in every
program. Nothing else is edited.

    new_variant.py SOURCES SCRATCH CMAKE
"""
import json
import os
import shutil
import subprocess
import sys

LEAVES = """
static float toy_start(int64_t index, const struct residual_place *place) {
    (void)index;
    return (float)place->settings->values[residual_setting_find("toy_start")].real;
}

static const struct residual_leaf toy_leaves[] = {LOGIT_LEAVES(one, toy_start)};

static const struct residual_setting toy_settings[] = {
    {"toy_largest", RESIDUAL_FLOAT, "0.5", -1, 1, "toy: the largest strength", "TOY_LARGEST", false},
    {"toy_start", RESIDUAL_FLOAT, "-1", -9, 9, "toy: b_res at the start", NULL, false},
    {.name = NULL},
};

"""

ROW = """    {.name = "toy",
     .summary = "a step towards the mean of the streams",
     .source = "nobody, for tests",
     .colour = "#123456",
     .streams = STREAMS(2, 2) | STREAMS(4, 4),
     .promises = PROMISES_DOUBLY_STOCHASTIC,
     .leaves = toy_leaves,
     .settings = toy_settings},
"""

REFERENCE = """static void toy(const struct reference_map *map, const double *z, double *res) {
    const size_t n = map->streams;
    const double largest = map->settings->values[residual_setting_find("toy_largest")].real;
    const double s = largest * logistic(scalar(map, "alpha_res") * z[0] + leaf(map, "b_res")[0]);
    for (size_t k = 0; k < n * n; k++) {
        res[k] = s / (double)n + (k / n == k % n ? 1.0 - s : 0.0);
    }
}

"""

MODEL = ("--n-layer", "2", "--n-head", "2", "--n-embd", "16", "--block-size", "32", "--batch-size", "4", "--device", "pocl")


def insert(path, *pairs):
    """Puts each text before its marker, which stands in the file once."""
    with open(path) as file:
        text = file.read()
    for marker, addition in pairs:
        assert text.count(marker) == 1, "%s: '%s' stands there %d times" % (path, marker, text.count(marker))
        text = text.replace(marker, addition + marker)
    with open(path, "w") as file:
        file.write(text)


def add_variant(sources, tree):
    for folder in ("cl", "src", "runtime", "tests", "cmake", "configs"):
        shutil.copytree(os.path.join(sources, folder), os.path.join(tree, folder),
                        ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(os.path.join(sources, name), tree)
    shutil.copy(os.path.join(tree, "tests/variants/toy/hc_toy.cl"), os.path.join(tree, "cl"))
    insert(os.path.join(tree, "src/variants/residual.c"), ("static const struct residual_variant variants[]", LEAVES),
           ("};\n#define VARIANTS", ROW))
    insert(os.path.join(tree, "tests/support/reference_residual.c"), ("/* Every variant:", REFERENCE),
           ('{"identity", .matrix = identity}', '{"toy", .matrix = toy}, '))


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
        targets = "hc_train hc_eval hc_sample hc_export hc_analyze hc_bench hc_prepare test_operations test_residual".split()
        self.run(self.cmake, "-S", tree, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug",
                 "-DCMAKE_C_FLAGS_DEBUG=-O0")
        self.run(self.cmake, "--build", self.build, "--target", *targets)


def expect(text, *parts):
    for part in parts:
        if part not in text:
            sys.exit("'%s' is missing in:\n%s" % (part, text))


def try_reference(tree):
    print("one row of the table, one reference")
    tree.program("tests/test_residual")
    expect(tree.program("tests/test_operations", "--device", "pocl", "--filter", "(toy"), "map (toy S=2)", "map (toy S=4)",
           "projections (toy S=4)", "3 cases, 0 failed")


def try_words(tree):
    print("in words")
    line = [line for line in tree.program("hc_train", "--list-residuals").splitlines() if line.split()[0] == "toy"]
    expect("".join(line), "2 or 4", "a step towards the mean of the streams", "nobody, for tests",
           "exact row sums, column sums, spectral norms, signs; settings: toy_largest, toy_start")
    for program in ("hc_train", "hc_bench"):
        expect(tree.program(program, "--help"), ", toy;", "toy-largest", "toy: the largest strength", "0.5")
    expect(tree.program("hc_train", "--residual", "toys", "--data-dir", "data", status=2), "toys", "toy")
    wrong = ("--residual", "toy", "--n-streams", "3", "--data-dir", "data", "--out-dir", "no")
    expect(tree.program("hc_train", *wrong, *MODEL, status=2), "n_streams = 3: 'toy' needs 2 or 4 streams")
    expect(tree.program("hc_train", "--residual", "toy", "--toy-largest", "2", "--data-dir", "data", status=2), "toy-largest")
    expect(tree.program("hc_bench", "--compare", "toys", *MODEL, status=2), "toy")
    expect(tree.program("hc_bench", "--compare", "toy:3", *MODEL, status=2), "'toy' needs 2 or 4 streams")


def try_training(tree):
    print("20 iterations, and on to 24")
    run = ("hc_train", "--data-dir", "data", "--out-dir", "run", "--eval-iters", "2", "--eval-interval", "10",
           "--checkpoint-interval", "10", "--statistics-interval", "5")
    toy = ("--residual", "toy", "--n-streams", "2", "--toy-largest", "0.25", "--toy-start", "1.5")
    if "exact" in tree.program(*run, *toy, "--max-iters", "20", *MODEL):
        sys.exit("a promise is called broken that is kept")
    with open(os.path.join(tree.scratch, "run/ckpt-20/config.json")) as file:
        config = json.load(file)
    assert config["residual"] == "toy" and config["toy_largest"] == 0.25 and config["toy_start"] == 1.5, config
    expect(tree.program(*run, "--init-from", "resume", "--toy-largest", "0.5", "--device", "pocl", status=1), "toy_largest")
    tree.program(*run, "--init-from", "resume", "--max-iters", "24", "--device", "pocl")
    with open(os.path.join(tree.scratch, "run/metrics.jsonl")) as file:
        losses = [record["loss"] for record in map(json.loads, file) if "loss" in record]
    assert len(losses) >= 24 and losses[-1] < losses[0], losses
    broken = tree.program("hc_train", "--data-dir", "data", "--out-dir", "broken", "--residual", "toy", "--n-streams", "2",
                          "--toy-largest", "-0.5", "--statistics-interval", "1", "--eval-iters", "0", "--max-iters", "3", *MODEL)
    expect(broken, "spectral norms of H_res are exact with 'toy', but one is 1.", "signs of H_res are exact with 'toy', but one is -0.",
           " in transformer.h.", " at iteration 0")
    assert broken.count(" are exact with ") == 2 and "row sums of" not in broken, broken


def try_programs(tree):
    print("evaluation, sampling, export, analysis, bench")
    checkpoint = ("--checkpoint", "run/ckpt-24")
    tree.program("hc_eval", *checkpoint, "--data", "data", "--device", "pocl")
    tree.program("hc_sample", *checkpoint, "--device", "pocl", "--prompt", "ab", "--max-new-tokens", "8")
    tree.program("hc_export", *checkpoint, "--out", "exported", "--format", "torch")
    assert os.path.exists(os.path.join(tree.scratch, "exported/model.safetensors"))
    bench = ("--steps", "1", "--warmup", "1", "--json", "bench.json")
    expect(tree.program("hc_bench", "--compare", "rc,toy:2", *bench, *MODEL), "toy")
    tree.program("hc_analyze", "--out", "analysis", "--bench", "bench.json", "--data-dir", "data", "--device", "pocl", "run")
    with open(os.path.join(tree.scratch, "analysis/report.html"), encoding="utf-8") as file:
        expect(file.read(), "toy")
    with open(os.path.join(tree.scratch, "analysis/figures/throughput.csv"), encoding="utf-8") as file:
        expect(file.read(), "toy,2,")
    with open(os.path.join(tree.scratch, "analysis/figures/throughput.svg"), encoding="utf-8") as file:
        expect(file.read(), "toy", "rgb( 18,  52,  86)")


def main():
    sources, scratch, cmake = sys.argv[1:4]
    shutil.rmtree(scratch, ignore_errors=True)
    copy = os.path.join(scratch, "hctrain")
    os.makedirs(copy)
    add_variant(sources, copy)
    tree = Tree(scratch, cmake)
    print("building", flush=True)
    tree.compile(copy)
    with open(os.path.join(scratch, "text.txt"), "w") as file:
        file.write("abcabdabe" * 2000)
    tree.program("hc_prepare", "--out", "data", "text.txt")
    try_reference(tree)
    try_words(tree)
    try_training(tree)
    try_programs(tree)
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
