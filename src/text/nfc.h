/* Unicode's normalization form C as the tokenizers of Hugging Face compute it, from the tables of Unicode 9. */
#pragma once

#include "src/text/text_buffer.h"

/* Makes *text [*bytes], which is UTF-8, its normal form: in `buffer`, unless it is normal already. */
void nfc_normalize(const char **text, size_t *bytes, struct text_buffer *buffer);
