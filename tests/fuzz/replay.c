/* Runs a harness on files of its corpus: the arguments, which may be folders. For compilers without libFuzzer. */
#include "tests/fuzz/fuzz_file.h"
#include "tests/support/scratch.h"
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { WALK_DESCRIPTORS = 16 };

static unsigned replayed;

static int replay(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)kind;
    (void)place;
    if (!S_ISREG(status->st_mode)) {
        return 0;
    }
    size_t bytes;
    char *data = scratch_read(path, &bytes);
    if (data == NULL) {
        fprintf(stderr, "cannot read %s\n", path);
        return 1;
    }
    LLVMFuzzerTestOneInput((const uint8_t *)data, bytes);
    free(data);
    replayed++;
    return 0;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (nftw(argv[i], replay, WALK_DESCRIPTORS, FTW_PHYS) != 0) {
            fprintf(stderr, "cannot go through %s\n", argv[i]);
            return 1;
        }
    }
    printf("%u inputs\n", replayed);
    return replayed > 0 ? 0 : 1;
}
