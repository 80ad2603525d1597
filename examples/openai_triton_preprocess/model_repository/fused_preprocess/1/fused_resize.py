"""Resize, crop, normalise, transpose and cast in one launch for a batch of pictures of any sizes, in OpenAI Triton.

One program makes BLOCK neighbouring output pixels of one row of one picture:

1. vertical pass, straight from the bytes of the source: a run of SPAN consecutive bytes per source row, so that loads
   are coalesced; the weight is one number per row. The sums stay in registers as float32.
2. horizontal pass: each output pixel gathers its taps from the sums.
3. (pixel · scale - mean) / std, and the store in the output's own type, one plane per channel.

Only the source pixels under the crop are read, each about once per output row; nothing is written in between.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from resampling import Plan, Settings, make_taps

BLOCK = 32
_FIELDS = 10
_SIZES_KEPT = 512


@triton.jit
def _fused_resize(
    pictures,  # int64 [picture, _FIELDS]
    output,  # [picture, channel, out_height, out_width]
    out_height,
    out_width,
    scale,
    mean0,
    mean1,
    mean2,
    std0,
    std1,
    std2,
    TAPS_Y: tl.constexpr,
    TAPS_X: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    FIELDS: tl.constexpr,
):
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.program_id(1)
    picture = tl.program_id(2).to(tl.int64)
    inside = x < out_width

    fields = pictures + picture * FIELDS
    pixels = tl.load(fields).to(tl.pointer_type(tl.uint8))
    height = tl.load(fields + 1)
    row_bytes = tl.load(fields + 2)  # of pixels
    pitch = tl.load(fields + 3)  # from one row to the next
    first_rows = tl.load(fields + 4).to(tl.pointer_type(tl.int32))
    row_weights = tl.load(fields + 5).to(tl.pointer_type(tl.float32))
    row_taps = tl.load(fields + 6)
    first_columns = tl.load(fields + 7).to(tl.pointer_type(tl.int32))
    column_weights = tl.load(fields + 8).to(tl.pointer_type(tl.float32))
    column_taps = tl.load(fields + 9)

    first_row = tl.load(first_rows + y).to(tl.int64)
    first_column = tl.load(first_columns + x, mask=inside, other=0)
    span_column = tl.load(first_columns + tl.program_id(0) * BLOCK)  # the leftmost one, since columns rise with x

    byte = span_column * 3 + tl.arange(0, SPAN)
    in_row = byte < row_bytes
    sums = tl.zeros([SPAN], dtype=tl.float32)
    for tap in range(TAPS_Y):
        row = first_row + tap
        used = (tap < row_taps) & (row < height)
        weight = tl.load(row_weights + y * row_taps + tap, mask=used, other=0.0)
        source = tl.load(pixels + row * pitch + byte, mask=in_row & used, other=0)
        sums += weight * source.to(tl.float32)

    start = (first_column - span_column) * 3
    red = tl.zeros([BLOCK], dtype=tl.float32)
    green = tl.zeros([BLOCK], dtype=tl.float32)
    blue = tl.zeros([BLOCK], dtype=tl.float32)
    for tap in range(TAPS_X):
        used = inside & (tap < column_taps)
        weight = tl.load(column_weights + x * column_taps + tap, mask=used, other=0.0)
        place = tl.minimum(tl.where(used, start + tap * 3, 0), SPAN - 3)
        red += weight * tl.gather(sums, place, 0)
        green += weight * tl.gather(sums, place + 1, 0)
        blue += weight * tl.gather(sums, place + 2, 0)

    plane = out_height * out_width
    target = output + picture * 3 * plane + y * out_width + x
    kind = output.dtype.element_ty
    # A bicubic filter overshoots.
    red = tl.minimum(tl.maximum(red, 0.0), 255.0)
    green = tl.minimum(tl.maximum(green, 0.0), 255.0)
    blue = tl.minimum(tl.maximum(blue, 0.0), 255.0)
    tl.store(target, ((red * scale - mean0) / std0).to(kind), mask=inside)
    tl.store(target + plane, ((green * scale - mean1) / std1).to(kind), mask=inside)
    tl.store(target + 2 * plane, ((blue * scale - mean2) / std2).to(kind), mask=inside)


class FusedResize:
    """The launch for one model on one device. Tables are kept per size of picture, so that only new sizes cost.

    Not for several threads at once. Work is queued on torch's current stream.
    """

    def __init__(self, settings: Settings, device: torch.device, dtype: torch.dtype) -> None:
        self.settings = settings
        self.device = device
        self.dtype = dtype
        self._tables: OrderedDict[tuple[int, int, int, int], tuple[torch.Tensor, torch.Tensor, int]] = OrderedDict()

    def __call__(self, pictures: Sequence[torch.Tensor], plans: Sequence[Plan]) -> torch.Tensor:
        """uint8 [height, width, 3] each, on the device, pixels of a row side by side -> [picture, channel, y, x].

        The caller keeps `pictures` until the stream has done the work.
        """
        out_height, out_width = self.settings.output
        output = torch.empty((len(pictures), 3, out_height, out_width), dtype=self.dtype, device=self.device)
        fields = np.empty((len(pictures), _FIELDS), np.int64)
        kept = []
        taps_y = taps_x = span = 1
        for row, picture, plan in zip(fields, pictures, plans, strict=True):
            height, width = plan.source
            if picture.stride()[1:] != (3, 1):
                raise ValueError(f"pixels are not side by side: strides {picture.stride()}")
            rows = self._table(height, plan.resized[0], plan.top, out_height)
            columns = self._table(width, plan.resized[1], plan.left, out_width)
            kept += [rows, columns]
            row[:] = (
                picture.data_ptr(), height, width * 3, picture.stride(0),
                rows[0].data_ptr(), rows[1].data_ptr(), rows[1].shape[1],
                columns[0].data_ptr(), columns[1].data_ptr(), columns[1].shape[1],
            )  # fmt: skip
            taps_y, taps_x = max(taps_y, rows[1].shape[1]), max(taps_x, columns[1].shape[1])
            span = max(span, columns[2])
        described = torch.from_numpy(fields).to(self.device)
        grid = (triton.cdiv(out_width, BLOCK), out_height, len(pictures))
        # Powers of two: few different kernels are compiled, whatever sizes come.
        _fused_resize[grid](
            described, output, out_height, out_width, self.settings.scale, *self.settings.mean, *self.settings.std,
            TAPS_Y=triton.next_power_of_2(taps_y), TAPS_X=triton.next_power_of_2(taps_x),
            SPAN=max(4, triton.next_power_of_2(span * 3)), BLOCK=BLOCK, FIELDS=_FIELDS,
        )  # fmt: skip
        return output

    def _table(self, source: int, resized: int, begin: int, count: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        """First pixels, weights, and the most source pixels that BLOCK neighbouring outputs span."""
        key = (source, resized, begin, count)
        if key not in self._tables:
            if len(self._tables) >= _SIZES_KEPT:
                # A kernel in flight may still read the oldest one.
                self._synchronise()
                self._tables.popitem(last=False)
            taps = make_taps(self.settings.interpolation, source, resized, begin, count)
            ends = [int(taps.first[min(start + BLOCK, count) - 1]) for start in range(0, count, BLOCK)]
            span = max(end - int(first) for end, first in zip(ends, taps.first[::BLOCK], strict=True))
            first, weights = (torch.from_numpy(array).to(self.device) for array in (taps.first, taps.weights))
            self._tables[key] = (first, weights, span + taps.weights.shape[1])
        self._tables.move_to_end(key)
        return self._tables[key]

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
