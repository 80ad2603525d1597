"""Small models with one peculiarity each, built by functions a spec can name as `models.py:NAME`.

Lines that a message has to name carry a comment of the form `# line: WORD`.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Examples = tuple[Tensor, ...]
Built = tuple[nn.Module, Examples]


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


def linear() -> Built:
    return Linear(), (torch.randn(2, 8),)


def linear_module(*, width: int = 8) -> nn.Module:
    model = Linear()
    model.fc = nn.Linear(width, 4)
    return model


class FoldedReshape(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.reshape(2, -1, 8)).mean(dim=1)


def folded_reshape() -> Built:
    return FoldedReshape(), (torch.randn(2, 16),)


class BranchOnValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # line: branch
            return self.a(x)
        return self.b(x) * -1.0


def branch_on_values() -> Built:
    return BranchOnValues(), (torch.ones(2, 4),)


class LoopOnValues(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total = x
        for _ in range(int(x.abs().max().item())):  # line: loop
            total = total + x
        return total


def loop_on_values() -> Built:
    return LoopOnValues(), (torch.ones(2, 4) * 3,)


class Where(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.sum(dim=1, keepdim=True) > 0, x * 2, -x)


def where() -> Built:
    return Where(), (torch.ones(2, 4),)


class BranchOnBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] > 4 else x * 2 + 0.5


def branch_on_batch() -> Built:
    return BranchOnBatch(), (torch.randn(2, 4),)


class FixedView(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], 2, 4).transpose(0, 1).reshape(2, 3, 4).transpose(0, 1)


def fixed_view() -> Built:
    return FixedView(), (torch.randn(3, 8),)


def train_mode() -> Built:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    norm: Any = model[1]
    norm.running_mean.copy_(torch.full((8,), 3.0))
    norm.running_var.copy_(torch.full((8,), 4.0))
    return model.train(), (torch.randn(4, 8),)


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.fc(x), p=0.5)  # line: dropout


def functional_dropout() -> Built:
    return FunctionalDropout(), (torch.randn(4, 8),)


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)  # line: noise


def noise() -> Built:
    return Noise(), (torch.randn(4, 8),)


class DictOutputs(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": torch.softmax(x, -1), "boxes": x * 100.0}


def dict_outputs() -> Built:
    return DictOutputs(), (torch.randn(2, 4),)


class NestedOutputs(nn.Module):
    def forward(self, x: Tensor, scale: Tensor) -> Any:
        return (x * scale, [x + 1, {"aux": x - 1, "hidden": None}])


def nested_outputs() -> Built:
    return NestedOutputs(), (torch.ones(2, 3), torch.full((2, 1), 2.0))


Pair = collections.namedtuple("Pair", ["first", "second"])


class NamedTupleOutputs(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return Pair(x + 1, x * 2)


def named_tuple_outputs() -> Built:
    return NamedTupleOutputs(), (torch.ones(2, 3),)


@dataclasses.dataclass
class Record:
    logits: Tensor
    hidden: Tensor | None


class DataclassOutputs(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return Record(x + 1, None)


def dataclass_outputs() -> Built:
    return DataclassOutputs(), (torch.ones(2, 3),)


class NumberOutput(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x, 5


def number_output() -> Built:
    return NumberOutput(), (torch.ones(2, 3),)


class Difference(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a - 2 * b


def aliased_inputs() -> Built:
    same = torch.ones(2, 3)
    return Difference(), (same, same)


class UnusedInput(nn.Module):
    def forward(self, x: Tensor, mask: Tensor, y: Tensor) -> Tensor:
        return x + y


def unused_input() -> Built:
    return UnusedInput(), (torch.zeros(2, 3), torch.ones(2, 3), torch.full((2, 3), 7.0))


class Passthrough(nn.Module):
    def forward(self, x: Tensor) -> Any:
        doubled = x * 2
        return x, doubled, doubled


def passthrough() -> Built:
    return Passthrough(), (torch.ones(2, 3),)


class Int64Ids(nn.Module):
    def forward(self, ids: Tensor) -> Any:
        return (ids % 1000).to(torch.float32), ids + 1


def int64_ids() -> Built:
    return Int64Ids(), (torch.tensor([[3_000_000_123, 5]]),)


class Uint8Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, img: Tensor) -> Tensor:
        x = img.permute(0, 3, 1, 2).float() / 255.0
        mask = (img[..., 0] > 128).to(torch.uint8)
        return self.conv(x) * mask.unsqueeze(1).float()


def uint8_image() -> Built:
    return Uint8Image(), (torch.randint(0, 256, (2, 8, 8, 3), dtype=torch.uint8),)


class ZeroSize(nn.Module):
    def forward(self, feats: Tensor, boxes: Tensor) -> Any:
        return torch.cat([feats, feats[:, :0]], dim=1), boxes * 2.0


def zero_size() -> Built:
    return ZeroSize(), (torch.ones(2, 3), torch.zeros(5, 4))


class Squeeze(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(3, 4, 3, padding=1)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        f = self.c(x).mean(dim=(2, 3))
        return self.fc(f.squeeze())  # line: squeeze


def squeeze() -> Built:
    return Squeeze(), (torch.randn(1, 3, 8, 8),)


class BatchMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0, keepdim=True)


def batch_mean() -> Built:
    return BatchMean(), (torch.randn(2, 4),)


def batch_norm_without_statistics() -> Built:
    return nn.BatchNorm2d(3, track_running_stats=False), (torch.randn(2, 3, 4, 4),)


class ScalarOutput(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x * 2, x.sum()


def scalar_output() -> Built:
    return ScalarOutput(), (torch.ones(2, 3),)


class PerSampleScalar(nn.Module):
    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        return x.sum(dim=1) * length


def per_sample_scalar() -> Built:
    return PerSampleScalar(), (torch.ones(2, 3), torch.ones(2))


class Counter(nn.Module):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * 2


def counter() -> Built:
    return Counter(), (torch.ones(2, 3),)


class InnerNameClash(nn.Module):
    """Publishing the output as `x_proj` or `linear` meets inner values of the same name."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.relu(self.one(x)))


