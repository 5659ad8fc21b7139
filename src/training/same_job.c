#include "src/training/same_job.h"
#include "runtime/files/checksum.h"
#include "runtime/files/files.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SHARED_BYTES = 1 << 16 }; /* of settings as text */

int same_job_digest(struct ranks *ranks, int status, const char *digest, const char *what, const char *advice) {
    char first[CHECKSUM_SIZE] = "";
    snprintf(first, sizeof first, "%s", digest);
    if (ranks_agree(ranks, status) || ranks_broadcast(ranks, first, sizeof first)) {
        return -1;
    }
    return ranks_agree(ranks, strcmp(first, digest) == 0
                                  ? 0
                                  : error_set("%s is not the same as on rank 0: %s", what, advice));
}

int same_job_program(struct ranks *ranks) {
    char digest[CHECKSUM_SIZE] = "";
    if (ranks->count == 1) {
        return 0;
    }
    const int status = checksum_file("/proc/self/exe", digest);
    return same_job_digest(ranks, status, digest, "the program", "install the same build on all hosts");
}

/* ---- settings */

/* Compares two texts of settings. The error names the first line that differs. */
static int compare(const char *own, const char *first) {
    size_t at = 0, line = 0;
    for (; own[at] && own[at] == first[at]; at++) {
        line = own[at] == '\n' ? at + 1 : line;
    }
    if (own[at] == first[at]) {
        return 0;
    }
    return error_set("other settings than rank 0: '%.*s' instead of '%.*s'", (int)strcspn(own + line, "\n"),
                     own + line, (int)strcspn(first + line, "\n"), first + line);
}

int same_job_settings(struct ranks *ranks, const struct train_settings *settings) {
    static const char *const local[] = {"data_dir", "init_from", "device", "gemm"}; /* may differ */
    static char first[MOST_SHARED_BYTES];
    if (ranks->count == 1) {
        return 0;
    }
    struct option_spec *specs = memory_allocate(settings->spec_count, sizeof *specs);
    memcpy(specs, settings->specs, settings->spec_count * sizeof *specs);
    for (size_t i = 0; i < settings->spec_count; i++) {
        for (size_t k = 0; k < COUNT(local) && specs[i].type != OPTION_HEADING; k++) {
            specs[i].transient |= strcmp(specs[i].name, local[k]) == 0;
        }
    }
    char *saved = options_text(specs, settings->spec_count);
    char *own = memory_format("%smax_iters given now = %" PRId64 "\n", saved, settings->stop_at);
    snprintf(first, sizeof first, "%s", own);
    const int status = ranks_broadcast(ranks, first, sizeof first) || ranks_agree(ranks, compare(own, first));
    free(specs);
    free(saved);
    free(own);
    return status ? -1 : 0;
}
