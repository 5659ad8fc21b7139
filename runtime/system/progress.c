#include "runtime/system/progress.h"
#include "runtime/system/message.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { BAR_WIDTH = 20, LEAST_BAR = 4, USUAL_COLUMNS = 80 };

double progress_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void progress_start(struct progress *progress, int64_t first) {
    *progress = (struct progress){.start = progress_clock(),
                                  .shown = -1e9,
                                  .terminal = isatty(STDERR_FILENO) == 1,
                                  .first = first,
                                  .task = ""};
}

/* ---- lines that fit a terminal */

/* Columns that a line may take. One that took all of them would be wrapped by some terminals, and the next one
 * would not be written over it. */
static int columns(const struct progress *progress) {
    struct winsize size = {0};
    const char *columns_text = getenv("COLUMNS");
    if (!progress->terminal) {
        return INT_MAX;
    }
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
        const long number = columns_text != NULL ? strtol(columns_text, NULL, 10) : 0;
        size.ws_col = number > 0 && number <= USHRT_MAX ? (unsigned short)number : USUAL_COLUMNS;
    }
    return size.ws_col - 1;
}

/* The bytes of UTF-8 text that fit into so many columns, in whole characters; *used: the columns that they take.
 * Characters from U+1000 on count as two, as many of them do. */
static int fit(const char *text, int width_left, int *used) {
    int bytes = 0;
    *used = 0;
    while (text[bytes] != '\0') {
        const int width = (unsigned char)text[bytes] >= 0xE1 ? 2 : 1;
        if (*used + width > width_left) {
            break;
        }
        *used += width;
        for (bytes++; ((unsigned char)text[bytes] & 0xC0) == 0x80;) {
            bytes++;
        }
    }
    return bytes;
}

/* Writes a line, as much of it as fits. */
static void write_line(struct progress *progress, const char *text) {
    int used;
    const int bytes = fit(text, columns(progress), &used);
    fprintf(stderr, "%s%.*s%s", progress->terminal ? "\r\033[K" : "", bytes, text, progress->terminal ? "" : "\n");
    fflush(stderr);
    progress->open = progress->terminal;
}

/* "  left 4:05" or "  left 1:02:03", or "" as long as nothing is known. Another count, which begins again, is
 * estimated anew. */
static void estimate(struct progress *progress, double now, int64_t done, int64_t total, char left[32]) {
    if (done > progress->first && (progress->counted_at <= 0.0 || done < progress->counted)) {
        progress->counted = done;
        progress->counted_at = now;
    }
    const int64_t passed = progress->counted_at > 0.0 ? done - progress->counted : 0;
    const bool known = progress->of_seconds || passed > 0 || done == total;
    const double mean = passed > 0 ? (now - progress->counted_at) / (double)passed : 0.0;
    const double each = progress->of_seconds ? 1.0 : mean;
    const double seconds = each * (double)(total - done);
    const long long whole = seconds < 0.0 || seconds > 1e12 ? 0 : (long long)(seconds + 0.5);
    left[0] = '\0';
    if (known && whole >= 3600) {
        snprintf(left, 32, "  left %lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
    } else if (known) {
        snprintf(left, 32, "  left %lld:%02lld", whole / 60, whole % 60);
    }
}

void progress_show(struct progress *progress, const char *label, int64_t done, int64_t total, const char *details) {
    const double now = progress_clock();
    char head[256], bar[2 * BAR_WIDTH + 8] = "", left[32], shown[512], line[1024];
    estimate(progress, now, done, total, left);
    if (progress->silent || now - progress->shown < (progress->terminal ? 0.1 : 10.0)) {
        return;
    }
    progress->shown = now;
    message_write(shown, sizeof shown, "%s", details);
    message_write(head, sizeof head, "%s%s %" PRId64 "/%" PRId64 " ", progress->task, label, done, total);
    int head_width, details_width;
    fit(head, INT_MAX, &head_width);
    fit(shown, INT_MAX, &details_width);
    /* the bar gives way first, then details */
    const int width_left = columns(progress) - head_width - (int)strlen(left);
    const int room = width_left - details_width - 3, cells = room < BAR_WIDTH ? room : BAR_WIDTH;
    const int filled = done < total ? (int)(cells * done / total) : cells;
    if (cells >= LEAST_BAR) { /* "[#####.....] " */
        snprintf(bar, sizeof bar, "[%.*s%.*s] ", filled, "####################", cells - filled,
                 "....................");
    }
    const int bytes = fit(shown, width_left - (int)strlen(bar), &details_width);
    snprintf(line, sizeof line, "%s%s%.*s%s", head, bar, bytes, shown, left);
    write_line(progress, line);
}

void progress_text(struct progress *progress, const char *text) {
    const double now = progress_clock();
    if (progress->silent ||
        (!progress->terminal && (now - progress->start < 2.0 || now - progress->shown < 10.0))) {
        return;
    }
    progress->shown = now;
    char line[1024];
    message_write(line, sizeof line, "%s", text);
    write_line(progress, line);
}

void progress_end(struct progress *progress) {
    if (progress->open) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        progress->open = false;
    }
}
