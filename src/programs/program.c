#include "src/programs/program.h"
#include "runtime/device/device.h"
#include "runtime/files/files.h"
#include "runtime/ranks/job.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "src/programs/libraries.h"
#include "src/training/same_job.h"
#include <jansson.h>
#include <stdlib.h>

void program_print_error(const struct program *program) {
    message_print(stderr, "%s: %s\n", program->info.name, error_text());
}

int program_failed(const struct program *program) {
    if (!interrupt_requested()) {
        return PROGRAM_FAILED;
    }
    program_print_error(program);
    return PROGRAM_INTERRUPTED;
}

static int join_job(struct program *program) {
    if (program->heeds_signals && job_is_launched()) {
        interrupt_install(); /* a rank that dies while the others start may leave the launcher waiting */
    }
    if (job_start(&program->ranks)) {
        program_print_error(program);
        exit(PROGRAM_FAILED); /* there is no job that could be left in good order */
    }
    if (program->ranks.index > 0 && !freopen("/dev/null", "w", stdout)) {
        fclose(stdout);
    }
    return same_job_program(&program->ranks);
}

bool program_agree(struct program *program, int status) {
    const bool failed = ranks_agree(&program->ranks, status) != 0;
    program->status = failed && status == PROGRAM_DONE ? PROGRAM_WRONG : status;
    return !failed;
}

/* Sets the targets. */
static int apply(struct program *program, int argc, char **argv, int first_free) {
    if (options_apply_given(program->given)) {
        return PROGRAM_WRONG;
    }
    if (!program->takes_arguments && first_free < argc) {
        error_set("unexpected argument '%s'; see %s --help", argv[first_free], program->info.name);
        return PROGRAM_WRONG;
    }
    program->arguments = (const char *const *)argv + first_free;
    program->argument_count = (size_t)(argc - first_free);
    return PROGRAM_DONE;
}

/* Of --help, --version and the like. */
static int answer(const struct program *program, enum options_result asked) {
    if (options_answer(asked, program->specs, program->spec_count, &program->info)) {
        return -1;
    }
    if (asked == OPTIONS_VERSION) {
        libraries_print(program->computes);
    }
    return files_flush(stdout, "the answer");
}

/* So that jansson's functions fail for what they are given only. */
static void *allocate_for_json(size_t bytes) {
    return memory_allocate(bytes, 1);
}

bool program_begin(struct program *program, struct option_spec *specs, size_t count, int argc, char **argv) {
    int first_free = argc, status = PROGRAM_WRONG;
    json_set_alloc_funcs(allocate_for_json, free);
    program->specs = specs;
    program->spec_count = count;
    program->ranks = ranks_alone;
    const enum options_result asked = options_set_defaults(specs, count)
                                          ? OPTIONS_WRONG
                                          : options_read(specs, count, argc, argv, &first_free, &program->given);
    /* Makes folders, which is too much for --help; has to come before MPI, which starts threads. */
    if (program->computes && asked == OPTIONS_OK) {
        device_prepare_environment();
    }
    if (program->is_job && join_job(program)) {
        program->status = PROGRAM_FAILED;
        return false;
    }
    if (asked == OPTIONS_OK) {
        status = apply(program, argc, argv, first_free);
    } else if (asked != OPTIONS_WRONG) {
        status = answer(program, asked) ? PROGRAM_FAILED : PROGRAM_DONE;
    }
    return program_agree(program, status) && asked == OPTIONS_OK;
}

int program_end(struct program *program) {
    const bool failed = program->status == PROGRAM_FAILED || program->status == PROGRAM_WRONG;
    if (failed && *error_text()) {
        ranks_end_others(&program->ranks, program->info.name);
        if (program->ranks.index == 0) {
            program_print_error(program);
        }
    }
    options_given_free(program->given);
    options_free(program->specs, program->spec_count);
    job_stop(&program->ranks);
    return program->status;
}
