"""Import the samples and mutants of the wire tests, and the scene of the broker tests."""

import sys
from pathlib import Path

for folder in ("wire", "broker"):
    sys.path.append(str(Path(__file__).parent.parent / folder))
