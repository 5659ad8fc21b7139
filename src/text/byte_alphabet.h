/* GPT-2's alphabet for bytes: the characters that stand for bytes in vocab.bpe and in tokenizer.json. A byte that
 * prints in Latin-1 stands for itself; the other 68 are the characters from U+0100 on, in their order. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The byte that a character stands for; -1: none. */
int byte_alphabet_find(uint32_t character);

/* The bytes in the order of GPT-2's first tokens: those that stand for themselves, then the others. index < 256. */
unsigned char byte_alphabet_at(unsigned index);

/* Replaces text [*bytes] of such characters by the bytes, in place. False, with the text as it was, if it has
 * another character. */
bool byte_alphabet_decode(char *text, size_t *bytes);
