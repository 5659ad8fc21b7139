#include "src/settings/type_choice.h"
#include "runtime/device/self_test.h"
#include "runtime/gemm/gemm_verify.h"
#include "runtime/options/options.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "src/model/optimizer.h"
#include "src/settings/background_compile.h"
#include <stdlib.h>
#include <string.h>

/* Channels from which on a CPU's bf16 instructions are worth it: twice the speed with AVX512_BF16. Models of 128
 * gain 20 to 90 % (docs/notes/performance.md), but are trained in minutes to be compared in hundredths of a nat,
 * which bf16 may cost them (docs/precision.md). */
#define WIDE 256

#define FAILURE_SIZE 512 /* bytes of text: which element of a result is wrong */

/* ---- one rank */

/* Opens the device, whose GEMMs are not compared with sums on the host yet. */
static int open_unverified(const struct device_settings *settings, enum element_type type,
                           const struct ranks *ranks, struct compute **compute) {
    char gemm[16];
    const struct compute_options options = {
        .device = settings->device,
        .gemm = options_word(GEMM_WORDS, settings->gemm, gemm, sizeof gemm),
        .operands = type,
        .local_rank = (unsigned)ranks->local_index,
        .profile = settings->profile,
        .verify = !settings->unverified && !settings->model && !settings->record && !settings->dry,
        .model = settings->model,
        .log_launches = settings->record,
        .dry = settings->dry,
    };
    if (gemm_compute_open(compute, &options)) {
        return -1;
    }
    if (settings->background) {
        background_compile_start(settings->background, *compute);
    }
    return 0;
}

/* `status`: of a self-test, above 0 if results were wrong. */
static int report(const struct compute *compute, enum element_type type, int status) {
    char named[64];
    if (status <= 0) {
        return status;
    }
    snprintf(named, sizeof named, "matrix multiplication by %s", gemm_facts(compute).name);
    return self_test_refuse(compute, named,
                            type == ELEMENT_FP32 ? "another --gemm, " : "another --gemm, --dtype fp32, ");
}

int device_verify(struct compute *compute, enum element_type type) {
    return report(compute, type, compute->verify ? gemm_verify(compute, type, false) : 0);
}

/* Tells whether this backend multiplies in fp32 whatever the type: then 16 bits would cost time. */
static bool multiplies_in_fp32(int gemm) {
    return gemm != GEMM_AUTO && gemm != GEMM_MMA && gemm != GEMM_ONEDNN;
}

void type_choice_make(const struct type_facts *facts, struct type_choice *choice) {
    const struct gemm_facts *backend = &facts->backend;
    const size_t size = sizeof choice->reason;
    char word[16];
    *choice = (struct type_choice){.type = ELEMENT_FP32};
    if (backend->failed) {
        snprintf(choice->warning, sizeof choice->warning,
                 "GEMMs on %s take several times as long without matrix cores: %s", facts->device,
                 backend->refusal);
    }
    if (facts->wanted != TYPE_AUTO) {
        choice->type = (enum element_type)facts->wanted;
    } else if (multiplies_in_fp32(facts->gemm)) {
        snprintf(choice->reason, size, "--gemm %s multiplies in fp32",
                 options_word(GEMM_WORDS, facts->gemm, word, sizeof word));
    } else if (!backend->matrix_cores) { /* of failures the warning says more */
        const bool is_short = backend->refusal && !backend->failed;
        snprintf(choice->reason, size, "%s would multiply bf16 in fp32%s%s", facts->device, is_short ? ": " : "",
                 is_short ? backend->refusal : "");
    } else if (!facts->is_gpu && facts->channels && facts->channels < WIDE) {
        snprintf(choice->reason, size,
                 "a model of %zu channels is too narrow to gain from %s; bf16 is chosen from %d channels on",
                 facts->channels, backend->matrix_cores, WIDE);
    } else {
        choice->type = ELEMENT_BF16;
        snprintf(choice->reason, size, "GEMMs on %s %s", backend->matrix_cores,
                 facts->untested ? "are taken to work" : "passed their self-test");
    }
}

/* With "auto" fp32 is verified later, on what is used for it. */
static int open_own(const struct device_settings *settings, int wanted, size_t channels, const struct ranks *ranks,
                    struct compute **compute, struct type_choice *choice) {
    const bool is_given = wanted != TYPE_AUTO;
    enum element_type operands = multiplies_in_fp32(settings->gemm) ? ELEMENT_FP32 : ELEMENT_BF16;
    char failure[FAILURE_SIZE];
    if (is_given) {
        operands = (enum element_type)wanted;
    }
    if (open_unverified(settings, operands, ranks, compute) || (is_given && device_verify(*compute, operands))) {
        return -1;
    }
    struct type_facts facts = {.wanted = wanted,
                               .gemm = settings->gemm,
                               .device = (*compute)->device.name,
                               .is_gpu = (*compute)->device.is_gpu,
                               .backend = gemm_facts(*compute),
                               .untested = settings->dry,
                               .channels = channels};
    type_choice_make(&facts, choice);
    /* GEMMs in 16 bits that are wrong count as matrix cores that failed: fp32 may be right */
    if (!is_given && choice->type != ELEMENT_FP32 && (*compute)->verify &&
        gemm_verify(*compute, choice->type, false)) {
        snprintf(failure, FAILURE_SIZE, "%s", error_text());
        facts.backend = (struct gemm_facts){.refusal = failure, .failed = true};
        type_choice_make(&facts, choice);
    }
    return 0;
}

