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

/* ---- program, data, checkpoint */

/* Of the files that the run goes on with. */
static int source_digest(struct trainer *trainer, char digest[CHECKSUM_SIZE]) {
    struct train_settings *settings = trainer->settings;
    if (settings->resumes) { /* state.json has checksums of the others */
        return checksum_file(path_of("%s/state.json", trainer->initial.folder).text, digest);
    }
    return trainer->initial.folder ? checksum_file(path_of("%s/config.json", trainer->initial.folder).text, digest)
                                   : 0;
}

/* Rank 0's weights are those of all ranks, and it alone reads them for their checksum. */
static int check_source(struct trainer *trainer) {
    struct train_settings *settings = trainer->settings;
    char checksum[CHECKSUM_SIZE] = "";
    if (settings->resumes) {
        return 0;
    }
    const int status = trainer_is_first(trainer) ? initial_model_check_source(&trainer->initial, settings) : 0;
    if (status == 0 && trainer_is_first(trainer)) {
        snprintf(checksum, sizeof checksum, "%s", settings->init_checksum ? settings->init_checksum : "");
    }
    if (ranks_agree(trainer->ranks, status) || ranks_broadcast(trainer->ranks, checksum, sizeof checksum)) {
        return -1;
    }
    free(settings->init_checksum);
    settings->init_checksum = *checksum ? memory_string(checksum) : NULL;
    return 0;
}

/* All ranks have the file, or none. */
static int check_tokens(struct trainer *trainer, struct token_file *file, char digest[CHECKSUM_SIZE]) {
    const char *name = file ? token_file_name(file) : "";
    const uint32_t vocabulary = (uint32_t)trainer->settings->model.vocab_size;
    const int status = file ? token_file_examine(file, vocabulary, digest) : 0;
    return same_job_digest(trainer->ranks, status, digest, name, "prepare the data once and copy it");
}

/* The training or validation files of all folders. *digest is that of a single file; or else it also depends on the
 * shares, with which losses change; "" without files. */
static int check_split(struct trainer *trainer, int split, char digest[CHECKSUM_SIZE]) {
    const struct mixture *data = &trainer->data;
    char(*digests)[CHECKSUM_SIZE] = memory_zeroed(2 * data->count, sizeof *digests);
    int status = 0;
    for (size_t i = 0; status == 0 && i < data->count; i++) {
        const struct data_set *set = &data->parts[i].data;
        status = check_tokens(trainer, split == SPLIT_TRAIN ? set->train : set->val, digests[i]);
        snprintf(digests[data->count + i], CHECKSUM_SIZE, "%.17g", data->parts[i].share);
    }
    memcpy(digest, digests[0], CHECKSUM_SIZE);
    if (status == 0 && data->count > 1 && *digest) {
        status = checksum_memory(digests, 2 * data->count * sizeof *digests, digest);
    }
    free(digests);
    return status;
}

/* All ranks have as many folders, with the same shares. */
static int check_shares(struct trainer *trainer) {
    const struct mixture *data = &trainer->data;
    char digest[CHECKSUM_SIZE] = "";
    double *shares = memory_zeroed(data->count, sizeof *shares);
    for (size_t i = 0; i < data->count; i++) {
        shares[i] = data->parts[i].share;
    }
    const int status = checksum_memory(shares, data->count * sizeof *shares, digest);
    free(shares);
    return same_job_digest(trainer->ranks, status, digest, "data_dir",
                           "give as many folders and the same weights on all hosts");
}

int same_job_program(struct ranks *ranks) {
    char digest[CHECKSUM_SIZE] = "";
    if (ranks->count == 1) {
        return 0;
    }
    const int status = checksum_file("/proc/self/exe", digest);
    return same_job_digest(ranks, status, digest, "the program", "install the same build on all hosts");
}

int same_job_check(struct trainer *trainer) {
    struct ranks *ranks = trainer->ranks;
    char digest[CHECKSUM_SIZE] = "";
    if (check_shares(trainer) || check_split(trainer, SPLIT_TRAIN, trainer->train_digest) ||
        check_split(trainer, SPLIT_VAL, trainer->val_digest)) {
        return -1;
    }
    const int status = source_digest(trainer, digest);
    if (same_job_digest(ranks, status, digest, "the checkpoint to begin with",
                        "let all hosts see the same folder, or copy it to them")) {
        return -1;
    }
    return check_source(trainer) ? -1 : same_job_settings(ranks, trainer->settings);
}
