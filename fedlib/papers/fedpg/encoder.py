"""What a run's last global model makes of images: their features."""

import torch
from torch import Tensor

from fedlib.attacks.pixels import to_inputs, to_pixels
from fedlib.attacks.reconstruction import Encode
from fedlib.core.shards import Shards
from fedlib.runs.runner import Final

BATCH = 500  # images embedded at once


def global_encoder(final: Final) -> Encode:
    """Return the frozen extractor: images in [-1, 1] to the head's input ``[B, d]``.

    Raises
    ------
    ValueError
        The method has no global model.
    """
    fed, state = final.federation, final.shared

    def encode(images: Tensor) -> Tensor:
        return fed.ctx.net(state, to_inputs(images, fed.train.mean, fed.train.std)).high

    return encode


def pictures(shards: Shards, index: Tensor) -> Tensor:
    """Return images ``[..., c, h, w]`` in [-1, 1] for indices of any shape."""
    inputs = shards._replace(augment=None).inputs(index)
    return to_pixels(inputs, shards.mean, shards.std)


@torch.no_grad()
def embedded(encode: Encode, shards: Shards, index: Tensor) -> Tensor:
    """Return embeddings ``[..., d]`` of images for indices of any shape."""
    parts = [encode(pictures(shards, i)) for i in index.flatten().split(BATCH)]
    return torch.cat(parts).unflatten(0, index.shape)
