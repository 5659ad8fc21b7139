#include "runtime/system/spawn.h"
#include "runtime/system/memory.h"
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

const char *const spawn_rank_variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_RANK",  "PMI_SIZE",
                                            "MV2_COMM_WORLD_SIZE",  "PMIX_RANK", NULL};

const char *const spawn_size_variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",     "MV2_COMM_WORLD_SIZE",
                                            "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", NULL};

static bool is_listed(const char *const *names, const char *line) {
    const size_t length = strcspn(line, "=");
    for (; *names; names++) {
        if (strlen(*names) == length && memcmp(*names, line, length) == 0) {
            return true;
        }
    }
    return false;
}

int spawn_program(pid_t *child, const char *program, char *const arguments[], const struct spawn_files *files) {
    posix_spawn_file_actions_t actions;
    int code = posix_spawn_file_actions_init(&actions);
    if (code) {
        return code;
    }
    const int from[] = {files->in, files->out, files->err};
    for (int to = 0; to < 3 && !code; to++) {
        if (from[to] >= 0) {
            code = posix_spawn_file_actions_adddup2(&actions, from[to], to);
        } else if (to == STDIN_FILENO || from[to] == SPAWN_SILENT) {
            code = posix_spawn_file_actions_addopen(&actions, to, "/dev/null", to ? O_WRONLY : O_RDONLY, 0);
        }
    }
    /* our environment without the variables of launchers */
    size_t count = 0, kept = 0;
    while (environ[count]) {
        count++;
    }
    char **lines = memory_zeroed(count + 1, sizeof *lines);
    for (size_t i = 0; i < count; i++) {
        if (!is_listed(spawn_rank_variables, environ[i]) && !is_listed(spawn_size_variables, environ[i])) {
            lines[kept++] = environ[i];
        }
    }
    code = code ? code : posix_spawnp(child, program, &actions, NULL, arguments, lines);
    free(lines);
    posix_spawn_file_actions_destroy(&actions);
    return code;
}
