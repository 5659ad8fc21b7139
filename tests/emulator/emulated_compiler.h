/* From a program for an emulated GPU to PTX. */
#pragma once

/* Compiles `before` and the text with these options, by clang in a temporary folder. The PTX, or NULL; *log becomes
 * what clang has printed. Both are heap memory. Changes the text first as EMULATED_GPU_CHANGE asks for
 * (emulated_gpu.c). */
char *emulated_compile(const char *before, const char *text, const char *options, char **log);
