/* The scripts of this folder, embedded at build time. */
#pragma once

struct vulkan_script {
    const char *name; /* "clspv.py"; NULL ends the table */
    const char *text;
};

extern const struct vulkan_script vulkan_scripts[];
