#include "src/evaluation/rolling_windows.h"

size_t rolling_windows_count(size_t tokens, size_t context) {
    return tokens / context + (tokens % context > 0);
}

struct rolling_window rolling_windows_at(size_t tokens, size_t context, size_t index) {
    const size_t done = index * context;
    const size_t end = tokens - done < context ? tokens : done + context; /* t_end is the last one predicted */
    const size_t length = end < context ? end : context;
    return (struct rolling_window){end - length, length, end - done};
}
