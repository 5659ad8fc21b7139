/* The table of residual variants: every row is whole and within the limits that others rely on, and what follows
 * from the rows: numbers of streams in words, settings, build constants. */
#include "runtime/device/programs.h"
#include "runtime/system/memory.h"
#include "src/variants/residual.h"
#include "tests/support/test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_kernel_file(const char *variant) {
    char name[64];
    snprintf(name, sizeof name, "hc_%s.cl", variant);
    for (const struct embedded_text *source = kernel_sources; source->name; source++) {
        if (strcmp(source->name, name) == 0) {
            return true;
        }
    }
    return false;
}

UNIT_TEST(rows_are_whole) {
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        assert_true(variant->name && strlen(variant->name) < 32 &&
                    variant->name[strcspn(variant->name, "|,: ")] == '\0');
        assert_true(residual_find(variant->name) == variant && residual_number(variant) == i);
        assert_true(variant->summary && *variant->summary && variant->summary[strlen(variant->summary) - 1] != '.');
        assert_true(variant->streams != 0 && variant->streams < 2u << RESIDUAL_MAX_STREAMS &&
                    !(variant->streams & 1));
        assert_int_equal(has_kernel_file(variant->name), residual_has_matrices(variant));
        assert_true(strstr(residual_names(), variant->name) != NULL);
    }
    assert_null(residual_at(residual_number(residual_at(0)) + 1000));
    assert_null(residual_find("no such variant"));
    assert_null(residual_find(""));
}

/* The leaves: no name twice, gates and norm as the kernels expect them, sizes that others keep room for. */
UNIT_TEST(leaves_are_within_their_limits) {
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        size_t projections = 0, norms = 0;
        for (const struct residual_leaf *leaf = variant->leaves; leaf && leaf->name; leaf++) {
            projections += leaf->kind == LEAF_PROJECTION;
            norms += leaf->kind == LEAF_NORM;
            assert_non_null(leaf->initial);
            assert_true((leaf->width != NULL) == (leaf->kind == LEAF_PROJECTION || leaf->kind == LEAF_VECTOR));
            for (const struct residual_leaf *next = leaf + 1; next->name; next++) {
                assert_string_not_equal(leaf->name, next->name);
            }
        }
        assert_true(projections <= RESIDUAL_MAX_PROJECTIONS);
        assert_int_equal(norms, projections > 0);
        assert_true(projections > 0 || residual_is_fixed(variant) || !residual_has_matrices(variant));
    }
}

UNIT_TEST(settings_are_within_their_limits) {
    const struct residual_settings defaults = residual_settings_default();
    const struct residual_setting *setting;
    const struct residual_variant *owner;
    size_t i;
    for (i = 0; (setting = residual_setting_at(i, &owner)); i++) {
        assert_int_equal(residual_setting_find(setting->name), i); /* no name twice */
        assert_true(*setting->help && owner->settings <= setting);
        const double value =
            setting->type == RESIDUAL_INT ? (double)defaults.values[i].number : defaults.values[i].real;
        assert_true(setting->type == RESIDUAL_BOOL || (value >= setting->least && value <= setting->most));
    }
    assert_true(i <= RESIDUAL_MAX_SETTINGS);
    assert_int_equal(residual_setting_find("no such setting"), i);
}

static void assert_defined(const char *variant, const struct residual_settings *settings, const char *expected) {
    char *text;
    size_t bytes;
    FILE *file = memory_open_stream(&text, &bytes);
    residual_settings_define(residual_find(variant), settings, file);
    memory_close_stream(file);
    assert_string_equal(text, expected);
    free(text);
}

UNIT_TEST(only_the_settings_of_a_variant_are_defined) {
    struct residual_settings settings = residual_settings_default();
    settings.values[residual_setting_find("sinkhorn_iters")].number = 7;
    settings.values[residual_setting_find("freeze_gamma")].flag = true;
    assert_defined("mhc", &settings, " -DSINKHORN_ITERATIONS=7");
    assert_defined("shc", &settings, " -DFREEZE_GAMMA=1");
    assert_defined("hc", &settings, "");
}

static void assert_streams(unsigned streams, const char *words) {
    const struct residual_variant variant = {.name = "any", .streams = streams};
    char text[64];
    assert_string_equal(residual_streams_text(&variant, text, sizeof text), words);
}

UNIT_TEST(numbers_of_streams_are_said_in_words) {
    assert_streams(1u << 1, "1");
    assert_streams(0x1fcu, "2 to 8");
    assert_streams(1u << 2 | 1u << 4 | 1u << 8, "2, 4 or 8");
    assert_streams(1u << 2 | 1u << 3, "2 or 3");
    assert_streams(1u << 1 | 1u << 2 | 1u << 3 | 1u << 7, "1, 2, 3 or 7");
    const struct residual_variant powers = {.streams = 1u << 2 | 1u << 4 | 1u << 8};
    assert_true(residual_takes(&powers, 4) && !residual_takes(&powers, 3));
    assert_false(residual_takes(&powers, 0) || residual_takes(&powers, -62) || residual_takes(&powers, 34));
}

UNIT_TEST(the_list_has_a_line_for_every_variant) {
    char *text = NULL, *rest = NULL;
    size_t bytes, i = 0;
    FILE *file = open_memstream(&text, &bytes);
    assert_int_equal(residual_list(file), 0);
    fclose(file);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), i++) {
        const size_t length = strlen(residual_at(i)->name);
        assert_true(strncmp(line, residual_at(i)->name, length) == 0 && line[length] == ' ');
        assert_non_null(strstr(line, residual_at(i)->summary));
        assert_non_null(strstr(line, residual_at(i)->source));
    }
    assert_null(residual_at(i));
    free(text);
}

UNIT_TEST_MAIN(NULL, NULL)
