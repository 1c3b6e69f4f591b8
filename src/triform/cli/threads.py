"""How the threads of a matrix product wait for each other. The choice must be made before torch is imported.

The OpenMP library of torch's Linux wheels lets threads wait by spinning for several milliseconds. Where another
program uses a core, a thread then spins until its turn is over, and the thread that it waits for has no core:
products become up to 30 times slower than with one thread. After a short spin, threads sleep instead.
"""

from __future__ import annotations

import os

SPIN_VARIABLE = "GOMP_SPINCOUNT"
SPIN_COUNT = 3_000  # rounds of a waiting loop, tens of microseconds; the library's own default is 300,000
WAIT_VARIABLES = (SPIN_VARIABLE, "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def limit_spinning() -> None:
    """Let threads that wait for others sleep soon, unless the user has chosen how they wait."""
    if not any(name in os.environ for name in WAIT_VARIABLES):
        os.environ[SPIN_VARIABLE] = str(SPIN_COUNT)


def describe_waiting() -> str:
    """Return how threads wait for each other, and the variables that say so."""
    variables = [f"{name}={os.environ[name]}" for name in WAIT_VARIABLES if name in os.environ]
    if not variables:
        return "spinning for milliseconds, which is slow while other programs use the cores"
    if variables == [f"{SPIN_VARIABLE}={SPIN_COUNT}"]:
        return f"asleep after a short spin, so that a busy machine stays usable ({variables[0]})"
    return f"as the environment says ({', '.join(variables)})"
