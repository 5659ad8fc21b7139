#include "src/bench/schedule.h"

void schedule_mark(void *marks, int64_t sublayer) {
    struct schedule_marks *own = marks;
    own->marks[sublayer + 1] = own->log->count;
}

static void append(json_t *list, uint64_t elements, double seconds, bool of_tokens) {
    json_array_append_new(list, json_pack("[I, f, b]", (json_int_t)elements, seconds, of_tokens));
}

json_t *schedule_measured(const struct data_parallel *parallel) {
    json_t *list = json_array();
    for (size_t i = 0; i < parallel->item_count; i++) {
        const struct collective_item *item = &parallel->items[i];
        const bool of_tokens = item->range.offset < parallel->gpt->parameters.position_embedding;
        if (item->buffer == parallel->gpt->parameters.gradients) {
            append(list, item->range.count, collective_lead(parallel->collective, i), of_tokens);
        }
    }
    return list;
}

json_t *schedule_recorded(const struct data_parallel *parallel, const struct schedule_marks *marks,
                          const struct gpu_model *model) {
    const struct launch_log *log = marks->log;
    const int64_t top = BRANCHES * parallel->gpt->config.n_layer;
    json_t *list = json_array();
    for (size_t i = 0; i < parallel->buckets.count; i++) {
        const struct bucket *bucket = &parallel->buckets.table[i];
        const size_t mark = marks->marks[(bucket->of_tokens ? top : bucket->complete_after) + 1];
        double seconds = 0.0;
        for (size_t k = mark; k < log->count; k++) {
            seconds += ledger_seconds(model, &log->entries[k]);
        }
        append(list, bucket->range.count, seconds, bucket->of_tokens);
    }
    return list;
}
