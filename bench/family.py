"""What bench/tables.py says of each residual connection beside what programs count."""
import math
from typing import Callable, NamedTuple


class Words(NamedTuple):
    formula: str
    parameters: str  # of a sublayer
    work: Callable  # FLOPs of a forward pass for a token and sublayer in units of C, of n streams, C channels and L layers
    public_code: str  # where it does something else


def mixed(columns):
    """work of a connection with projections to columns(n) numbers: those, H_res, H_pre and H_post."""
    return lambda n, C, L: 2 * n * columns(n) + 2 * n * n + 4 * n


FAMILY = {
    "rc": Words("x' = x + o", "0", lambda n, C, L: 1, ""),
    "identity": Words("H_res = I", "nC (1 + 2n)", mixed(lambda n: 2 * n), ""),
    "hc": Words("H_res = alpha tanh(z w) + b", "C (3 + n)", mixed(lambda n: n + 2), "its paper sums the streams before the last norm (`--stream-reduce sum_norm`)"),
    "mhc": Words("H_res = Sinkhorn(exp(a))", "nC (1 + 2n + n^2)", mixed(lambda n: 2 * n + n * n),
                 "DeepSeek's kernels add 1e-6 inside the iterations; mHC-lite's code applies H_res transposed"),
    "mhc_lite": Words("H_res = sum_k softmax(a)_k P_k", "nC (1 + 2n + n!)", mixed(lambda n: 2 * n + math.factorial(n)), "applies H_res transposed"),
    "shc": Words("H_res = J + Z U diag(s) V^T Z^T", "nC (1 + 2n + (n - 1)^2)", mixed(lambda n: 2 * n + (n - 1) ** 2), ""),
    "krom": Words("H_res = U_1 x .. x U_K", "nC (1 + 2n + 2 log2 n)", mixed(lambda n: 2 * n + 2 * math.log2(n)), "the same to 2e-7"),
    "circulant": Words("H_res = sum_k c_k P^k", "nC (1 + 3n)", mixed(lambda n: 3 * n), ""),
    "go_mhc": Words("H_res = mean squares of blocks of a rotation", "nC (1 + 2n + n (2n - 1))", mixed(lambda n: 2 * n + n * (2 * n - 1)),
                    "its initial values are not public"),
    "ohc": Words("H_res = the matrix of x -> q x conj(r), q and r unit quaternions", "nC (1 + 2n + 8)", mixed(lambda n: 2 * n + 8),
                 "the paper takes the 8 numbers from mhc's 16 columns"),
    "wide": Words("H_pre, H_post and H_res = I (or diagonal) are the same for all tokens", "2n (or 3n)", lambda n, C, L: 4 * n, ""),
    "mhc + read_delay": Words("mhc, which reads with the H_pre of the sublayer before", "nC (1 + 2n + n^2)", mixed(lambda n: 2 * n + n * n), ""),
    "gated": Words("u = mean_i G_i z_i, G a gate per channel; x'_i = x_i + s_i o", "nC (1 + 2r + n), r = C / 8",
                   lambda n, C, L: 2 * n * (2 * math.ceil(C / 8) + n) + 5 * n, ""),
    "attnres": Words("u = sum_s a_s S_s over the embedding and all outputs before, a = softmax(query . norm(S))", "2C", lambda n, C, L: 6 * (2 * L + 1) / 2,
                     "Kimi K3 counts blocks in layers: half of `--attnres-block`"),
    "mudd": Words("q, k, v and r of a block read sum_s a_s S_s over all blocks before", "a block: C h + h w + w, w = 4 (i + 2), h = 64 (w div 64 + 1)",
                  lambda n, C, L: sum(C * mudd_hidden(i) * 2 + 2 * mudd_hidden(i) * 4 * (i + 2) + 8 * C * (i + 2) for i in range(L)) / (2 * L * C),
                  "MLPs wider with depth; without `--mudd-norm prepost` hyper-connection-factory's diverges at 24 layers"),
    "dense": Words("after block i: h = sum_s b_s S_s over the embedding and all blocks (depth-weighted average, DWA)", "a block: i + 2",
                   lambda n, C, L: (L + 3) / 2, "decays b"),
    "laurel": Words("x' = a o + b (x + x w_down w_up), (a, b) = 2 softmax(b_mix)", "2 + 2Cr, r = 16", lambda n, C, L: 4 * 16 + 5,
                    "none; Gemma 3n norms the product"),
    "dar": Words("x' = x + o, o = branch(norm(x + gate R)), R attnres's mix of complete blocks", "2C + 1", lambda n, C, L: 6 * (2 * L + 1) / 2 + 2,
                 "the first sublayer has no R; `delta_block` takes recursive differences"),
    "frac": Words("hc on n fractions of C / n channels: u_i = sum_j H_pre[i, j] x_j", "2C + 2C / n + 2n^2 + n + 2", lambda n, C, L: 8 * n + 4,
                  "LayerNorm in the listing; lucidrains' `num_fracs` is another map"),
}


def mudd_hidden(block):
    """The hidden numbers of the mix after a block; the last block's, which are more in all, are counted as the others'."""
    return (4 * (block + 2) // 64 + 1) * 64
