/* What a compiler of kernels says, with the places that it names in our files. */
#pragma once

/* The log with file and line wherever it has a line of `text` only, as the compilers of NVIDIA and Mesa have, which pass over #line:
 * "<kernel>:123:4:", "(123:4)" and "line 123" become "stream_mix.cl:23:4:", "(stream_mix.cl:23:4)" and "line 23 of stream_mix.cl".
 * `text` is of several files, each behind a line `#line 1 "NAME"`. Lines of the log that name one of them stay. Heap memory; NULL
 * where that runs out. */
char *build_log_locate(const char *text, const char *log);
