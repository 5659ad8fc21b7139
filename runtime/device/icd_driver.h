/* OpenCL drivers that no ICD file names: the program itself finds and loads them. OpenCL's loader passes calls on
 * their objects to them, but does not know their platforms: so contexts are created without naming the platform. */
#pragma once

#include <CL/cl.h>

struct icd_driver {
    void *(*find)(const char *name); /* the driver's functions; NULL: it was not loaded, or is no driver */
    cl_platform_id platform;         /* its first one; NULL: it has none */
    const char *problem;             /* why there is no driver, valid until dlerror is called; NULL: none */
};

/* Loads a driver for good, such as "libpocl.so.2", which is looked for on this program's RUNPATH and where
 * libraries are. */
struct icd_driver icd_driver_load(const char *library);
