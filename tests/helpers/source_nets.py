"""Functions, layers and networks that generated source has to import or to write."""

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.traced_module import register_as_builtin, wrap


@wrap
def swish(x, beta=1.0):
    return x * F.sigmoid(x * beta)


@register_as_builtin
class Gain(M.Module):
    """A layer of the user's own: its argument is kept as an attribute."""

    def __init__(self, channels, power=1):
        super().__init__()
        self.channels, self.power = channels, power
        self.weight = mge.Parameter(F.ones((channels,)))

    def forward(self, x):
        return x * self.weight**self.power


@register_as_builtin
class Forgetful(M.Module):
    """A layer that does not keep what it was made with."""

    def __init__(self, channels):
        super().__init__()
        self.weight = mge.Parameter(F.ones((channels,)))

    def forward(self, x):
        return x * self.weight


class Block(M.Module):
    """Blocks of a kind in different sizes."""

    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv = M.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False)
        self.bn = M.BatchNorm2d(cout)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Small(M.Module):
    """What the expected text in the tests is of."""

    def __init__(self):
        super().__init__()
        self.stem = M.Conv2d(3, 4, 3, padding=1)
        self.blocks = [Block(4, 4), Block(4, 8, 2), Block(8, 8)]
        self.scale = mge.Parameter([2.0])
        self.head = M.Sequential(M.Linear(8, 6), M.ReLU(), M.Linear(6, 2, bias=False))

    def forward(self, x):
        x = F.relu6(self.stem(x))
        for block in self.blocks:
            x = block(x)
        x = F.mean(x, (2, 3)) * self.scale
        x[:, 0] = 1 - x[:, 1]
        return self.head(x), {"mean": x.mean(), "last": [x[..., -1:] ** 2]}


class Modes(M.Module):
    """Called with and without a mask, and with a list."""

    def __init__(self):
        super().__init__()
        self.fc = M.Linear(4, 4)

    def forward(self, x, mask=None, *, scale=1):
        if isinstance(x, list):
            x = x[0] + x[1]
        x = self.fc(x) * scale
        return x if mask is None else x * mask


class Caller(M.Module):
    """Enters the graphs of another module, with keywords and nested arguments."""

    def __init__(self):
        super().__init__()
        self.inner = Modes()

    def forward(self, x, mask):
        y = self.inner(x)
        z = self.inner(y, mask=mask)
        return self.inner([y, z], scale=3) + self.inner(x, mask)


class Shared(M.Module):
    """One layer under two paths, one parameter in two layers."""

    def __init__(self):
        super().__init__()
        self.one = M.Sequential(M.Linear(4, 4), M.ReLU())
        self.two = M.Sequential(M.ReLU(), self.one[0])
        self.pair = [self.one[0], M.Linear(4, 4)]
        self.pair[1].bias = self.one[0].bias

    def forward(self, x):
        return self.pair[1](self.pair[0](self.two(self.one(x))))


class Containers(M.Module):
    """Nested containers, names that are no identifiers, a shape as a result, a function and a layer of the user's."""

    def __init__(self):
        super().__init__()
        self.table = {"a b": M.Linear(4, 4), 'c"d': [M.Linear(4, 4), {"x": M.ReLU()}]}
        setattr(self, "class", M.Linear(4, 4))
        self.own = [Gain(4), Gain(4, power=2)]

    def forward(self, x):
        x = self.table["a b"](x)
        x = self.table['c"d'][1]["x"](self.table['c"d'][0](x))
        x = getattr(self, "class")(x)
        x = swish(self.own[0](x)) + swish(self.own[1](x), beta=2.0)
        rows = x.shape[0]
        return F.reshape(x, (rows * 2, -1)), rows
