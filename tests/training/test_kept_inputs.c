/* No program writes its results over what it reads. */
#include "tests/support/run_control.h"

static void assert_not_prepared_over(const char *out, const char *input) {
    assert_refused(PREPARE("--out", scratch_path(out), scratch_path(input)), "input");
    assert_same_file("tokens/train.bin", "data/train.bin");
    assert_int_equal(scratch_entries(scratch_path("tokens")), 1);
}

RUN_TEST(tokens_are_not_prepared_over_their_input) {
    assert_int_equal(files_make_folder(scratch_path("tokens")), 0);
    copy("data/train.bin", "tokens/train.bin");
    link_to("tokens/train.bin", "soft-link");
    link_to("tokens", "tokens-link");
    assert_int_equal(link(scratch_path("tokens/train.bin"), scratch_path("hard-link")), 0);
    assert_not_prepared_over("tokens", "tokens/train.bin");
    assert_not_prepared_over("tokens", "soft-link");
    assert_not_prepared_over("tokens", "hard-link");
    assert_not_prepared_over("tokens-link", "tokens/train.bin");
    assert_not_prepared_over("tokens", "tokens-link/train.bin");
}

RUN_TEST(evaluation_is_not_written_over_its_input) {
    static const char *const options[] = {"--json", "--per-document"};
    link_to("scored.txt", "scored-link");
    for (int i = 0; i < 2; i++) {
        copy("short.txt", "scored.txt");
        assert_refused(EVALUATE(options[i], scratch_path("scored.txt"), scratch_path("scored.txt")), "scored.txt");
        assert_refused(EVALUATE(options[i], scratch_path("scored-link"), scratch_path("scored.txt")), "scored");
        assert_same_file("scored.txt", "short.txt");
    }
}

/* The checkpoint and the token files are inputs too. */
RUN_TEST(evaluation_is_not_written_over_what_it_scores) {
    copy_data("evaluated");
    assert_done(TRAIN("evaluating", "--max-iters", "2"));
    copy("evaluating/ckpt-2/config.json", "config.json");
    assert_refused(CHILD_RUN(HC_PROGRAMS "/hc_eval", "--checkpoint", scratch_path("evaluating/ckpt-2"), "--device",
                             "pocl", "--json", scratch_path("evaluating/ckpt-2/config.json"),
                             scratch_path("short.txt")),
                   "config.json");
    assert_same_file("evaluating/ckpt-2/config.json", "config.json");
    assert_refused(EVALUATE("--data", scratch_path("evaluated"), "--json", scratch_path("evaluated/val.bin")),
                   "val.bin");
    assert_same_file("evaluated/val.bin", "data/val.bin");
}

RUN_TEST(checkpoint_is_not_exported_over_itself) {
    struct stat before, after;
    assert_done(EXPORT("base/ckpt-2", "exported"));
    assert_int_equal(stat(scratch_path("exported/model.safetensors"), &before), 0);
    link_to("exported", "exported-link");
    assert_refused(EXPORT("exported", "exported"), "exported");
    assert_refused(EXPORT("exported", "exported-link"), "exported");
    assert_refused(EXPORT("exported-link", "exported"), "exported");
    assert_int_equal(stat(scratch_path("exported/model.safetensors"), &after), 0);
    assert_true(before.st_ino == after.st_ino && before.st_size == after.st_size);
    assert_int_equal(before.st_mtim.tv_sec, after.st_mtim.tv_sec);
    assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
}

UNIT_TEST_MAIN(run_control_begin, scratch_end)
