"""Small image classifiers for variants: one sound, one with a layer that INT8 spoils."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 10


class Classifier(nn.Module):
    """[batch, 3, 16, 16] to [batch, 10]. `spike`: how much larger one channel of the first layer is than the rest."""

    def __init__(self, spike: float) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.body = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.tail = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.head = nn.Linear(16, CLASSES)
        with torch.no_grad():
            self.stem.weight[0] *= spike
            self.body.weight[:, 0] /= spike
            for layer in (self.stem, self.body, self.tail, self.head):
                layer.bias.zero_()

    def forward(self, image: Tensor) -> Tensor:
        x = torch.relu(self.stem(image))
        x = torch.relu(self.body(x))
        x = torch.tanh(self.tail(x))
        return self.head(x.mean(dim=(2, 3)))


def sound() -> nn.Module:
    return Classifier(spike=1.0)


def spiky() -> nn.Module:
    return Classifier(spike=300.0)
