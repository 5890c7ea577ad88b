import os
import sys

if os.environ.get("TESTED_WITHOUT_PEFT"):  # transformers' Trainer imports it where it can, for ten seconds per process
    sys.modules["peft"] = None  # type: ignore[assignment]
