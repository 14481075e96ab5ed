"""Wilson's confidence interval of a rate.

Source: Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", 1927.

Unlike a bootstrap interval, it stays between 0 and 100, and its width is not zero at the ends of the scale or for few
examples.
"""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson_interval(hits: int, total: int) -> tuple[float, float]:
    """Return the 95 % confidence interval, in percent, of a rate that was observed as ``hits`` of ``total``."""
    share, z = hits / total, NormalDist().inv_cdf(0.975)
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return 100 * max(middle - half, 0.0), 100 * min(middle + half, 1.0)
