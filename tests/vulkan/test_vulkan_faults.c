/* A device on Vulkan that fails under hc_train, mocked by tests/support/faulty_vulkan.c, and compilers, caches and
 * drivers that are not as they should be: what is reported, that nothing ends by a signal or hangs, and that no
 * checkpoint suffers. */
#include "runtime/device/programs.h"
#include "tests/support/hostile.h"
#include "tests/support/runs.h"
#include <dirent.h>

static const char train_program[] = HC_PROGRAMS "/hc_train", bench_program[] = HC_PROGRAMS "/hc_bench";

enum { KEY_DIGITS = 64, MOST_CACHED = 200 };

static const char small[] = "device = vulkan\n"
                            "residual = rc\n"
                            "gemm = portable\n"
                            "max_iters = 3\n"
                            "checkpoint_interval = 1\n"
                            "keep_checkpoints = 3\n";

/* ---- runs */

#define RUN_ARGUMENTS(program, run, ...)                                                                           \
    ((const char *const[]){program, "--config", scratch_path("tiny.conf"), "--config", scratch_path("small.conf"), \
                           "--data-dir", scratch_path("data"), "--out-dir", scratch_path(run), ##__VA_ARGS__,      \
                           NULL})

/* Its exit status, or minus the signal that ended it; SIGKILL is for one that hangs. What is changed in its
 * environment ends with NULL. */
