#include "runtime/system/library.h"
#include <stdlib.h>

void *library_load(const char *const *names) {
    void *library = NULL;
    for (; *names && !library; names++) {
        library = dlopen(*names, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
    return library;
}

bool library_path(void *library, const char *function, char path[PATH_MAX]) {
    Dl_info info;
    const void *symbol = dlsym(library, function);
    return symbol && dladdr(symbol, &info) && realpath(info.dli_fname, path);
}
