"""Makes `infra` importable, which is no member and is run from the repository's folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
