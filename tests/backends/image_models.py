"""Small models of pictures of 16 × 16 pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 5


class Plain(nn.Module):
    """[batch, 3, 16, 16] to [batch, 5]: every pixel counts, so that a wrong preprocessing shows."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 16 * 16, CLASSES)
        with torch.no_grad():
            self.head.weight.copy_(torch.sin(torch.arange(self.head.weight.numel()).reshape_as(self.head.weight)))
            self.head.weight *= 0.05
            self.head.bias.zero_()

    def forward(self, image: Tensor) -> Tensor:
        return self.head(image.flatten(1))


class Single(Plain):
    """One picture without a batch: [3, 16, 16] to [5]."""

    def forward(self, image: Tensor) -> Tensor:
        return self.head(image.flatten())


class WithThreshold(Plain):
    """A second input beside the picture, and a second output."""

    def forward(self, image: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        logits = super().forward(image) - threshold
        return logits, logits.amax(dim=1, keepdim=True)


def plain() -> nn.Module:
    return Plain()


def single() -> nn.Module:
    return Single()


def with_threshold() -> nn.Module:
    return WithThreshold()
