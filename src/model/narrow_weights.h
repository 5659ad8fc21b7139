/* Weights in blocks of few bits (enum frozen_weights), made on the host; cl/narrow_weights.cl expands them. */
#pragma once

#include <stdint.h>

/* Blocks of rows [rows, columns]: each row has its own, the last of which may be shorter. */
uint64_t narrow_blocks(uint64_t rows, uint64_t columns);

/* Packs rows: codes [blocks, narrow_block_bytes(kept)], of a shorter block zeros behind its last; scales [blocks].
 *
 * int8: scale = max |w| / 127, code = w / scale rounded to nearest even. nf4: scale = max |w|, code = that of 16
 * numbers which is nearest to w / scale, by comparing w * (1 / scale) with the means of neighbours, as bitsandbytes
 * does: the same codes. Of two codes in a byte the first is in the high half. */
void narrow_pack(int kept, uint64_t rows, uint64_t columns, const float *values, unsigned char *codes,
                 float *scales);
