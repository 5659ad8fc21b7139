#include "runtime/files/input.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

enum {
    STORED_BYTES = 1 << 18, /* read at once */
    MAGIC_BYTES = 6,        /* enough to tell the compressed forms apart */
    FIRST_BYTES = 512,      /* decompressed bytes that are examined: a header of tar */
    GZIP_WINDOW = 15 + 16,  /* of zlib: the largest window, gzip's header */
};

enum input_form { FORM_UNKNOWN, FORM_PLAIN, FORM_GZIP, FORM_ZSTD };

struct input {
    struct path name; /* for messages */
    int descriptor, stop_descriptor;
    EVP_MD_CTX *checksum;
    uint64_t stored; /* bytes read from the descriptor */
    uint64_t least;  /* bytes that the file had when it was opened, and must have; 0 for pipes */
    enum input_form form;
    bool in_member; /* reading is inside a member of compressed data: not between two, nor behind the last */
    z_stream gzip;
    ZSTD_DStream *zstd;
    size_t at, held;                  /* bytes of `block` that are taken, and filled */
    bool at_end;                      /* of the descriptor */
    size_t first_at, first_held;      /* bytes of `first` that were given to the caller, and filled */
    unsigned char first[FIRST_BYTES]; /* decompressed */
    unsigned char block[STORED_BYTES];
};

const char *input_name(const char *path) {
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

/* ---- opening */

/* Examines what the descriptor reads, or if it is -1, what is at the path. */
static int examine(const char *path, int descriptor, struct input_status *status) {
    struct stat found;
    if ((descriptor >= 0 ? fstat(descriptor, &found) : stat(path, &found)) != 0) {
        return files_fail_open(path, input_name(path));
    }
    if (S_ISDIR(found.st_mode)) {
        return error_set("cannot read %s: it is a folder; name its files", input_name(path));
    }
    *status = (struct input_status){0};
    if (S_ISREG(found.st_mode)) {
        *status = (struct input_status){
            .regular = true,
            .bytes = (uint64_t)found.st_size,
            .modified = (int64_t)found.st_mtim.tv_sec * 1000000000 + found.st_mtim.tv_nsec,
        };
    }
    return 0;
}

int input_examine(const char *path, struct input_status *status) {
    return examine(path, strcmp(path, "-") == 0 ? STDIN_FILENO : -1, status);
}

int input_open(const char *path, int stop_descriptor, struct input **opened) {
    struct input_status status = {0};
    struct input *input = memory_zeroed(1, sizeof *input);
    *opened = NULL;
    input->name = path_of("%s", input_name(path));
    input->stop_descriptor = stop_descriptor;
    /* O_NONBLOCK: opening a named pipe does not wait for its writer, wait_for_data does. */
    input->descriptor = strcmp(path, "-") == 0 ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (input->descriptor < 0) {
        files_fail_open(path, input_name(path));
    } else if (examine(path, input->descriptor, &status) == 0) {
        input->checksum = checksum_create();
        const off_t begin = lseek(input->descriptor, 0, SEEK_CUR); /* standard input may have been read before */
        input->least = begin >= 0 && (uint64_t)begin < status.bytes ? status.bytes - (uint64_t)begin : 0;
        *opened = input;
        return 0;
    }
    input_close(input);
    return -1;
}

void input_close(struct input *input) {
    if (!input) {
        return;
    }
    if (input->descriptor > STDIN_FILENO) {
        close(input->descriptor);
    }
    if (input->form == FORM_GZIP) {
        inflateEnd(&input->gzip);
    }
    ZSTD_freeDStream(input->zstd);
    EVP_MD_CTX_free(input->checksum);
    free(input);
}

/* ---- as stored */

/* Waits until there is something to read. Returns true if reading shall stop. */
static bool wait_for_data(const struct input *input) {
    struct pollfd waiting[2] = {{input->stop_descriptor, POLLIN, 0}, {input->descriptor, POLLIN, 0}};
    while (poll(waiting, 2, -1) < 0 && errno == EINTR) {
    }
    return waiting[0].revents != 0;
}

/* Fills the rest of the block; at the end of the file less. */
static int fill_block(struct input *input) {
    while (input->held < STORED_BYTES && !input->at_end) {
        if (wait_for_data(input)) {
            return error_set("stopped while reading %s", input->name.text);
        }
        const ssize_t got = read(input->descriptor, input->block + input->held, STORED_BYTES - input->held);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
            continue;
        }
        if (got < 0) {
            return error_set_errno("cannot read %s", input->name.text);
        }
        checksum_update(input->checksum, input->block + input->held, (size_t)got);
        if (got == 0 && input->stored < input->least) {
            return error_set("%s became shorter while it was read: it had %" PRIu64
                             " bytes, and ends after %" PRIu64,
                             input->name.text, input->least, input->stored);
        }
        input->at_end = got == 0;
        input->held += (size_t)got;
        input->stored += (size_t)got;
    }
    return 0;
}

