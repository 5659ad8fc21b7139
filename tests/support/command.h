/* Our programs with arguments that name files of the scratch folder, as rows of tables. */
#pragma once

enum { COMMAND_WORDS = 24, COMMAND_SECONDS = 60 };

/* A program without "hc_" and its arguments; "@name" stands for the path of `name` in the scratch folder. */
struct command {
    const char *words[COMMAND_WORDS];
};

/* Runs it, with stdout to this file (NULL: nowhere): its exit status, or minus the signal that ended it, which is
 * SIGKILL after COMMAND_SECONDS. child_message has what it wrote to stderr. */
int command_run(const struct command *command, const char *output);
