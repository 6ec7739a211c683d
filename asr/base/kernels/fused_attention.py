"""torch's fused attention, in shapes that its CUDA kernels accept."""

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

# The memory-efficient kernel requires that two sizes are multiples of this number: the dimension of a head in 16-bit
# types (to which autocast may cast later), and the stride, in elements, of the rows of an additive mask.
MULTIPLE = 8
# On Hopper torch would prefer cuDNN's kernel. It returns no gradient of an additive mask, and has returned NaN
# gradients with masks (pytorch issues 139298 and 196678). The flash kernel accepts no mask.
BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, dropout: float, scale: float | None = None
) -> Tensor:
    """Compute softmax(scale query key^T + mask) value with torch's kernels.

    Args:
        query: (..., Q, D).
        key: (..., K, D), like `value`.
        mask: (..., Q or 1, K), added to the scores; or bool, True where a query may attend to a key.
        dropout: probability that a weight is dropped.
        scale: factor of the scores; None: 1 / sqrt(D).

    Returns:
        (..., Q, D).
    """
    if not query.is_cuda:
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, scale=scale)
    with sdpa_kernel(BACKENDS):
        return padded_attention(query, key, value, mask, dropout=dropout, scale=scale)


def padded_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, dropout: float, scale: float | None = None
) -> Tensor:
    """Compute `fused_attention` with zeros appended to each head's dimensions, and with aligned rows of the mask.

    Zeros change no score, and the additional outputs are removed. Weights and dropout have the shape (Q, K) as before.
    """
    head_dim = query.shape[-1]
    scale = head_dim**-0.5 if scale is None else scale  # from the dimension before padding
    if more := -head_dim % MULTIPLE:
        query, key, value = (F.pad(part, (0, more)) for part in (query, key, value))
    if mask.is_floating_point() and mask.stride(-2) % MULTIPLE:
        mask = F.pad(mask, (0, -mask.shape[-1] % MULTIPLE))[..., : mask.shape[-1]]
    return F.scaled_dot_product_attention(query, key, value, mask, dropout, scale=scale)[..., :head_dim]
