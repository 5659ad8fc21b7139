#include "runtime/system/mean_interval.h"
#include <math.h>
#include <stdbool.h>

static const double half_turn = 3.14159265358979323846, confidence = 0.95;

/* The probability that Student's t lies within +-sqrt(degrees) tan(angle): Abramowitz and Stegun, 26.7.3 and 26.7.4. */
static double probability_within(double angle, size_t degrees) {
    const bool odd = degrees % 2 == 1;
    const double square = cos(angle) * cos(angle);
    double term = odd ? cos(angle) : 1.0, sum = degrees > 1 ? term : 0.0;
    for (size_t i = odd ? 3 : 2; i + 2 <= degrees; i += 2) {
        term *= square * (double)(i - 1) / (double)i;
        sum += term;
    }
    return odd ? 2.0 / half_turn * (angle + sin(angle) * sum) : sin(angle) * sum;
}

/* The quantile of Student's t at 97.5 %, by bisection over the angle. */
static double quantile(size_t degrees) {
    double low = 0.0, high = 0.5 * half_turn;
    for (int step = 0; step < 60; step++) {
        const double middle = 0.5 * (low + high);
        const bool below = probability_within(middle, degrees) < confidence;
        low = below ? middle : low;
        high = below ? high : middle;
    }
    return sqrt((double)degrees) * tan(low);
}

struct mean_interval mean_interval_of(const double *values, size_t count) {
    double sum = 0.0, square = 0.0;
    for (size_t i = 0; i < count; i++) {
        sum += values[i];
    }
    const double mean = sum / (double)count;
    for (size_t i = 0; i < count; i++) {
        square += (values[i] - mean) * (values[i] - mean);
    }
    if (count < 2) {
        return (struct mean_interval){count > 0 ? mean : (double)NAN, (double)NAN, (double)NAN};
    }
    const double deviation = sqrt(square / (double)(count - 1));
    return (struct mean_interval){mean, deviation, quantile(count - 1) * deviation / sqrt((double)count)};
}
