/* Faults in kernels, to see that a self-test finds them: a function of OpenCL's stands in front of the library's
 * and changes the text of programs before they are compiled, so that neither the kernels nor the code that builds
 * them know of faults. The compute's programs and its cache of them know nothing of faults either: open it without
 * a cache, and have it forget its programs (programs_release) before and after. */
#pragma once

/* From now on `wrong` stands for `right` in every program that has it; NULL: no more. */
void planted_fault_set(const char *right, const char *wrong);

/* How many programs have been changed since it was set. */
unsigned planted_fault_programs(void);
