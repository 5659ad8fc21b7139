/* How a document that may be longer than the context is divided into windows, each token being predicted once: the
 * convention of rolling log-likelihoods in EleutherAI's lm-evaluation-harness.
 *
 * The document's n tokens t_1 .. t_n follow a prefix t_0. Windows predict T tokens after T tokens, t_1 .. t_T,
 * t_(T+1) .. t_(2T), ...; the last one predicts what is left. Each reads the T tokens before the last one that it
 * predicts, or all there are. So the last window's predictions have more context than the others', and the first
 * token of every other window has the one before it only. */
#ifndef HC_SRC_ROLLING_WINDOWS_H
#define HC_SRC_ROLLING_WINDOWS_H

#include <stddef.h>

struct rolling_window {
    size_t first;  /* it reads t_first .. t_(first + length - 1), to predict each one's successor */
    size_t length; /* 1 .. T */
    size_t scored; /* so many predictions at its end count */
};

/* Windows of n tokens; none for none. */
size_t rolling_windows_count(size_t tokens, size_t context);

/* Window `index` of them. */
struct rolling_window rolling_windows_at(size_t tokens, size_t context, size_t index);

#endif
