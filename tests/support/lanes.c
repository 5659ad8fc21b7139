#include "tests/support/lanes.h"
#include "runtime/system/error.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAST_RIGHT = 3 }; /* version; 4 and 5 were not tried */

bool lanes_can_be_tried(const struct device *device) {
    const bool is_pocl = strstr(device->platform_name, "Portable Computing Language");
    if (is_pocl && strtol(device->driver, NULL, 10) > LAST_RIGHT) {
        printf("SKIPPED: PoCL %s is not known to compile kernels of several lanes right\n", device->driver);
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
