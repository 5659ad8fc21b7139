#include "tests/support/random_checkpoint.h"
#include "runtime/system/random.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/weights.h"
#include "tests/support/runs.h"

int random_checkpoint_values(void *context, size_t parameter, uint64_t first, uint64_t count, float *values) {
    const struct parameters *parameters = context;
    random_normal(random_key(3, parameters->table[parameter].name), first, count, 0.1, 0.3, values);
    return 0;
}

void random_checkpoint_write(const char *name, const struct model_config *config) {
    struct parameters parameters;
    struct model_config checked = *config;
    require(model_config_check(&checked));
    parameters_create(&checked, &parameters);
    struct tensor_info *infos = calloc(parameters.count, sizeof *infos);
    for (size_t i = 0; i < parameters.count; i++) {
        infos[i] = weights_tensor(&parameters.table[i]);
    }
    require(files_make_folder(scratch_path(name)));
    require(config_file_write(scratch_path(name), &checked));
    require(safetensors_write(scratch_path(run_path(name, "model.safetensors")), infos, parameters.count,
                              random_checkpoint_values, &parameters));
    free(infos);
    parameters_release(&parameters);
}
