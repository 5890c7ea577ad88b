"""Random calls, streams and whole models with their caches against the oracle: python scripts/soak.py --count 500

`python -m focus_kernels.soak` does the first two, without the repository.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some virtual machines only claim to have AMX
sys.path.insert(0, str(Path(__file__).parents[1]))

from focus_kernels.soak.__main__ import main
from focus_kernels.soak.run import KERNELS
from tests.soak_models import run_model

if __name__ == "__main__":
    sys.exit(main(kinds={**KERNELS, "model": run_model}, command="python scripts/soak.py"))
