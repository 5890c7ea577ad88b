"""Settings that must stand before torch is loaded."""

import os

# Some virtual machines advertise AMX and then refuse its instructions: bfloat16 would end in SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", min(torch.get_num_threads(), 2))))

# MKL sets itself up in its first call; made from several threads at once, that call loses half of its digits.
torch.exp(torch.zeros(1, dtype=torch.float64))


# Long files with few tests: begun last, one process would wait for the other's.
FIRST = ("training/test_processes", "parallel/test_processes", "training/test_recipe", "test_soak", "test_packaging")


def pytest_collection_modifyitems(items):
    """Files that take long come first; scripts/test.sh tells xdist to keep this order."""
    items.sort(key=lambda item: not any(name in str(item.path) for name in FIRST))


@pytest.fixture(scope="module")
def two_threads():
    """Work is cut among threads where there are several, also where each test process has one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
