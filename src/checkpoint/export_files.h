/* Files that exports for PyTorch get beside the weights: model.py, embedded at build time. */
#pragma once

struct export_file {
    const char *name; /* file name, "model.py"; NULL ends the table */
    const char *text; /* its text */
};

extern const struct export_file export_files[];
