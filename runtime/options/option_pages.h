/* The tables of options as manual pages and as completion for shells: what packages install (--help=man and the like). */
#pragma once

#include "runtime/options/options.h"

enum option_page { OPTION_PAGE_MAN, OPTION_PAGE_BASH, OPTION_PAGE_ZSH };

/* "man", "bash", "zsh"; false: none of them. */
bool option_page_named(const char *word, enum option_page *page);

/* To stdout: a manual page (roff), or a file of completion for bash or zsh. */
void option_page_print(enum option_page page, const struct option_spec *specs, size_t count,
                       const struct program_info *program);
