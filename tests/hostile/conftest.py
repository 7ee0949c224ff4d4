"""The tests of the wire lend their samples and mutants, those of the broker their scene."""

import sys
from pathlib import Path

for folder in ("wire", "broker"):
    sys.path.append(str(Path(__file__).parent.parent / folder))
