/* Where the libraries come from that a program is linked with, or loads while it runs. */
#pragma once

#include <stdbool.h>

/* Prints a line for each to stdout: its name, its version where it reports one, and its file. Loads those that
 * programs load when they compute. */
void libraries_print(bool computes);
