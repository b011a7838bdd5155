"""The gamma distribution's tail, without a numerical library."""

from __future__ import annotations

import math

_MAX_TERMS = 500
_PRECISION = 1e-14


def gamma_survival(shape: float, x: float) -> float:
    """P(X > x) for a gamma variable of this shape and scale 1: the upper incomplete gamma ratio.

    A power series below shape + 1, a continued fraction (modified Lentz) above.
    """
    if x <= 0:
        return 1.0
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        term = total = 1.0 / shape
        for n in range(1, _MAX_TERMS):
            term *= x / (shape + n)
            total += term
            if term < total * _PRECISION:
                break
        return max(0.0, 1.0 - front * total)
    b = x + 1 - shape
    c = 1e300
    d = 1 / b
    fraction = d
    for n in range(1, _MAX_TERMS):
        a = -n * (n - shape)
        b += 2
        d = 1 / (a * d + b)
        c = b + a / c
        fraction *= d * c
        if abs(d * c - 1) < _PRECISION:
            break
    return front * fraction


def gamma_quantile(shape: float, scale: float, survival: float) -> float:
    """x with P(X > x) = `survival`, by bisection; 0 where survival is 1 or more."""
    if survival >= 1:
        return 0.0
    if survival <= 0:
        return math.inf
    low, high = 0.0, max(1.0, shape)
    while gamma_survival(shape, high) > survival:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if gamma_survival(shape, middle) > survival:
            low = middle
        else:
            high = middle
    return scale * (low + high) / 2
