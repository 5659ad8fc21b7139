#include "tests/support/command.h"
#include "tests/support/child.h"
#include "tests/support/scratch.h"
#include <stdio.h>

int command_run(const struct command *command, const char *output) {
    char program[512];
    const char *arguments[COMMAND_WORDS + 1] = {program};
    snprintf(program, sizeof program, HC_PROGRAMS "/hc_%s", command->words[0]);
    for (size_t i = 1; i < COMMAND_WORDS && command->words[i] != NULL; i++) {
        const char *word = command->words[i];
        arguments[i] = *word == '@' ? scratch_path(word + 1) : word;
    }
    const struct child_setup setup = {.output = output};
    return child_finish_within(child_start_with(&setup, arguments), COMMAND_SECONDS);
}
