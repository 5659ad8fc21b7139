/* A stub for every function of functions.h, for the calling convention of x86-64: it asks fault_decide whether the call
 * fails, with the caller's registers as they are, and goes on to the real function or returns. */

#define FAULT(function, group, way, error, argument) stub function;

    .text
    .set number, 0
    .macro stub name
    .globl \name
    .type \name, @function
\name:
    movl $number, %r11d
    jmp ask
    .size \name, . - \name
    .set number, number + 1
    .endm

#include "tests/faults/functions.h"

    .type ask, @function
ask:
    pushq %rbp
    movq %rsp, %rbp
    subq $192, %rsp
    movq %rdi, 0(%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    movq %rax, 48(%rsp)
    movups %xmm0, 64(%rsp)
    movups %xmm1, 80(%rsp)
    movups %xmm2, 96(%rsp)
    movups %xmm3, 112(%rsp)
    movups %xmm4, 128(%rsp)
    movups %xmm5, 144(%rsp)
    movups %xmm6, 160(%rsp)
    movups %xmm7, 176(%rsp)
    movl %r11d, %edi
    movq %rsp, %rsi     /* the arguments in registers */
    leaq 8(%rbp), %rdx  /* where the call returns to, and behind it the arguments on the stack */
    call fault_decide
    movq %rax, %r11     /* the real function, or 0 */
    movq %rdx, %r10     /* what is returned else */
    movq 0(%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    movq 48(%rsp), %rax
    movups 64(%rsp), %xmm0
    movups 80(%rsp), %xmm1
    movups 96(%rsp), %xmm2
    movups 112(%rsp), %xmm3
    movups 128(%rsp), %xmm4
    movups 144(%rsp), %xmm5
    movups 160(%rsp), %xmm6
    movups 176(%rsp), %xmm7
    leave
    testq %r11, %r11
    je fails
    jmp *%r11
fails:
    movq %r10, %rax
    ret
    .size ask, . - ask

    .section .note.GNU-stack, "", @progbits
