"""Optimizers and learning rate schedules."""

from functools import partial

from megengine.core import absent, exports
from megengine.optimizer.adadelta import Adadelta
from megengine.optimizer.adagrad import Adagrad
from megengine.optimizer.adam import Adam
from megengine.optimizer.adamw import AdamW
from megengine.optimizer.clip_grad import clip_grad_norm, clip_grad_value
from megengine.optimizer.lamb import LAMB, LAMBFp16
from megengine.optimizer.lr_scheduler import LRScheduler
from megengine.optimizer.multi_step_lr import MultiStepLR
from megengine.optimizer.optimizer import Optimizer
from megengine.optimizer.sgd import SGD

__all__ = [
    "LAMB",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "LAMBFp16",
    "LRScheduler",
    "MultiStepLR",
    "Optimizer",
    "clip_grad_norm",
    "clip_grad_value",
]

__getattr__ = partial(absent.part_or_error, __name__)
exports.limit_stars(__name__)
