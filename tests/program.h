/* Running the project's programs in tests: fork and exec, with their standard error kept. */
#ifndef HC_TESTS_PROGRAM_H
#define HC_TESTS_PROGRAM_H

#include <stdint.h>
#include <sys/types.h>

/* Runs a program with these arguments to its end and returns its exit status, 128 + signal if one ended it. */
#define PROGRAM_RUN(name, ...) program_run(UINT64_MAX, name, (const char *const[]){__VA_ARGS__, NULL})

/* The same with files limited to this many bytes (UINT64_MAX: no limit). */
int program_run(uint64_t file_bytes, const char *name, const char *const *arguments);

/* In two steps, to send it signals in between. */
pid_t program_start(uint64_t file_bytes, const char *name, const char *const *arguments);
int program_finish(pid_t child);

/* What the last program that finished wrote to standard error and standard output. Valid until the next one. */
const char *program_errors(void);
const char *program_output(void);

/* Fails the test unless the last program's standard error contains the text. */
void program_expect(const char *text);

#endif
