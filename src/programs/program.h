/* How all programs begin, fail and end. A main fills in a table of options, and then:
 *
 *     if (program_begin(&program, specs, COUNT(specs), argc, argv)) {
 *         program.status = run(&settings);
 *     }
 *     return program_end(&program);
 */
#pragma once

#include "runtime/options/option_rows.h"
#include "runtime/ranks/ranks.h"
#include "runtime/system/array.h"

struct program {
    struct program_info info;
    bool computes;      /* uses an OpenCL device */
    bool is_job;        /* may run under mpirun; only rank 0 has a stdout then */
    bool heeds_signals; /* ends in good order after a signal (runtime/system/interrupt.h), also while ranks start */
    bool takes_arguments; /* beside options */

    /* Set by program_begin: */
    int status;
    const char *const *arguments; /* [argument_count], beside options */
    size_t argument_count;
    struct ranks ranks; /* of the job, or this process alone */
    struct option_spec *specs;
    size_t spec_count;
    struct options_given *given; /* the command line */
};

/* Parses the command line and joins the job. False where there is nothing more to do: after --help and --version,
 * and after errors, see program->status. Collective in a job. */
bool program_begin(struct program *program, struct option_spec *specs, size_t count, int argc, char **argv);

/* Whether a step of a job has gone well on all ranks; `status` is this rank's, and goes to program->status, which
 * is PROGRAM_WRONG where only others have failed. Collective. */
bool program_agree(struct program *program, int status);

/* Prints "<name>: <error text>" to stderr. */
void program_print_error(const struct program *program);

/* For work that an interruption ends with an error text: PROGRAM_FAILED, or if there was one PROGRAM_INTERRUPTED,
 * with the error text printed. */
int program_failed(const struct program *program);

/* Prints the error text, if there is one after a failure, on rank 0 or on the rank whose error it is, and ends the
 * other ranks in that case. Frees what the options have set, and leaves the job. Returns the exit status. */
int program_end(struct program *program);
