"""What training a model's routers takes, and what reading and writing long texts with it does; see docs/planning.md."""

from .hardware import GPU, GPUS, find_gpu
from .inference import Serving, plan_inference
from .models import MODELS, ModelFacts, find_model, from_config
from .training import Plan, plan

__all__ = [
    "GPU",
    "GPUS",
    "MODELS",
    "ModelFacts",
    "Plan",
    "Serving",
    "find_gpu",
    "find_model",
    "from_config",
    "plan",
    "plan_inference",
]
