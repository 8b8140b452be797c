"""A fuzzer that is led by what the readers' code does: `python -m tests.fuzz.guided CORPUS [-runs=N]`.

By hand, after `pip install atheris`, which is no dependency of the tests: it has no wheel for every machine,
and finds nothing new in a short time. All further options are libFuzzer's. What it finds in minutes or hours
is in `CORPUS` and the file `crash-…`; `test_fuzz` judges mutants of valid messages in the same way.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Final

import atheris

with atheris.instrument_imports(include=["proxy"]):
    from tests.fuzz.readers import judge

from tests.fuzz.mutants import Mutants

SEEDS: Final = 300


def main() -> None:
    corpus = Path(sys.argv[1])
    corpus.mkdir(parents=True, exist_ok=True)
    mutants = Mutants(random.Random(6), "session")
    for number in range(SEEDS):
        (corpus / f"mutant-{number}").write_bytes(mutants.line())
    atheris.Setup(sys.argv, judge)
    atheris.Fuzz()


main()
