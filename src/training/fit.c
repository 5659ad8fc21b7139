#include "runtime/device/gpu_model.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "src/training/trainer.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tokens of a micro-batch. Fewer than LEAST_TOKENS do not fill a GPU, which costs more than to recompute; more than
 * MOST_TOKENS gain nothing. */
enum { LEAST_TOKENS = 1024, MOST_TOKENS = 8192 };

/* ---- what is asked for */

static const struct {
    const char *name;
    double bytes;
} units[] = {{"GiB", 0x1p30}, {"GB", 1e9}, {"MiB", 0x1p20}, {"MB", 1e6}};

int fit_read(const char *text, struct fit *fit) {
    char *end;
    const double number = strtod(text, &end);
    const char *name = strchr(text, ':');
    const size_t length = name ? (size_t)(name - end) : strlen(end);
    double bytes = 0.0;
    for (size_t i = 0; i < COUNT(units) && end > text && end <= (name ? name : end); i++) {
        if (length == strlen(units[i].name) && strncmp(end, units[i].name, length) == 0) {
            bytes = number * units[i].bytes;
        }
    }
    if (!(bytes >= 1e6 && bytes <= 0x1p60)) {
        return error_set("fit = '%s': a size like 16GiB, 16GB or 8192MiB is needed, and for a GPU that is not here "
                         "its name behind a colon, as in 16GiB:a6000",
                         text);
    }
    *fit = (struct fit){.bytes = (uint64_t)bytes};
    return name && !(fit->model = gpu_model_find(name + 1, NULL)) ? -1 : 0;
}

/* ---- the search */

struct search {
    const struct train_settings *given;
    struct ranks *ranks;
    struct compute *compute;
    struct train_settings found; /* the settings that were tried last */
    uint64_t least;              /* bytes of the smallest plan so far */
    struct train_settings smallest;
    char reason[256]; /* why that does not fit */
};

/* Whether a plan with search->found fits. One that the model refuses, such as for its many tokens, does not. */
static bool fits(struct search *search) {
    struct data_parallel parallel;
    struct gpt gpt = {0};
    const bool is_planned =
        data_parallel_plan(&parallel, search->ranks, &search->found, search->compute, &gpt) == 0;
    const bool fit = is_planned && memory_plan_check(&gpt.plan, &search->compute->device) == 0;
    const bool is_smallest = is_planned && gpt.plan.total_bytes < search->least;
    if (is_smallest) {
        search->least = gpt.plan.total_bytes;
        search->smallest = search->found;
    }
    if (is_smallest || search->least == UINT64_MAX) {
        snprintf(search->reason, sizeof search->reason, "%s", error_text());
    }
    error_clear();
    data_parallel_release(&parallel);
    gpt_release(&gpt);
    return fit;
}

/* Tries the settings in the order that fit_choose names, with micro-batches that divide what all ranks have of a
 * step. */
static bool try_all(struct search *search) {
    const struct train_settings *given = search->given;
    struct train_settings *found = &search->found;
    const int64_t sequence = given->model.block_size, all = given->batch_size * given->gradient_accumulation_steps;
    const int64_t most = MOST_TOKENS / sequence > given->batch_size ? MOST_TOKENS / sequence : given->batch_size;
    const bool may_round_weights =
        given->dtype == ELEMENT_BF16 && !given->shard_optimizer && given->optimizer.master == ELEMENT_FP32;
    for (int level = 0; level < (may_round_weights ? 3 : 2); level++) {
        if (level == 1 && given->optimizer.moments == ELEMENT_BF16) {
            continue; /* as level 0 */
        }
        found->optimizer.moments = level > 0 ? ELEMENT_BF16 : given->optimizer.moments;
        found->optimizer.master = level > 1 ? ELEMENT_BF16 : given->optimizer.master;
        for (found->recompute = given->recompute; found->recompute <= RECOMPUTE_LAYER; found->recompute++) {
            const int64_t least_tokens = found->recompute == RECOMPUTE_OFF ? LEAST_TOKENS : 0;
            for (int64_t sequences = most; sequences > 0; sequences--) {
                found->batch_size = sequences;
                found->gradient_accumulation_steps = all / sequences;
                if ((sequences >= given->batch_size || sequences * sequence >= least_tokens) &&
                    all % (sequences * search->ranks->count) == 0 && fits(search)) {
                    return true;
                }
            }
        }
    }
    return false;
}

/* "--batch-size 2 --gradient-accumulation-steps 8 ..." */
static const char *options_of(const struct train_settings *settings, char text[200]) {
    snprintf(text, 200, "--batch-size %" PRId64 " --gradient-accumulation-steps %" PRId64 " --dtype %s%s%s%s",
             settings->batch_size, settings->gradient_accumulation_steps,
             element_name((enum element_type)settings->dtype),
             settings->recompute == RECOMPUTE_LAYER ? " --recompute layer" : "",
             settings->optimizer.moments == ELEMENT_BF16 ? " --moments bf16" : "",
             settings->optimizer.master == ELEMENT_BF16 ? " --master bf16" : "");
    return text;
}

int fit_choose(const struct fit *fit, struct train_settings *settings, struct ranks *ranks, struct compute *compute,
               FILE *console) {
    struct search search = {
        .given = settings, .ranks = ranks, .compute = compute, .found = *settings, .least = UINT64_MAX};
    char text[200], size[16], needed[16];
    struct device *device = &compute->device;
    const struct device *sized = fit->model ? &fit->model->device : device;
    const double share = fmin((double)sized->max_buffer_bytes / (double)sized->memory_bytes, 1.0);
    device->memory_bytes = (size_t)fit->bytes;
    device->max_buffer_bytes = (size_t)(share * (double)fit->bytes);
    memory_text(fit->bytes, size);
    const bool found = try_all(&search);
    if (!found && search.least == UINT64_MAX) {
        return error_set("no division of a step into micro-batches can be planned: %s", search.reason);
    }
    if (!found && search.least <= fit->bytes) {
        return error_set("nothing fits into %s. With %s: %s", size, options_of(&search.smallest, text),
                         search.reason);
    }
    if (!found) {
        return error_set("nothing fits into %s: the smallest plan needs %s, with %s; choose a smaller block_size, "
                         "n_streams or model, with adapters a narrower frozen_weights, or a GPU with more memory, "
                         "or with larger buffers",
                         size, memory_text(search.least, needed), options_of(&search.smallest, text));
    }
    *settings = search.found;
    message_print(console, "fit      %s: %s\n", size, options_of(settings, text));
    return 0;
}