/* Makes sure that there is something in the block unless the file has ended. */
static int next_block(struct input *input) {
    if (input->at < input->held) {
        return 0;
    }
    input->at = input->held = 0;
    return fill_block(input);
}

/* ---- what it is */

static bool begins_with(const unsigned char *data, size_t bytes, const char *magic) {
    return bytes >= strlen(magic) && memcmp(data, magic, strlen(magic)) == 0;
}

static bool is_gzip(const unsigned char *data, size_t bytes) {
    return begins_with(data, bytes, "\x1f\x8b");
}

/* Frames of data, and skippable frames, which zstd's parallel and seekable forms have before and behind them. */
static bool is_zstd(const unsigned char *data, size_t bytes) {
    return begins_with(data, bytes, "\x28\xb5\x2f\xfd") ||
           (bytes >= 4 && data[0] >> 4 == 5 && memcmp(data + 1, "\x2a\x4d\x18", 3) == 0);
}

/* ---- decompressed */

static int fail_damaged(const struct input *input, const char *how) {
    return error_set("%s: the %s data is damaged before byte %" PRIu64 " of the file (%s)", input->name.text,
                     input->form == FORM_GZIP ? "gzip" : "zstd", input->stored - (input->held - input->at), how);
}

static int take_gzip(struct input *input, unsigned char *data, size_t bytes, size_t *got) {
    input->gzip.next_in = input->block + input->at;
    input->gzip.avail_in = (uInt)(input->held - input->at);
    input->gzip.next_out = data;
    input->gzip.avail_out = bytes < UINT_MAX ? (uInt)bytes : UINT_MAX;
    const uInt capacity = input->gzip.avail_out;
    const int result = inflate(&input->gzip, Z_NO_FLUSH);
    input->at = input->held - input->gzip.avail_in;
    *got = capacity - input->gzip.avail_out;
    input->in_member = result != Z_STREAM_END;
    if (result == Z_STREAM_END) {
        return inflateReset(&input->gzip) == Z_OK ? 0 : fail_damaged(input, "zlib refuses to go on");
    }
    return result == Z_OK || result == Z_BUF_ERROR
               ? 0
               : fail_damaged(input, input->gzip.msg ? input->gzip.msg : "zlib gives no reason");
}

static int take_zstd(struct input *input, unsigned char *data, size_t bytes, size_t *got) {
    ZSTD_inBuffer from = {input->block, input->held, input->at};
    ZSTD_outBuffer to = {data, bytes, 0};
    const size_t left = ZSTD_decompressStream(input->zstd, &to, &from);
    input->at = from.pos;
    *got = to.pos;
    if (ZSTD_isError(left) && ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge) {
        return error_set(
            "%s was compressed with a window larger than 128 MiB: pipe it, zstd -dc --long=31 FILE | ... -",
            input->name.text);
    }
    if (ZSTD_isError(left)) {
        return fail_damaged(input, ZSTD_getErrorName(left));
    }
    input->in_member = left != 0;
    return 0;
}

static int take_plain(struct input *input, unsigned char *data, size_t bytes, size_t *got) {
    const size_t held = input->held - input->at;
    *got = held < bytes ? held : bytes;
    memcpy(data, input->block + input->at, *got);
    input->at += *got;
    return 0;
}

/* Each decompresses from the block; *got is less than `bytes` if more of the file is needed. */
static int (*const take[])(struct input *input, unsigned char *data, size_t bytes, size_t *got) = {
    [FORM_PLAIN] = take_plain, [FORM_GZIP] = take_gzip, [FORM_ZSTD] = take_zstd};

/* Between two members of compressed data: zeros fill up blocks of tapes, anything else has no business there. */
static int check_next_member(struct input *input) {
    while (input->at < input->held && input->block[input->at] == 0) {
        input->at++;
    }
    if (input->at == input->held) {
        return 0;
    }
    /* a member's first bytes may be the last ones of a block */
    memmove(input->block, input->block + input->at, input->held - input->at);
    input->held -= input->at;
    input->at = 0;
    if (input->held < MAGIC_BYTES && fill_block(input)) {
        return -1;
    }
    const bool follows = (input->form == FORM_GZIP ? is_gzip : is_zstd)(input->block, input->held);
    return follows ? 0 : fail_damaged(input, "after its end something else follows");
}

