/* Safetensors files for tests: whole tensors in memory, and how far two are apart. What fails is a failure of the
 * test. */
#pragma once

#include "runtime/files/safetensors.h"

/* Opens the file at "<folder>/<name>". */
struct safetensors *tensors_open(const char *folder, const char *name);

/* All values of a tensor, heap memory. */
float *tensors_read(const struct safetensors *file, const struct tensor_info *info);

/* The tensor of this name, "<prefix><name>". */
const struct tensor_info *tensors_need(const struct safetensors *file, const char *prefix, const char *name);

double tensors_norm(const float *x, size_t count);
double tensors_distance(const float *a, const float *b, size_t count); /* L2; NaN if any is */
double tensors_largest(const float *x, size_t count);
double tensors_largest_difference(const float *a, const float *b, size_t count); /* NaN if any is */

/* For safetensors_write: the tensors' elements are in memory, and context is an array of pointers to them. */
int tensors_take(void *context, size_t tensor, uint64_t first, uint64_t count, float *values);
