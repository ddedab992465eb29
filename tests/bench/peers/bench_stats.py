# SPDX-License-Identifier: MIT
"""Statistics of bench_peers.py: medians of turns, and ratios of paired turns with their 95 % intervals."""
import math
import statistics

# 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom.
STUDENT_T = [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
             2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
             2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423]


def student_t(freedom):
    """Of more than 30 degrees of freedom the first terms of the series in 1 / freedom (Abramowitz, Stegun 26.7.5)."""
    if freedom <= len(STUDENT_T):
        return STUDENT_T[freedom - 1]
    z = 1.959964
    terms = (z + z**3) / 4, (3 * z + 16 * z**3 + 5 * z**5) / 96, (-15 * z + 17 * z**3 + 19 * z**5 + 3 * z**7) / 384
    return z + sum(term / freedom ** (i + 1) for i, term in enumerate(terms))


def paired_ratio(ours, theirs):
    """(ratio, low, high) of ours / theirs, both by turn; of one turn the ends are None.

    The ratio is the geometric mean of the turns' ratios: what slows a whole turn down cancels. The interval is
    Student's, of the mean of the logarithms.
    """
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), None, None
    half = student_t(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
