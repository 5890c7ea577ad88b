"""What a GPU offers to a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from focus_kernels.errors import FocusError


@dataclass(frozen=True)
class GPU:
    """Data sheet values: dense tensor-core speed without sparsity; achievable rates between GPUs, per GPU."""

    name: str
    memory: float  # GB, of 1e9 bytes
    tflops: float  # of `dtype`, accumulated in fp32
    link: float = 20.0  # GB/s received by each GPU from others in its node: PCIe 4 unless NVLink is known
    dtype: str = "bf16"
    hbm: float = 900.0  # GB/s of its own memory
    network: float = 6.0  # GB/s received by each GPU from other nodes: 50 Gb/s unless the usual server has more


GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("b200-180", 180, 2250, 600, hbm=7700, network=50),
        GPU("h200-141", 141, 989, 300, hbm=4800, network=50),
        GPU("h100-80", 80, 989, 300, hbm=3350, network=50),
        GPU("a100-80", 80, 312, 200, hbm=2039, network=25),
        GPU("a100-40", 40, 312, 200, hbm=1555, network=25),
        GPU("l40s-48", 48, 362, hbm=864),
        GPU("rtx4090-24", 24, 165, hbm=1008),
        GPU("rtx3090-24", 24, 71, hbm=936),
        GPU("l4-24", 24, 121, hbm=300),
        GPU("t4-16", 16, 65, 10, "fp16", hbm=320),
    )
}


def find_gpu(
    name: str | None = None,
    memory: float | None = None,
    tflops: float | None = None,
    link: float | None = None,
    hbm: float | None = None,
    network: float | None = None,
) -> GPU:
    """A GPU by name (H100 is the first that starts so), with values of one's own where given; without a name it takes
    memory and tflops."""
    given = {"memory": memory, "tflops": tflops, "link": link, "hbm": hbm, "network": network}
    own: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    said = {"memory": "gpu memory", "tflops": "gpu tflops", "link": "bandwidth", "hbm": "hbm", "network": "network"}
    for key, value in own.items():
        if not value > 0:
            raise FocusError(f"{said[key]} is {value}; it must be positive")
    if name is None and memory is not None and tflops is not None:
        return GPU("gpu", **own)
    wanted = (name or "").lower()
    known = next((gpu for gpu in GPUS if gpu == wanted or gpu.startswith(f"{wanted}-")), None)
    if known is None:
        raise FocusError(
            f"gpu is {name!r}; choose one of {', '.join(GPUS)}, or give both its memory in GB and its TFLOPS"
        )
    return replace(GPUS[known], **own)
