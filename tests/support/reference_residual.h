/* The maps of all residual variants in plain C and double precision, from the papers' formulas. A variant is a
 * function and a row of the table in reference_residual.c; the tests' cases loop over the rows of src/variants. */
#pragma once

#include "src/variants/residual.h"

enum { REFERENCE_LEAVES = 24 };

struct reference_map {
    const struct residual_variant *residual;
    const struct residual_settings *settings;
    size_t streams, channels, sublayers;
    double eps;                             /* hc_eps */
    double norm_eps;                        /* hc_norm_eps */
    bool transposed;                        /* h_res_transposed */
    const double *leaves[REFERENCE_LEAVES]; /* values of the small parameters, in the order of the variant's leaves;
                                               NULL: the connection lacks it (settings->is_static, is_unmixed) */
};

/* One token: raw projections x w [groups, columns], squares [S] of the streams -> normalised z and h = pre | post |
 * res. Columns that the connection lacks are 0. */
void reference_map_token(const struct reference_map *map, size_t columns, const double *raw, const double *squares,
                         double *z, double *h);

/* How far a matrix [S, S] is from what the variant's matrices are beside what its row promises, such as symmetric;
 * 0 where there is nothing more. */
double reference_structure(const struct residual_variant *residual, size_t streams, const double *matrix);

/* What the smallest singular value of the product of all sublayers' matrices cannot be below; 0 where it can be
 * anything. */
double reference_least_singular(const struct residual_variant *residual, const struct residual_settings *settings,
                                size_t sublayers);

/* Gives the setting of this name a value; of BOOL, all but 0 is true, and of CHOICE it is the word's place. */
void reference_set(struct residual_settings *settings, const char *name, double value);

/* The number of streams nearest to the wanted one that the variant takes. */
int64_t reference_streams(const struct residual_variant *residual, int64_t wanted);
