/* Files of CLBlast's tuners: what is taken, and that hostile ones are refused by name. */
#include "runtime/files/files.h"
#include "runtime/gemm/clblast_parameters.h"
#include "runtime/gemm/gemm.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/gemm_verify.h"
#include "runtime/system/error.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XGEMM                                                                                                      \
    "GEMMK=0 KREG=1 KWG=32 KWI=2 MDIMA=16 MDIMC=16 MWG=64 NDIMB=16 NDIMC=16 NWG=64 PRECISION=32 SA=1 SB=1 "        \
    "STRM=0 STRN=0 VWM=4 VWN=2"
#define DIRECT "KWID=16 MDIMAD=16 MDIMCD=32 NDIMBD=32 NDIMCD=16 PADA=0 PADB=0 PRECISION=32 VWMD=1 VWND=1 WGD=64"

/* Such a file as the tuners write it. */
static const char *write_file(const char *name, const char *family, const char *precision, const char *time,
                              const char *parameters) {
    char text[1024];
    const int length =
        snprintf(text, sizeof text,
                 "{\"kernel_family\": \"%s\", \"precision\": \"%s\", \"best_kernel\": \"Xgemm\", "
                 "\"best_time\": \"%s\", \"best_parameters\": \"%s\", \"arg_m\": \"256\", "
                 "\"results\": [{\"kernel\": \"Xgemm\", \"time\": 4.012, \"parameters\": {\"KWG\": 16}}]}",
                 family, precision, time, parameters);
    return scratch_write(name, text, (size_t)length);
}

UNIT_TEST(test_kernels) {
    static const struct {
        const char *family, *parameters;
        size_t kernel, first;
    } files[] = {
        {"xgemm_1", XGEMM, 0, 0},
        {"xgemm_2", XGEMM, 0, 0},
        {"xgemm_direct_1", DIRECT, 1, 16},
        {"gemm_routine", "XGEMM_MIN_INDIRECT_SIZE=640", 2, 640},
        {"copy", "COPY_DIMX=8 COPY_DIMY=16 COPY_VW=2 COPY_WPT=1 PRECISION=32", 3, 8},
        {"pad", "PAD_DIMX=32 PAD_DIMY=32 PAD_WPTX=4 PAD_WPTY=2 PRECISION=32", 4, 32},
        {"transpose", "PRECISION=32 TRA_DIM=4 TRA_PAD=0 TRA_SHUFFLE=1 TRA_WPT=1", 5, 4},
        {"padtranspose", "PADTRA_PAD=1 PADTRA_TILE=16 PADTRA_WPT=2 PRECISION=32", 6, 1},
    };
    for (size_t i = 0; i < COUNT(files); i++) {
        struct clblast_parameters read;
        const char *path = write_file("one.json", files[i].family, "32", "1.5", files[i].parameters);
        require(clblast_parameters_read(path, &read));
        assert_true(read.kernels[files[i].kernel].milliseconds > 1.0 &&
                    read.kernels[files[i].kernel].milliseconds < 2.0);
        assert_int_equal(read.kernels[files[i].kernel].values[0], files[i].first);
    }
}

/* Of several for a kernel the fastest; others are passed over. */
UNIT_TEST(test_folder) {
    struct clblast_parameters read;
    assert_int_equal(files_make_folder(scratch_path("folder")), 0);
    write_file("folder/a.json", "xgemm_1", "32", "3.0", XGEMM);
    write_file("folder/b.json", "gemm_routine", "32", "2", "XGEMM_MIN_INDIRECT_SIZE=64");
    write_file("folder/c.json", "gemm_routine", "32", "1", "XGEMM_MIN_INDIRECT_SIZE=128");
    write_file("folder/d.json", "gemm_routine", "32", "3", "XGEMM_MIN_INDIRECT_SIZE=256");
    write_file("folder/e.json", "xgemm_2", "64", "1", "anything");
    write_file("folder/f.json", "xaxpy", "32", "1", "VW=4 WGS=64 WPT=1");
    write_file("folder/g.json", "xgemm_11", "32", "1", "GEMMK=1");
    write_file("folder/notes.txt", "xgemm_1", "32", "1", "nonsense");
    assert_int_equal(clblast_parameters_read(scratch_path("folder"), &read), 0);
    assert_int_equal(read.kernels[0].values[2], 32);
    assert_int_equal(read.kernels[2].values[0], 128);
    write_file("folder/h.json", "xgemm_2", "32", "1", "nonsense");
    assert_int_equal(clblast_parameters_read(scratch_path("folder"), &read), -1);
    assert_non_null(strstr(error_text(), "folder/h.json"));
}

static void check_refused(const char *path, const char *expected) {
    struct clblast_parameters read;
    assert_int_equal(clblast_parameters_read(path, &read), -1);
    if (!strstr(error_text(), path) || !strstr(error_text(), expected)) {
        fail_msg("'%s' does not name the file and '%s'", error_text(), expected);
    }
}

