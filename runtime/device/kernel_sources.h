/* The OpenCL files of cl/, embedded at build time. */
#pragma once

struct kernel_source {
    const char *name; /* file name, e.g. "attention.cl"; NULL ends the table */
    const char *text; /* its text */
};

extern const struct kernel_source kernel_sources[];