#define RUN_IN(program, run, bytes, changed, ...)                                                                  \
    child_finish_within(child_start_with(&(struct child_setup){.output = scratch_path("output"),                   \
                                                               .environment = (changed),                           \
                                                               .file_bytes = (bytes)},                             \
                                         RUN_ARGUMENTS(program, run, ##__VA_ARGS__)),                              \
                        3 * TIMEOUT_SECONDS)
#define TRAIN_CHANGED(run, changed, ...) RUN_IN(train_program, run, 0, changed, ##__VA_ARGS__)
#define CHANGED(...)                     ((const char *const[]){__VA_ARGS__, NULL})

/* "NAME=value" for a child's environment, valid until 8 more calls. */
static const char *setting(const char *name, const char *value) {
    static char settings[8][512];
    static unsigned next;
    char *text = settings[next++ % 8];
    snprintf(text, sizeof settings[0], "%s=%s", name, value);
    return text;
}

/* One message with this text, at the end of the output. */
static void assert_reported(int status, const char *text) {
    assert_failed(status, 1, text);
    const char *message = strstr(child_message(), "hc_");
    assert_non_null(message);
    assert_null(strstr(message + 1, "\nhc_train: "));
}

/* Every checkpoint that a run left is what a run that nothing happened to has. */
static long assert_checkpoints_whole(const char *run) {
    const long reached = newest(run, 0);
    for (long i = 1; i <= reached; i++) {
        assert_same_checkpoint(run, "unharmed", scratch_format("ckpt-%ld", i));
    }
    return reached;
}

/* ---- calls that fail */

static unsigned long calls_of(const char *function) {
    unsigned long calls = 0;
    char *counts = scratch_text(scratch_path("counts"), NULL);
    const char *line = strstr(counts, function);
    assert_true(line && sscanf(line + strlen(function), "%lu", &calls) == 1);
    return calls;
}

static const char *fault(const char *function, int code, unsigned long call, const char *how) {
    return setting("HC_VULKAN_FAULT", scratch_format("%s %d %lu %s", function, code, call, how));
}

struct failing {
    const char *function;
    int code;
    const char *text;
    enum { AT_START, WHILE_TRAINING, PASSED_OVER } when; /* a later call happens; the last where it happens once */
};

static const struct failing failing[] = {
    {"vkCreateDevice", -3, "cannot create a context: CL_INVALID_OPERATION (vkCreateDevice: VK_ERROR_INIT",
     AT_START},
    {"vkCreateSemaphore", -2, "cannot create a command queue: CL_MEM_OBJECT_ALLOCATION_FAILURE", AT_START},
    {"vkCreateCommandPool", -1, "cannot create a command queue: CL_OUT_OF_HOST_MEMORY", AT_START},
    {"vkAllocateCommandBuffers", -2, "cannot create a command queue: CL_MEM_OBJECT_ALLOCATION_FAILURE", AT_START},
    {"vkCreateDescriptorPool", -1000161000, "cannot create a command queue: CL_MEM_OBJECT_ALL", AT_START},
    {"vkCreateBuffer", -1, "choose a smaller batch_size", AT_START},
    {"vkAllocateMemory", -2, "VK_ERROR_OUT_OF_DEVICE_MEMORY (-2)): the device has no memory left: choose",
     AT_START},
    {"vkBindBufferMemory", -2, "VK_ERROR_OUT_OF_DEVICE_MEMORY", AT_START},
    {"vkMapMemory", -5, "VK_ERROR_MEMORY_MAP_FAILED (-5)): the host, or the device, has no memory left", AT_START},
    {"vkCreateShaderModule", -1, "vkCreateShaderModule: VK_ERROR_OUT_OF_HOST_MEMORY", PASSED_OVER},
    {"vkCreateDescriptorSetLayout", -1, "cannot create kernel", AT_START},
    {"vkCreatePipelineLayout", -1, "cannot create kernel", AT_START},
    {"vkCreateComputePipelines", -13, "VK_ERROR_UNKNOWN (-13); another version of the device's driver", AT_START},
    {"vkAllocateDescriptorSets", -1000069000, "VK_ERROR_OUT_OF_POOL_MEMORY", WHILE_TRAINING},
    {"vkBeginCommandBuffer", -1, "VK_ERROR_OUT_OF_HOST_MEMORY", WHILE_TRAINING},
    {"vkEndCommandBuffer", -2, "VK_ERROR_OUT_OF_DEVICE_MEMORY", WHILE_TRAINING},
    {"vkQueueSubmit", -2, "VK_ERROR_OUT_OF_DEVICE_MEMORY", PASSED_OVER},
    {"vkQueueSubmit", -4, "the device was lost", WHILE_TRAINING},
    {"vkWaitSemaphores", -1, "VK_ERROR_OUT_OF_HOST_MEMORY", WHILE_TRAINING},
    {"vkWaitSemaphores", -4, "the device was lost", WHILE_TRAINING},
    {"vkGetSemaphoreCounterValue", -4, "the device was lost", WHILE_TRAINING},
};

/* One of the run's last calls, or with a checkpoint there the fifth from then on. How many there are while products
 * are timed before training depends on the machine. */
static void fail_later(const struct failing *row) {
    const bool trains = row->when == WHILE_TRAINING;
    const unsigned long call = trains ? 5 : 1 + calls_of(row->function) * 3 / 4;
    const char *const changed[] = {fault(row->function, row->code, call, "once"),
                                   trains ? setting("HC_VULKAN_AFTER", scratch_path("later/ckpt-1")) : NULL, NULL};
    const int status = TRAIN_CHANGED("later", changed, "--start-over");
    if (row->when == PASSED_OVER) {
        assert_done(status);
    } else {
        assert_reported(status, row->text);
    }
    const long reached = assert_checkpoints_whole("later");
    assert_true(row->when == AT_START || reached >= (trains ? 1 : 3));
}

/* The first of all calls and those after it, and a later one by itself. */
UNIT_TEST(failing_calls_are_reported) {
    for (const struct failing *row = failing; row < failing + COUNT(failing); row++) {
        assert_true(calls_of(row->function) > 0);
        assert_reported(TRAIN_CHANGED("first", CHANGED(fault(row->function, row->code, 1, "on")), "--start-over"),
                        row->text);
        assert_int_equal(newest("first", 0), -1);
        if (calls_of(row->function) > 1) {
            fail_later(row);
        }
    }
}

UNIT_TEST(lost_device_leaves_a_checkpoint) {
    const char *after = setting("HC_VULKAN_AFTER", scratch_path("lost/ckpt-1"));
    assert_reported(TRAIN_CHANGED("lost", CHANGED(fault("vkQueueSubmit", -4, 2, "on"), after)),
                    "the device was lost");
    assert_non_null(strstr(child_message(), "--init-from resume goes on from there"));
    assert_true(assert_checkpoints_whole("lost") >= 1);
    assert_done(TRAIN_CHANGED("lost", NULL, "--init-from", "resume"));
    assert_int_equal(assert_checkpoints_whole("lost"), 3);
}

/* Times are wanted for the table only. */
UNIT_TEST(profile_does_without_times) {
    assert_reported(RUN_IN(bench_program, "bench", 0, CHANGED(fault("vkCreateQueryPool", -2, 1, "on")),
                           "--profile"),
                    "cannot create a command queue");
    assert_done(RUN_IN(bench_program, "bench", 0, CHANGED(fault("vkGetQueryPoolResults", -1, 1, "on")), "--profile",
                       "--steps", "1", "--warmup", "0"));
}

/* ---- drivers that are not there */

UNIT_TEST(missing_drivers_are_reported) {
    mkdir(scratch_path("no-loader"), 0700);
    scratch_write("no-loader/libvulkan.so.1", "", 0);
    assert_reported(TRAIN_CHANGED("nothing", CHANGED(setting("LD_LIBRARY_PATH", scratch_path("no-loader")))),
                    "needs Vulkan's loader");
    assert_reported(TRAIN_CHANGED("nothing", CHANGED("VK_ICD_FILENAMES=/nonexistent.json")),
                    "there is no Vulkan driver");
    assert_reported(TRAIN_CHANGED("nothing", CHANGED(fault("vkEnumeratePhysicalDevices", -3, 1, "on"))),
                    "Vulkan offers no device");
}

/* ---- the compiler */

/* Puts a compiler on PATH that does this when it compiles; what is to be changed in the environment for it, with no
 * cache to help. */
static const char *const *with_compiler(const char *script) {
    static const char *changed[3];
    static char path[600], cache[600], text[1000];
    mkdir(scratch_path("bin"), 0700);
    snprintf(text, sizeof text, "#!/bin/sh\n[ \"$1\" = --version ] && exit\n%s\n", script);
    chmod(scratch_write("bin/clspv", text, strlen(text)), 0700);
    snprintf(path, sizeof path, "PATH=%s:/usr/bin:/bin", scratch_path("bin"));
    snprintf(cache, sizeof cache, "XDG_CACHE_HOME=%s", scratch_path("cold"));
    changed[0] = path;
    changed[1] = cache;
    return changed;
}

UNIT_TEST(missing_compiler_is_needed_for_new_programs_only) {
    const char *path = setting("PATH", scratch_path("nothing-here"));
    assert_reported(TRAIN_CHANGED("cold", CHANGED(path, setting("XDG_CACHE_HOME", scratch_path("cold")))), "clspv");
    assert_non_null(strstr(child_message(), "ci/setup.sh vulkan"));
    assert_done(TRAIN_CHANGED("warm", CHANGED(path)));
    assert_int_equal(assert_checkpoints_whole("warm"), 3);
}

UNIT_TEST(failing_compiler_is_reported) {
    assert_reported(TRAIN_CHANGED("cold", with_compiler("echo 'no such thing as a kernel'; exit 3")),
                    "clspv ended with status 3");
    assert_non_null(strstr(child_message(), "no such thing as a kernel"));
    assert_reported(TRAIN_CHANGED("cold",
                                  with_compiler("printf 'a kernel\\033[31m\\r\\nforged: all is well\\n'; exit 3")),
                    "a kernel\\x1b[31m");
    assert_shown(child_message());
    assert_reported(TRAIN_CHANGED("cold", with_compiler("exit 1")),
                    "ended with status 1 and wrote nothing; is there room in");
    assert_reported(TRAIN_CHANGED("cold", with_compiler("kill -9 $$")), "clspv was ended by signal 9 (Killed)");
    assert_reported(TRAIN_CHANGED("cold", with_compiler("exit 0")), "clspv ended with status 0 and wrote nothing");
    assert_reported(TRAIN_CHANGED("cold", with_compiler("for last; do :; done; : > \"$last\"")),
                    "clspv ended with status 0 and wrote nothing");
    assert_reported(TRAIN_CHANGED("cold", with_compiler("for last; do :; done; echo rubbish > \"$last\"")),
                    "it is no SPIR-V");
}

UNIT_TEST(folder_for_compiling_is_named) {
    const char *cache = setting("XDG_CACHE_HOME", scratch_path("cold"));
    assert_reported(TRAIN_CHANGED("cold", CHANGED(cache, "TMPDIR=/nonexistent")),
                    "cannot make a folder in /nonexistent");
    assert_non_null(strstr(child_message(), "set TMPDIR"));
    /* files of the run are smaller than the source of a program */
    assert_reported(RUN_IN(train_program, "cold", 1024, CHANGED(cache)), "File too large; set TMPDIR");
}

static long lines_of(const char *path) {
    long lines = 0;
    size_t bytes;
    char *text = scratch_read(path, &bytes);
    for (const char *end = text; end && (end = strchr(end, '\n')); end++) {
        lines++;
    }
    free(text);
    return lines;
}

static void wait_for_lines(const char *path, long lines) {
    for (int waited = 0; lines_of(path) < lines && waited < TIMEOUT_SECONDS * 1000; waited += 10) {
        wait_ms(10);
    }
    assert_true(lines_of(path) >= lines);
}

/* The first one asks the program to stop, which goes on compiling to do so in order; the second one ends both. */
UNIT_TEST(ctrl_c_ends_a_compiler_that_hangs) {
    const char *processes = scratch_path("processes");
    const char *script = scratch_format("echo $$ >> %s; exec sleep 1000", processes);
    const struct child_setup setup = {.environment = with_compiler(script)};
    const char *const *train = RUN_ARGUMENTS("/usr/bin/setsid", "hanging");
    const char *arguments[32] = {train[0], train_program};
    for (int i = 1; train[i] && i < 30; i++) {
        arguments[i + 1] = train[i];
    }
    const pid_t child = child_start_with(&setup, arguments);
    for (long i = 1; i <= 2; i++) {
        wait_for_lines(processes, i);
        assert_int_equal(kill(-child, SIGINT), 0);
    }
    assert_int_equal(child_finish_within(child, TIMEOUT_SECONDS), -SIGINT);
    for (int waited = 0; kill(-child, 0) == 0 && waited < TIMEOUT_SECONDS * 1000; waited += 10) {
        wait_ms(10);
    }
    assert_int_equal(kill(-child, 0), -1); /* nobody is left of them */
}

/* ---- the cache */

struct cached {
    char name[KEY_DIGITS + 5]; /* without a folder */
    char *data;
    size_t bytes;
};

static size_t list_cache(struct cached entries[MOST_CACHED]) {
    struct dirent **names;
    const int count = scandir(scratch_path("cache/hctrain"), &names, NULL, alphasort);
    size_t found = 0;
    assert_in_range(count, 2, MOST_CACHED);
    for (int i = 0; i < count; i++) {
        if (*names[i]->d_name != '.') {
            struct cached *entry = &entries[found++];
            snprintf(entry->name, sizeof entry->name, "%.*s", KEY_DIGITS + 4, names[i]->d_name);
            entry->data = scratch_text(scratch_path(run_path("cache/hctrain", entry->name)), &entry->bytes);
        }
        free(names[i]);
    }
    free(names);
    return found;
}

static bool is_same(const struct cached *one, const struct cached *other) {
    return one->bytes == other->bytes && !memcmp(one->data, other->data, one->bytes);
}

/* How a program of the cache is spoilt: cut, changed in a byte, or whole and no program. */
static void spoil(struct cached *entry, size_t how) {
    char key[KEY_DIGITS + 1], *middle = &entry->data[entry->bytes / 2];
    snprintf(key, sizeof key, "%.*s", KEY_DIGITS, entry->name);
    switch (how) {
    case 0:
        scratch_write(run_path("cache/hctrain", entry->name), entry->data, entry->bytes / 2);
        break;
    case 1:
        *middle ^= 1;
        scratch_write(run_path("cache/hctrain", entry->name), entry->data, entry->bytes);
        *middle ^= 1;
        break;
    default:
        program_cache_write(scratch_path("cache/hctrain"), key, (const unsigned char *)"rubbish", 8);
    }
}

/* What other tests left there is not needed by this run, and stays as it is. */
UNIT_TEST(damaged_programs_are_compiled_again) {
    enum { WAYS = 3 };
    static struct cached whole[MOST_CACHED], spoilt[MOST_CACHED], now[MOST_CACHED];
    size_t mended[WAYS] = {0};
    const size_t count = list_cache(whole);
    for (size_t i = 0; i < count; i++) {
        spoil(&whole[i], i % WAYS);
    }
    assert_int_equal(list_cache(spoilt), count);
    assert_done(TRAIN_CHANGED("damaged", NULL));
    assert_int_equal(assert_checkpoints_whole("damaged"), 3);
    assert_int_equal(list_cache(now), count);
    for (size_t i = 0; i < count; i++) {
        assert_false(is_same(&whole[i], &spoilt[i]));
        mended[i % WAYS] += is_same(&now[i], &whole[i]);
        assert_true(is_same(&now[i], &whole[i]) || is_same(&now[i], &spoilt[i]));
    }
    for (int way = 0; way < WAYS; way++) {
        assert_in_range(mended[way], 2, count);
    }
}

/* ---- Vulkan's validation layer */

static bool layer_complains(const char *run, const char *const *changed) {
    const int status = TRAIN_CHANGED(run, changed, "--start-over");
    char *output = scratch_text(scratch_path("output"), NULL);
    const bool complains = strstr(output, "Validation ") || strstr(child_message(), "Validation ");
    if (!complains) {
        assert_done(status);
    } else {
        print_message("%.400s\n", output);
    }
    return complains;
}

/* And it is not silent by mistake: it speaks where a call is left out, and where nothing keeps commands apart. */
UNIT_TEST(validation_layer_says_nothing) {
    const char *layer = "VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation";
    const char *apart = "VK_LAYER_ENABLES=VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT";
    if (access("/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json", F_OK)) {
        skip();
    }
    assert_false(layer_complains("valid", CHANGED(layer, apart)));
    assert_int_equal(assert_checkpoints_whole("valid"), 3);
    assert_true(layer_complains("invalid", CHANGED(layer, fault("vkEndCommandBuffer", 0, 1, "once"))));
    assert_true(layer_complains("invalid", CHANGED(layer, apart, fault("vkCmdPipelineBarrier", 0, 1, "on"))));
}

/* The first run compiles, and counts. */
static int set_up(void **state) {
    char counts[600];
    if (corpus_begin(state)) {
        return -1;
    }
    scratch_write("small.conf", small, strlen(small));
    setenv("VK_ICD_FILENAMES", HC_LAVAPIPE, 1);
    setenv("LD_PRELOAD", HC_FAULTY_VULKAN, 1);
    setenv("XDG_CACHE_HOME", scratch_path("cache"), 1);
    snprintf(counts, sizeof counts, "HC_VULKAN_COUNTS=%s", scratch_path("counts"));
    const int status = TRAIN_CHANGED("unharmed", NULL);
    if (status) {
        fprintf(stderr, "%s", child_message());
    }
    return status || TRAIN_CHANGED("counted", CHANGED(counts));
}

UNIT_TEST_MAIN(set_up, scratch_end)
