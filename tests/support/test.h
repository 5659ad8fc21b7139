/* cmocka, behind the headers that it needs, and the head of a test. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define UNIT_TEST(name) static void name(__attribute__((unused)) void **state)

#include "runtime/system/error.h"
#include <string.h>

/* Fails unless the error text has these words. */
static inline void assert_error_text(const char *words) {
    if (strstr(error_text(), words) == NULL) {
        fail_msg("'%s' is not in '%s'", words, error_text());
    }
}
