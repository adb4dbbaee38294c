"""The law of many wide rows fits in memory: it works in chunks."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, torch
from reference import law
rows, width = 40, 262_144
logits = torch.randn(rows, width)
parameters = torch.full((rows,), 0.8), torch.full((rows,), 50, dtype=torch.int32), torch.full((rows,), 0.9)
law(logits[:1, :64], *(x[:1] for x in parameters))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
law(logits, *parameters)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_beyond_its_result_the_law_needs_a_fixed_amount_of_memory() -> None:
    # In a process of its own, whose peak nothing else has raised. 40 rows are five chunks: held whole, their
    # temporaries would be more than three times what is allowed here.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    kibibytes = int(done.stdout)
    result = 40 * 262_144 * 10  # a float64 and two bools a logit
    # As `_ELEMENTS_PER_CHUNK` says, and half of that again for blocks that the allocator keeps.
    temporaries = 3 * 32 * 8 * 2**21 // 2
    assert kibibytes * 1024 < result + temporaries
    # 1,024 rows of 262,144, measured once in the same way: 3.57 GiB, of which the result is 2.5 GiB.
