"""Wilson's confidence interval for a rate.

Source: Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", 1927.

The interval is always between 0 and 100. Unlike the width of a bootstrap interval, its width is never zero, even at the
ends of the scale or for few examples.
"""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson_interval(hits: int, total: int) -> tuple[float, float]:
    """Return the 95 % confidence interval, in percent, of an observed rate of ``hits`` out of ``total``."""
    share, z = hits / total, NormalDist().inv_cdf(0.975)
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return 100 * max(middle - half, 0.0), 100 * min(middle + half, 1.0)
