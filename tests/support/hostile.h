/* Text that whoever names a file, a tensor or a device may use to move a terminal's cursor or to make up lines. */
#pragma once

/* A colour, a line of its own, an 8-bit control sequence, and a mark that turns the direction of writing. */
#define HOSTILE_TEXT                                                                                               \
    "\x1b[31m\r\nforged: all is well\xc2\x9b"                                                                      \
    "2J\xe2\x80\xae"

/* Fails the test where a text, which ends with a zero, has a control character other than the ends of its lines and
 * tabs, is not UTF-8, has a line that begins with "forged", or shows nothing of what was hostile: no "\x". */
void assert_shown(const char *text);
