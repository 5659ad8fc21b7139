#include "runtime/system/spawn.h"
#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

extern char **environ;

static int redirect(posix_spawn_file_actions_t *actions, int from, int to) {
    return from >= 0              ? posix_spawn_file_actions_adddup2(actions, from, to)
           : from == SPAWN_SILENT ? posix_spawn_file_actions_addopen(actions, to, "/dev/null", O_WRONLY, 0)
                                  : 0;
}

static int arrange(posix_spawn_file_actions_t *actions, const struct spawn_place *place) {
    int code = place->in >= 0 ? redirect(actions, place->in, STDIN_FILENO)
                              : posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    code = code ? code : redirect(actions, place->out, STDOUT_FILENO);
    code = code ? code : redirect(actions, place->err, STDERR_FILENO);
    return code || !place->folder ? code : posix_spawn_file_actions_addchdir_np(actions, place->folder);
}

int spawn_program(pid_t *child, const char *program, char *const arguments[], const struct spawn_place *place) {
    posix_spawn_file_actions_t actions;
    int code = posix_spawn_file_actions_init(&actions);
    if (code) {
        return code;
    }
    code = arrange(&actions, place);
    code = code ? code : posix_spawnp(child, program, &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    return code;
}