UNIT_TEST(test_hostile_files) {
    static const char *const texts[][2] = {
        {"", "hostile.json"},
        {"{\"best_parameters\"", "hostile.json:1"},
        {"[]", "kernel_family"},
        {"{}", "kernel_family"},
        {"{\"kernel_family\": 7, \"precision\": \"32\"}", "kernel_family"},
        {"{\"kernel_family\": \"xgemm_1\", \"precision\": 32}", "kernel_family"},
        {"{\"kernel_family\": \"xgemm_1\", \"precision\": \"32\", \"best_time\": \"1\"}", "is missing"},
        {"{\"kernel_family\": \"xgemm_1\", \"precision\": \"32\", \"best_parameters\": \"" XGEMM "\"}",
         "is missing"},
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        check_refused(scratch_write("hostile.json", texts[i][0], strlen(texts[i][0])), texts[i][1]);
    }
    static const char *const files[][5] = {
        {"xgemm_1", "16", "1", XGEMM, "precision"},
        {"xgemm_11", "32", "1", XGEMM, "kernel_family"},
        {"xaxpy", "32", "1", "VW=4 WGS=64 WPT=1", "kernel_family"},
        {"xgemm_1", "32", "nan", XGEMM, "best_time"},
        {"xgemm_1", "32", "inf", XGEMM, "best_time"},
        {"xgemm_1", "32", "1", "", "16 numbers"},
        {"xgemm_1", "32", "1", "nonsense", "16 numbers"},
        {"xgemm_1", "32", "1", XGEMM " X=1", "X is unknown"},
        {"xgemm_1", "32", "1", XGEMM " VWM=4", "VWM is unknown, given twice"},
        {"xgemm_direct_1", "32", "1", "KWID=16", "10 numbers"},
        {"gemm_routine", "32", "1", "XGEMM_MIN_INDIRECT_SIZE=-1", "not in its range"},
        {"gemm_routine", "32", "1", "XGEMM_MIN_INDIRECT_SIZE=0", "not in its range"},
        {"gemm_routine", "32", "1", "XGEMM_MIN_INDIRECT_SIZE=99999999999999999999", "not in its range"},
        {"gemm_routine", "32", "1", "XGEMM_MIN_INDIRECT_SIZE=65537", "not in its range"},
    };
    for (size_t i = 0; i < COUNT(files); i++) {
        check_refused(write_file("hostile.json", files[i][0], files[i][1], files[i][2], files[i][3]), files[i][4]);
    }
    check_refused(scratch_path("missing"), "No such file");
}

/* A number of XGEMM or DIRECT that is changed. */
UNIT_TEST(test_numbers) {
    static const struct {
        const char *old, *changed; /* NULL: nothing is wrong with it */
        const char *expected;
    } changes[] = {
        {"MWG=64", "MWG=128", NULL},
        {"VWN=2", "VWN=4", NULL},
        {"STRM=0", "STRM=1", NULL},
        {"GEMMK=0", "GEMMK=1", "GEMMK"},
        {"KWI=2", "KWI=3", "not defined"},       /* KWG is no multiple */
        {"MWG=64", "MWG=96", "not defined"},     /* nor is MWG of MDIMC VWM */
        {"NWG=64", "NWG=48", "not defined"},     /* nor is NWG of NDIMC VWN */
        {"MDIMA=16", "MDIMA=32", "not defined"}, /* nor is MWG of MDIMA VWM */
        {"MDIMA=16", "MDIMA=5", "not defined"},  /* nor are the work-items of MDIMA */
        {"KWG=32", "KWG=8", "not defined"},      /* rows of A that a pass of the work-items loads: 16 */
        {"VWM=4", "VWM=3", "VWM"},
        {"VWM=4", "VWM=32", "VWM"},
        {"SA=1", "SA=2", "SA"},
        {"MWG=64", "MWG=0", "MWG"},
        {"MDIMC=16", "MDIMC=0", "MDIMC"},
        {"NWG=64", "NWG=512", "NWG"},
        {"KWID=16", "KWID=5", "not defined"},
        {"WGD=64", "WGD=16", "not defined"},
        {"PADA=0", "PADA=2", "PADA"},
    };
    for (size_t i = 0; i < COUNT(changes); i++) {
        const char *text = strstr(XGEMM, changes[i].old) ? XGEMM : DIRECT, *at = strstr(text, changes[i].old);
        struct clblast_parameters read;
        const char *changed =
            scratch_format("%.*s%s%s", (int)(at - text), text, changes[i].changed, at + strlen(changes[i].old));
        const char *path =
            write_file("changed.json", *text == 'G' ? "xgemm_1" : "xgemm_direct_2", "32", "1", changed);
        if (changes[i].expected) {
            check_refused(path, changes[i].expected);
        } else {
            assert_int_equal(clblast_parameters_read(path, &read), 0);
        }
    }
}

/* Opens CLBlast on PoCL with such a file; whether its GEMMs had to be verified. */
static bool is_verified(const char *bound) {
    const char *path = write_file("bound.json", "gemm_routine", "32", "1", bound);
    const struct compute_options options = {.device = "pocl",
                                            .gemm = "clblast",
                                            .clblast_parameters = path,
                                            .cache_dir = scratch_path("cache")};
    struct compute *compute;
    assert_int_equal(gemm_compute_open(&compute, &options), 0);
    gemm_state(compute)->backend = gemm_state(compute)->fp32 = &gemm_backend_portable; /* compiles soon */
    assert_int_equal(gemm_verify(compute, ELEMENT_FP32), 0);
    const bool verified = compute->programs_compiled + compute->programs_cached > 0;
    compute_close(compute);
    return verified;
}

/* Once for each set of numbers. */
UNIT_TEST(test_verified_once) {
    assert_true(is_verified("XGEMM_MIN_INDIRECT_SIZE=64"));
    assert_false(is_verified("XGEMM_MIN_INDIRECT_SIZE=64"));
    assert_true(is_verified("XGEMM_MIN_INDIRECT_SIZE=128"));
}

DEVICE_TEST_MAIN(scratch_begin, scratch_end)
