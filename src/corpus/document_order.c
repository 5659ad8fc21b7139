#include "src/corpus/document_order.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/random.h"
#include <endian.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const size_t most_list_bytes = (size_t)1 << 34; /* two billion documents */

int document_order_begin(struct document_order *order, uint64_t seed, double fraction, const char *list) {
    char *text;
    size_t bytes;
    *order = (struct document_order){
        .fraction = fraction,
        .offset = random_uniform(random_key(seed, "held-out chunks"), 0),
        .key = random_key(seed, "order of documents"),
    };
    if (!list) {
        return 0;
    }
    if (files_read(list, most_list_bytes, &text, &bytes)) {
        return -1;
    }
    order->count = bytes / sizeof *order->places;
    order->held_out = (uint64_t)ceil(fraction * (double)order->count);
    order->places = memory_allocate(order->count, sizeof *order->places);
    memset(order->places, 0xff, order->count * sizeof *order->places);
    int status = 0;
    if (bytes == 0 || bytes % sizeof *order->places != 0) {
        status = error_set("%s: it has %zu bytes, but should have %zu for each document", list, bytes,
                           sizeof *order->places);
    }
    for (uint64_t i = 0; status == 0 && i < order->count; i++) {
        const uint64_t document = le64toh(((const uint64_t *)(void *)text)[i]);
        if (document >= order->count || order->places[document] != UINT64_MAX) {
            status = error_set("%s: entry %" PRIu64 " is %" PRIu64 ": an order of %" PRIu64
                               " documents must have each number below that once",
                               list, i, document, order->count);
        } else {
            order->places[document] = i;
        }
    }
    free(text);
    return status;
}

void document_order_end(struct document_order *order) {
    free(order->places);
    order->places = NULL;
}

bool document_order_holds_out(const struct document_order *order, uint64_t document) {
    if (order->places) {
        return document < order->count && order->places[document] < order->held_out;
    }
    const double position = (double)document * order->fraction + order->offset;
    return floor(position + order->fraction) > floor(position);
}

uint64_t document_order_place(const struct document_order *order, uint64_t document) {
    if (!order->places) {
        return random_below(order->key, document, UINT64_MAX);
    }
    if (document >= order->count) { /* prepare_run reports it at the end */
        return UINT64_MAX;
    }
    const unsigned __int128 place = (unsigned __int128)order->places[document] << 64;
    return (uint64_t)(place / order->count);
}