def inner_name_clash() -> Built:
    return InnerNameClash(), (torch.randn(2, 4),)


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        weight = mask.unsqueeze(-1).float()
        return (self.embed(ids) * weight).sum(1) / weight.sum(1).clamp(min=1)


def sequence() -> nn.Module:
    return Sequence()


class NotANumber(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x)


def not_a_number() -> Built:
    return NotANumber(), (torch.ones(2, 3),)


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.ones(7, 7)  # line: fails


def fails() -> Built:
    return Fails(), (torch.ones(2, 3),)


def factory_fails() -> Built:
    raise ValueError("no weights today")  # line: factory


def not_a_module() -> Any:
    return 5


def four_labels() -> list[str]:
    return ["zero", "one", "two, with comma", "three: colon"]


class Loud(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        print("noise on stdout")
        return x * 2


def loud() -> Built:
    print("noise on stdout")
    return Loud(), (torch.ones(2, 3),)


class Bfloat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.bfloat16)


def bfloat() -> Built:
    return Bfloat(), (torch.ones(2, 3),)


class Picture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(x).mean(dim=(2, 3))


def picture() -> Built:
    return Picture(), (torch.randn(1, 3, 8, 8),)


class NoTranslation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)


def no_translation() -> Built:
    return NoTranslation(), (torch.randn(2, 3),)


class Function(nn.Module):
    """A forward pass given as a function of the module and its input."""

    def __init__(self, function: Any, **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def gram() -> Built:
    return Function(lambda self, x: x @ x.T), (torch.randn(2, 4),)


def sorted_over_the_batch() -> Built:
    return Function(lambda self, x: torch.sort(x, dim=0)[0]), (torch.randn(2, 4),)


def flipped_batch() -> Built:
    return Function(lambda self, x: x.flip(0)), (torch.randn(2, 4),)


def time_first() -> Built:
    return Function(lambda self, x: x.transpose(0, 1)), (torch.randn(2, 5, 4),)


def nonzero() -> Built:
    return Function(lambda self, x: x.nonzero()), (torch.randn(2, 4),)


def half() -> Built:
    return nn.Linear(8, 4).half(), (torch.randn(2, 8).half(),)


def lstm() -> Built:
    return Function(lambda self, x: self.rnn(x)[0], rnn=nn.LSTM(8, 4, batch_first=True)), (torch.randn(2, 5, 8),)


def nothing() -> Built:
    return Function(lambda self, x: None), (torch.randn(2, 4),)


class RemembersTheFirst(nn.Module):
    """Subtracts the mean of the first input it ever saw; with `by_shape` a table that only follows the shape."""

    def __init__(self, *, by_shape: bool) -> None:
        super().__init__()
        self._kept: Tensor | None = None
        self.by_shape = by_shape

    def forward(self, x: Tensor) -> Tensor:
        if self._kept is None:
            self._kept = torch.arange(x.shape[1], dtype=x.dtype) if self.by_shape else x.mean().detach()
        return x - self._kept


def remembers_the_first() -> Built:
    return RemembersTheFirst(by_shape=False), (torch.randn(2, 4),)


def remembers_a_table() -> Built:
    return RemembersTheFirst(by_shape=True), (torch.randn(2, 4),)


def encoder_layer() -> Built:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (torch.randn(2, 5, 8),)


def top_three() -> Built:
    return Function(lambda self, x: tuple(torch.topk(x, 3))), (torch.randn(2, 9),)


def class_ids() -> Built:
    return Function(lambda self, x: x.argmax(1)), (torch.randn(2, 9),)


def spectrum() -> Built:
    return Function(lambda self, x: torch.fft.rfft(x).abs()), (torch.randn(2, 8),)


def changes_its_input() -> Built:
    return Function(lambda self, x: x.add_(1) * 2), (torch.randn(2, 4),)


def script() -> Any:
    return torch.jit.script(nn.Linear(8, 4)), (torch.randn(2, 8),)


class KeywordOnly(nn.Module):
    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        return x * scale


def keyword_only() -> Any:
    return KeywordOnly(), {"scale": torch.randn(2, 1), "x": torch.randn(2, 4)}


def leaves() -> nn.Module:
    """Reads a command line as scripts do, and gives up on it."""
    sys.exit(2)  # line: leaves
