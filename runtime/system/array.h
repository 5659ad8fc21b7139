/* Arrays of a length that the compiler knows. */
#pragma once

/* How many elements an array has: not for pointers, nor for parameters of functions. */
#define COUNT(array) (sizeof(array) / sizeof *(array))