static int decompress(struct input *input, void *data, size_t bytes, size_t *got) {
    *got = 0;
    while (*got < bytes) {
        size_t some;
        if (next_block(input) || (input->form != FORM_PLAIN && !input->in_member && check_next_member(input))) {
            return -1;
        }
        if (input->at == input->held && !input->in_member) { /* in a member there may be more than was put in */
            if (input->at_end) {
                break;
            }
            continue;
        }
        if (take[input->form](input, (unsigned char *)data + *got, bytes - *got, &some)) {
            return -1;
        }
        if (some == 0 && input->at_end && input->at == input->held && input->in_member) {
            return error_set("%s: its compressed data ends in the middle, after %" PRIu64
                             " bytes: the file is truncated, get it again",
                             input->name.text, input->stored);
        }
        *got += some;
    }
    return 0;
}

/* ---- text */

/* Fails if the first bytes are those of an archive, of another compression, or of UTF-16. */
static int refuse_other_forms(const struct input *input) {
    static const struct {
        size_t at;
        const char *magic, *what;
    } others[] = {
        {0, "\xfd\x37zXZ", "compressed by xz, which is not read here: decompress it first (xz -dc FILE)"},
        {0, "BZh", "compressed by bzip2, which is not read here: decompress it first (bzip2 -dc FILE)"},
        {0, "\x04\x22\x4d\x18", "compressed by lz4, which is not read here: decompress it first (lz4 -dc FILE)"},
        {0, "\x1f\x9d", "compressed by compress, which is not read here: decompress it first (zcat FILE)"},
        {0, "PAR1", "a Parquet file: make JSON lines of it first, with data/parquet_lines.py"},
        {0, "PK\x03\x04", "a zip archive: unpack it first"},
        {0, "7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first"},
        {257, "ustar", "a tar archive: unpack it first, and give its files"},
        {0, "\xff\xfe", "text in UTF-16 or UTF-32: convert it to UTF-8 first, with iconv"},
        {0, "\xfe\xff", "text in UTF-16 or UTF-32: convert it to UTF-8 first, with iconv"},
    };
    if (is_gzip(input->first, input->first_held) || is_zstd(input->first, input->first_held)) {
        return error_set("%s is compressed twice: decompress it once first", input->name.text);
    }
    for (size_t i = 0; i < COUNT(others); i++) {
        if (input->first_held > others[i].at &&
            begins_with(input->first + others[i].at, input->first_held - others[i].at, others[i].magic)) {
            return error_set("%s is %s", input->name.text, others[i].what);
        }
    }
    return 0;
}

/* Finds out what the file is, and takes its first bytes. */
static int begin_text(struct input *input) {
    if (next_block(input)) {
        return -1;
    }
    if (is_gzip(input->block, input->held)) {
        input->form = FORM_GZIP;
    } else {
        input->form = is_zstd(input->block, input->held) ? FORM_ZSTD : FORM_PLAIN;
    }
    input->in_member = input->form != FORM_PLAIN;
    if ((input->form == FORM_GZIP && inflateInit2(&input->gzip, GZIP_WINDOW) != Z_OK) ||
        (input->form == FORM_ZSTD && (input->zstd = ZSTD_createDStream()) == NULL)) {
        memory_refused(0);
    }
    if (decompress(input, input->first, FIRST_BYTES, &input->first_held) || refuse_other_forms(input)) {
        return -1;
    }
    input->first_at = begins_with(input->first, input->first_held, "\xef\xbb\xbf") ? 3 : 0;
    return 0;
}

int input_read(struct input *input, void *data, size_t bytes, size_t *got) {
    *got = 0;
    if (input->form == FORM_UNKNOWN && begin_text(input)) {
        return -1;
    }
    const size_t held = input->first_held - input->first_at, first = held < bytes ? held : bytes;
    memcpy(data, input->first + input->first_at, first);
    input->first_at += first;
    const int status = decompress(input, (unsigned char *)data + first, bytes - first, got);
    *got += first;
    return status;
}

const char *input_label(const struct input *input) {
    return input->name.text;
}

bool input_is_plain(const struct input *input) {
    return input->form == FORM_PLAIN || input->form == FORM_UNKNOWN;
}

uint64_t input_stored_bytes(const struct input *input) {
    return input->stored;
}

void input_digest(struct input *input, char digest[CHECKSUM_SIZE]) {
    checksum_finish(input->checksum, digest);
    input->checksum = NULL;
}
