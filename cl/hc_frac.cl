/* frac, Frac-Connections (arXiv 2503.14125): the streams are fractions of a token's channels, each with an RMSNorm
 * of its own, and what a fraction of the branch's input reads is a row of pre.
 *
 *   pre_ij = alpha_mix tanh(z_j . w_pre[:,i]) + b_pre_ij     res_ij = alpha_mix tanh(z_j . w_res[:,i]) + b_res_ij
 *   post_i = alpha_post tanh(z_i . w_post) + b_post_i
 *
 * So it is hc with S rows of pre, and one alpha of pre and res: the code is that of hc_hc.cl. h is pre [S, S] |
 * post [S] | res [S, S].
 */
#include "hc_hc.cl"
