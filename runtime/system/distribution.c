#include "runtime/system/distribution.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b) {
    const double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

void percentile_sort(double *values, size_t count) {
    qsort(values, count, sizeof *values, compare);
}

double percentile(const double *sorted, size_t count, double fraction) {
    const double place = fraction * (double)(count - 1);
    const size_t below = (size_t)place;
    const size_t above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (place - (double)below) * (sorted[above] - sorted[below]);
}

/* ---- numbers that come one by one */

/* A float's bits, so that larger numbers have larger ones: 32 bits of which the first 26 choose page and bin. */
enum { DROPPED_BITS = 6, BIN_BITS = 13 };

static uint32_t order_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static double value_of(uint32_t order) {
    const uint32_t bits = order >> 31 ? order & 0x7fffffffu : ~order;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

void distribution_begin(struct distribution *distribution) {
    *distribution = (struct distribution){.minimum = HUGE_VAL, .maximum = -HUGE_VAL};
    distribution->pages = memory_zeroed(DISTRIBUTION_PAGES, sizeof *distribution->pages);
}

void distribution_end(struct distribution *distribution) {
    for (uint32_t page = 0; distribution->pages && page < DISTRIBUTION_PAGES; page++) {
        free(distribution->pages[page]);
    }
    free(distribution->pages);
    distribution->pages = NULL;
}

/* The counts of a page, which is allocated with its first value. */
static uint64_t *page_of(struct distribution *distribution, uint32_t page) {
    if (!distribution->pages[page]) {
        distribution->pages[page] = memory_zeroed(DISTRIBUTION_PAGE_BINS, sizeof **distribution->pages);
    }
    return distribution->pages[page];
}

int distribution_add(struct distribution *distribution, double value) {
    if (!isfinite((float)value)) {
        return error_set("a value is not finite (%g)", value);
    }
    const uint32_t bin = order_of((float)value) >> DROPPED_BITS;
    page_of(distribution, bin >> BIN_BITS)[bin % DISTRIBUTION_PAGE_BINS]++;
    distribution->count++;
    distribution->minimum = fmin(distribution->minimum, value);
    distribution->maximum = fmax(distribution->maximum, value);
    distribution->sum += value;
    distribution->square_sum += value * value;
    return 0;
}

void distribution_merge(struct distribution *distribution, const struct distribution *other) {
    for (uint32_t i = 0; i < DISTRIBUTION_PAGES; i++) {
        uint64_t *page = other->pages[i] ? page_of(distribution, i) : NULL;
        for (uint32_t bin = 0; page && bin < DISTRIBUTION_PAGE_BINS; bin++) {
            page[bin] += other->pages[i][bin];
        }
    }
    distribution->count += other->count;
    distribution->minimum = fmin(distribution->minimum, other->minimum);
    distribution->maximum = fmax(distribution->maximum, other->maximum);
    distribution->sum += other->sum;
    distribution->square_sum += other->square_sum;
}

/* The middle of the bin with the value of this rank, from 0. */
static double value_at(const struct distribution *distribution, uint64_t rank) {
    uint64_t before = 0;
    for (uint32_t i = 0; i < DISTRIBUTION_PAGES; i++) {
        const uint64_t *page = distribution->pages[i];
        for (uint32_t bin = 0; page && bin < DISTRIBUTION_PAGE_BINS; bin++) {
            before += page[bin];
            if (before > rank) {
                const uint32_t first = (i * DISTRIBUTION_PAGE_BINS + bin) << DROPPED_BITS;
                const double middle = 0.5 * (value_of(first) + value_of(first + (1u << DROPPED_BITS) - 1));
                return fmin(fmax(middle, distribution->minimum), distribution->maximum);
            }
        }
    }
    return distribution->maximum;
}

double distribution_quantile(const struct distribution *distribution, double fraction) {
    if (distribution->count == 0) {
        return (double)NAN;
    }
    const double place = fraction * (double)(distribution->count - 1);
    const uint64_t lower = (uint64_t)place;
    const double part = place - (double)lower;
    const double value = value_at(distribution, lower);
    return part > 0 ? value + part * (value_at(distribution, lower + 1) - value) : value;
}

double distribution_mean(const struct distribution *distribution) {
    return distribution->count > 0 ? distribution->sum / (double)distribution->count : (double)NAN;
}

double distribution_deviation(const struct distribution *distribution) {
    const double mean = distribution_mean(distribution);
    return sqrt(fmax(distribution->square_sum / (double)distribution->count - mean * mean, 0.0));
}
