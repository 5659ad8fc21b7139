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

/* Whether the line sets what may differ from rank to rank. */
static bool is_local(const char *line) {
    static const char *const names[] = {"data_dir", "init_from", "device", "gemm"};
    for (size_t i = 0; i < COUNT(names); i++) {
        const size_t length = strlen(names[i]);
        if (strncmp(line, names[i], length) == 0 && strncmp(line + length, " = ", 3) == 0) {
            return true;
        }
    }
    return false;
}

static int compare_lines(const char *own, const char *first) {
    while (*own && *first) {
        const size_t length = strcspn(own, "\n"), first_length = strcspn(first, "\n");
        const bool same = length == first_length && strncmp(own, first, length) == 0;
        if (!same && !(is_local(own) && is_local(first))) {
            return error_set("other settings than rank 0: '%.*s' instead of '%.*s'", (int)length, own,
                             (int)first_length, first);
        }
        own += length + (own[length] == '\n');
        first += first_length + (first[first_length] == '\n');
    }
    return *own || *first ? error_set("other settings than rank 0") : 0;
}

int same_job_settings(struct ranks *ranks, const struct train_settings *settings) {
    if (ranks->count == 1) {
        return 0;
    }
    static char first[MOST_SHARED_BYTES];
    char *saved = options_text(settings->specs, settings->spec_count);
    char *own = memory_format("%smax_iters given now = %" PRId64 "\n", saved, settings->stop_at);
    snprintf(first, sizeof first, "%s", own);
    const int status =
        ranks_broadcast(ranks, first, sizeof first) || ranks_agree(ranks, compare_lines(own, first)) ? -1 : 0;
    free(saved);
    free(own);
    return status;
}
