#include "runtime/system/progress.h"
#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define BAR_WIDTH 20

double progress_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void progress_start(struct progress *progress, int64_t first) {
    *progress = (struct progress){.start = progress_clock(),
                                  .shown = -1e9,
                                  .terminal = isatty(STDERR_FILENO) == 1,
                                  .first = first};
}

/* "1:02:03" or "4:05" */
static void format_time(double seconds, char text[24]) {
    const long long whole = seconds < 0.0 || seconds > 1e12 ? 0 : (long long)(seconds + 0.5);
    if (whole >= 3600) {
        snprintf(text, 24, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
    } else {
        snprintf(text, 24, "%lld:%02lld", whole / 60, whole % 60);
    }
}

void progress_show(struct progress *progress, const char *label, int64_t done, int64_t total, const char *details,
                   bool force) {
    const double now = progress_clock();
    if (progress->silent || (!force && now - progress->shown < (progress->terminal ? 0.1 : 10.0))) {
        return;
    }
    progress->shown = now;
    char bar[BAR_WIDTH + 1] = "", left[24] = "";
    const int filled = total > 0 ? (int)(BAR_WIDTH * done / total) : BAR_WIDTH;
    for (int i = 0; i < BAR_WIDTH; i++) {
        bar[i] = i < filled ? '#' : '.';
    }
    const int64_t passed = done - progress->first;
    if (passed > 0) {
        format_time((now - progress->start) / (double)passed * (double)(total - done), left);
    }
    fprintf(stderr, "%s%s %" PRId64 "/%" PRId64 " [%s] %s%s%s%s", progress->terminal ? "\r\033[K" : "", label, done,
            total, bar, details, *left ? "  left " : "", left, progress->terminal ? "" : "\n");
    fflush(stderr);
    progress->open = progress->terminal;
}

void progress_text(struct progress *progress, const char *text) {
    const double now = progress_clock();
    if (progress->silent ||
        (!progress->terminal && (now - progress->start < 2.0 || now - progress->shown < 10.0))) {
        return;
    }
    progress->shown = now;
    fprintf(stderr, "%s%s%s", progress->terminal ? "\r\033[K" : "", text, progress->terminal ? "" : "\n");
    fflush(stderr);
    progress->open = progress->terminal;
}

void progress_end(struct progress *progress) {
    if (progress->open) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        progress->open = false;
    }
}
