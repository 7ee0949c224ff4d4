"""The tests of the wire lend their samples and mutants to those that send them to a live broker."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "wire"))
