/* The files of src/exchange/, embedded at build time, that exports get beside the weights. */
#pragma once

struct export_file {
    const char *name; /* file name, "model.py"; NULL ends the table */
    const char *text; /* its text */
};

extern const struct export_file export_files[];