/* ---- all ranks */

void type_choice_merge(const struct rank_choice *all, int count, struct type_choice *merged) {
    int in_fp32 = -1;
    bool any_16 = false;
    for (int rank = count - 1; rank >= 0; rank--) {
        in_fp32 = all[rank].chose_fp32 ? rank : in_fp32;
        any_16 |= all[rank].type != ELEMENT_FP32;
    }
    if (in_fp32 < 0 || !any_16) {
        return;
    }
    if (merged->type != ELEMENT_FP32) {
        merged->type = ELEMENT_FP32;
        snprintf(merged->reason, sizeof merged->reason, "rank %d on %s chose it", in_fp32, all[in_fp32].host);
    }
    if (!*merged->warning) {
        snprintf(
            merged->warning, sizeof merged->warning,
            "all ranks work in fp32 because of rank %d on %s, though others have matrix cores that work: --dtype "
            "bf16 uses those",
            in_fp32, all[in_fp32].host);
    }
}

void type_choice_compare(const struct rank_choice *all, int count, struct type_choice *merged) {
    for (int rank = 1; rank < count && !*merged->warning; rank++) {
        if (strcmp(all[rank].gemm, all[0].gemm) != 0) {
            snprintf(merged->warning, sizeof merged->warning,
                     "rank %d on %s multiplies by %s and rank 0 by %s: all wait for the slower one", rank,
                     all[rank].host, all[rank].gemm, all[0].gemm);
        }
    }
}

/* All ranks learn what the others chose, and which GEMM backend they have: they take one type, or, once that is
 * what they have opened, warn of a backend that is another one. */
static int exchange(struct ranks *ranks, const struct compute *compute, bool is_opened,
                    struct type_choice *choice) {
    struct rank_choice own = {.type = choice->type, .chose_fp32 = choice->type == ELEMENT_FP32 && *choice->reason};
    struct rank_choice *all = memory_zeroed((size_t)ranks->count, sizeof *all);
    memcpy(own.host, ranks->host, sizeof own.host);
    snprintf(own.gemm, sizeof own.gemm, "%s", gemm_facts(compute).name);
    const int status = ranks_gather(ranks, &own, sizeof own, all);
    if (status == 0 && is_opened) {
        type_choice_compare(all, ranks->count, choice);
    } else if (status == 0) {
        type_choice_merge(all, ranks->count, choice);
    }
    free(all);
    return status;
}

int type_choice_open(const struct device_settings *settings, int wanted, size_t channels, struct ranks *ranks,
                     struct compute **compute, struct type_choice *choice) {
    *compute = NULL;
    if (ranks_agree(ranks, open_own(settings, wanted, channels, ranks, compute, choice)) ||
        (ranks->count > 1 && exchange(ranks, *compute, false, choice))) {
        return -1;
    }
    /* a CPU on which no bf16 instructions were looked for can change to fp32 as it is */
    const struct gemm_facts cores = gemm_facts(*compute);
    const bool has_cores = (*compute)->device.is_gpu || cores.matrix_cores || cores.refusal;
    const bool to_fp32 = wanted == TYPE_AUTO && choice->type == ELEMENT_FP32;
    int status = 0;
    if (to_fp32 && has_cores && !multiplies_in_fp32(settings->gemm)) {
        /* anew, as a whole: a kernel that failed its test may have left the device unable to go on */
        compute_close(*compute);
        *compute = NULL;
        status = open_unverified(settings, ELEMENT_FP32, ranks, compute) || device_verify(*compute, ELEMENT_FP32);
    } else if (to_fp32) {
        status = device_verify(*compute, ELEMENT_FP32);
    }
    if (ranks_agree(ranks, status)) {
        return -1;
    }
    return ranks->count > 1 ? exchange(ranks, *compute, true, choice) : 0;
}

int type_choice_optimizer(struct compute *compute, enum element_type type, struct ranks *ranks,
                          struct optimizer_settings *optimizer) {
    const struct optimizer_matrices *matrices = optimizer_at((size_t)optimizer->optimizer)->matrices;
    if (!matrices) {
        return 0;
    }
    const enum element_type own = matrices->type(optimizer, compute, type);
    double in_fp32 = own == ELEMENT_FP32 ? 1.0 : 0.0;
    if (ranks_sum(ranks, &in_fp32, 1)) {
        return -1;
    }
    matrices->set_type(optimizer, in_fp32 > 0.0 ? ELEMENT_FP32 : own);
    return ranks_agree(ranks, report(compute, type, compute->verify ? gemm_verify(compute, type, true) : 0));
}

void type_choice_print(const struct type_choice *choice, FILE *lines) {
    if (lines && *choice->reason) {
        message_print(lines, "dtype    %s: %s\n", element_name(choice->type), choice->reason);
    }
    if (*choice->warning) {
        message_print(stderr, "warning  %s\n", choice->warning);
    }
}

void type_choice_print_device(const struct type_choice *choice, const struct compute *compute, FILE *lines) {
    message_print(lines, "device   %s (%s), GEMMs by %s\n", compute->device.name, compute->device.platform_name,
                  gemm_facts(compute).description);
    type_choice_print(choice, lines);
}
