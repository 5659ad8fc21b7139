#include "tests/support/hostile.h"
#include "runtime/system/utf8.h"
#include "tests/support/test.h"
#include <string.h>

void assert_shown(const char *text) {
    uint32_t character;
    size_t length;
    for (const char *at = text; *at != '\0'; at += length) {
        length = utf8_decode(at, strlen(at), &character);
        if (length == 0 || (utf8_is_control(character) && character != '\n' && character != '\t')) {
            fail_msg("byte %zu, 0x%02x, is not one to print: %s", (size_t)(at - text), (unsigned char)*at, text);
        }
    }
    if (strncmp(text, "forged", 6) == 0 || strstr(text, "\nforged") != NULL) {
        fail_msg("a line is forged in: %s", text);
    }
    if (strstr(text, "\\x") == NULL) {
        fail_msg("what was hostile is not shown in: %s", text);
    }
}
