#include "tests/support/lanes.h"
#include "runtime/system/error.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_WRONG = 4 }; /* versions 4 and 5, which no Debian has, were not tried */

bool lanes_can_be_tried(const struct device *device) {
    const bool is_pocl = strstr(device->platform_name, "Portable Computing Language");
    if (is_pocl && strtol(device->driver, NULL, 10) >= FIRST_WRONG) {
        printf("SKIPPED: PoCL %s compiles kernels of several lanes wrong\n", device->driver);
        return false;
    }
    return true;
}

bool lanes_can_be_tried_on_pocl(void) {
    struct device device;
    if (device_choose("pocl", 0, &device)) {
        fprintf(stderr, "%s\n", error_text());
        exit(1);
    }
    return lanes_can_be_tried(&device);
}
