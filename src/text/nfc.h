/* Unicode's normalization form C as the tokenizers of Hugging Face compute it, from the tables of Unicode 9. */
#pragma once

#include "src/text/text_buffer.h"

struct nfc;

struct nfc *nfc_create(void);
void nfc_free(struct nfc *nfc);

/* Makes *text [*bytes], which is UTF-8, its normal form: in `buffer`, unless it is normal already. */
void nfc_normalize(const struct nfc *nfc, const char **text, size_t *bytes, struct text_buffer *buffer);
