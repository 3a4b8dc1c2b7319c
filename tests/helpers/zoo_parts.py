"""What the networks of the zoo share."""

import numpy as np

import megengine.module as M
from megengine import random
from megengine.tensor import Tensor


def conv_bn(cin, cout, kernel=3, stride=1, groups=1, act=None):
    """Convolution, batch norm and perhaps an activation."""
    conv = M.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
    return M.Sequential(conv, M.BatchNorm2d(cout), *([act()] if act else []))


def values(*shape, seed=0):
    """A tensor of normal values."""
    return Tensor(np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32))


def picture(size, count=2, channels=3):
    """Arguments: pictures [count, channels, size, size]."""
    return lambda: (values(count, channels, size, size),)


def settled(net):
    """The network in evaluation mode, with statistics and weights that no pass can take for 0 or 1."""
    rng = np.random.default_rng(5)
    for module in net.modules():
        if isinstance(module, (M.BatchNorm1d, M.BatchNorm2d)):
            module.running_mean[...] = rng.standard_normal(module.running_mean.shape).astype(np.float32) * 0.1
            module.running_var[...] = rng.uniform(0.5, 1.5, module.running_var.shape).astype(np.float32)
            module.weight[...] = rng.uniform(0.5, 1.5, module.weight.shape).astype(np.float32)
            module.bias[...] = rng.standard_normal(module.bias.shape).astype(np.float32) * 0.1
    return net.eval()


def net_of(make, arguments):
    """(network, arguments) when called; the same ones every time."""

    def build():
        random.seed(3)
        return settled(make()), arguments()

    return build
