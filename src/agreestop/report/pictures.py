"""Pictures of inputs of any shape, as small arrays (planes, H, W) that
`inline.input_picture` colours.

    cells of a step   picture                                                     planes
    (2, H, W)         events so far, ON and OFF                                   2
    (3, H, W) bytes   the image itself, which is held still                       3
    (H, W), or more   sum of the steps so far (over all axes but the last two)    1 or 2
    (channels,)       channels × T, blank after the present step                  1 or 2

Of "1 or 2" planes, the second is for negative values where there are some. Axes of length 1 do
not count.
"""

from typing import final

import numpy as np

from agreestop.common import Floats
from agreestop.events.container import Events, Inputs, dense_rows

POLARITIES = ("more ON events so far", "more OFF events so far")


@final
class InputPictures:
    """Pictures of inputs (n, T, ...); `legend` says what each colour means."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        values = inputs.values if isinstance(inputs, Events) else inputs
        self._cells = tuple(size for size in inputs.shape[2:] if size > 1)
        self._signed = values is not None and values.dtype.kind in "if" and bool((values < 0).any())
        self._image = len(self._cells) == 3 and self._cells[0] == 3 and inputs.dtype == np.uint8
        self.legend = self._legend()

    def _legend(self) -> tuple[str, ...]:
        if self._image:
            return ()
        if len(self._cells) < 2:
            rows = "each row is a channel, each column a step"
            return (
                (f"{rows}; positive values", "negative values")
                if self._signed
                else (f"{rows}; a stronger colour is a larger value",)
            )
        if self._signed:
            return ("mostly positive values so far", "mostly negative values so far")
        return (
            POLARITIES
            if self._has_polarity
            else ("events so far; a stronger colour is more of them",)
        )

    @property
    def _has_polarity(self) -> bool:
        return len(self._cells) == 3 and self._cells[0] == 2

    def until(self, row: int, time: float) -> Floats:
        """The picture (planes, H, W) of an input up to a time."""
        steps = (
            dense_rows(self._inputs, [row])
            .reshape(self._inputs.shape[1], *self._cells)
            .astype(np.float64)
        )
        if self._image:
            return steps[0]
        seen = np.arange(len(steps)) < time
        if len(self._cells) < 2:
            return self._planes((steps.reshape(len(steps), -1) * seen[:, None]).T)
        total = steps[seen].sum(axis=0)
        if self._has_polarity and not self._signed:
            return total
        return self._planes(total.reshape(-1, *self._cells[-2:]).sum(axis=0))

    def _planes(self, values: Floats) -> Floats:
        return (
            np.stack([np.maximum(values, 0), np.maximum(-values, 0)])
            if self._signed
            else values[None]
        )
