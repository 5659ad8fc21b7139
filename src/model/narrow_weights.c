#include "src/model/narrow_weights.h"
#include "runtime/system/array.h"
#include "runtime/system/parallel.h"
#include "src/operations/policy.h"
#include <math.h>
#include <string.h>

uint64_t narrow_blocks(uint64_t rows, uint64_t columns) {
    return rows * ((columns + NARROW_BLOCK - 1) / NARROW_BLOCK);
}

/* The means of neighbours among the sixteen numbers of cl/narrow_weights.cl. */
static const float nf4_bounds[15] = {
    -0.84809637069702148f, -0.61063289642333984f, -0.45999526977539062f,  -0.33967941999435425f,
    -0.23460739850997925f, -0.13791173696517944f, -0.045525018125772476f, 0.03979014977812767f,
    0.120255246758461f,    0.2035212516784668f,   0.29201376438140869f,   0.38931253552436829f,
    0.5016634464263916f,   0.64278692007064819f,  0.86147844791412354f,
};

static unsigned nf4_code(float scaled) {
    unsigned code = 0;
    for (size_t i = 0; i < COUNT(nf4_bounds); i++) {
        code += scaled > nf4_bounds[i];
    }
    return code;
}

static float pack_block(int kept, const float *values, size_t count, unsigned char *codes) {
    float most = 0.0f;
    for (size_t i = 0; i < count; i++) {
        most = fmaxf(most, fabsf(values[i]));
    }
    memset(codes, 0, narrow_block_bytes(kept));
    if (kept == FROZEN_INT8) {
        const float scale = most / 127.0f;
        for (size_t i = 0; i < count && scale > 0.0f; i++) {
            codes[i] = (unsigned char)(signed char)rintf(fminf(fmaxf(values[i] / scale, -127.0f), 127.0f));
        }
        return scale;
    }
    const float inverse = 1.0f / fmaxf(most, 1e-38f);
    for (size_t i = 0; i < count; i++) {
        codes[i / 2] |= (unsigned char)(nf4_code(values[i] * inverse) << (i % 2 ? 0 : 4));
    }
    return most;
}

struct packing {
    int kept;
    uint64_t columns;
    const float *values;
    unsigned char *codes;
    float *scales;
};

static int pack_row(void *context, size_t row) {
    const struct packing *all = context;
    const uint64_t in_row = narrow_blocks(1, all->columns);
    for (uint64_t i = 0; i < in_row; i++) {
        const uint64_t block = row * in_row + i, first = i * NARROW_BLOCK;
        all->scales[block] = pack_block(all->kept, all->values + row * all->columns + first,
                                        size_smaller(NARROW_BLOCK, all->columns - first),
                                        all->codes + block * narrow_block_bytes(all->kept));
    }
    return 0;
}

void narrow_pack(int kept, uint64_t rows, uint64_t columns, const float *values, unsigned char *codes,
                 float *scales) {
    struct packing all = {kept, columns, values, codes, scales};
    parallel_run(rows, pack_row, &all);
}
