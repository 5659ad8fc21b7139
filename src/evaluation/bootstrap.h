/* The standard error of a perplexity by resampling, with the samples that lm-evaluation-harness draws. */
#pragma once

#include <stddef.h>

/* Sets *error to the standard deviation of exp(-mean) over 100,000 samples, each of `count` of the log-likelihoods
 * [count] drawn with replacement; NaN for fewer than two. For 5000 of them that takes 8 seconds of a core. -1 with
 * an error text when a thread cannot be started, or the program is interrupted. */
int bootstrap_perplexity_error(const double *log_likelihoods, size_t count, double *error);
