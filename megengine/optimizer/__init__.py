"""Optimizers and learning rate schedules."""

from megengine.optimizer.optimizer import Optimizer
from megengine.optimizer.rules import SGD, Adadelta, Adagrad, Adam, AdamW
from megengine.optimizer.schedule import LRScheduler, MultiStepLR, clip_grad_norm, clip_grad_value

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "LRScheduler",
    "MultiStepLR",
    "Optimizer",
    "clip_grad_norm",
    "clip_grad_value",
]
