"""Mistakes that everybody makes once: each gives an error at once, of a type that callers catch, that names the
function or layer, shows what was given, and says what to do.
"""

# pyright: reportArgumentType=false, reportCallIssue=false

import re

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
import megengine.optimizer as optim
from megengine import Parameter, tensor
from megengine.autodiff import Function, GradManager
from megengine.core.errors import MegEngineError


class Net(M.Module):
    """A network whose third layer takes 4 channels where 8 arrive."""

    def __init__(self):
        super().__init__()
        self.body = M.Sequential(M.Conv2d(3, 8, 3), M.ReLU(), M.Conv2d(4, 8, 3))
        self.blocks = {"head": [M.Linear(3, 2)]}

    def forward(self, x):
        return self.body(x)


class WithoutSuper(M.Module):
    def __init__(self):
        self.conv = M.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.conv(x)


class Misspelt(M.Module):
    def fowrard(self, x):
        return x


class Head(Net):
    def forward(self, x):
        return self.blocks["head"][0](x)


class Twice(Function):
    def __init__(self, returned):
        self.returned = returned

    def forward(self, x, y):
        return x * y

    def backward(self, grad):
        return self.returned(grad)


class NoBackward(Function):
    def forward(self, x):
        return x * 2


PICTURE = tensor(np.ones((2, 3, 8, 8), np.float32))
V = tensor([1.0, 2, 3])
LOGITS = tensor(np.ones((2, 3), np.float32))


def net():
    return M.Linear(2, 2)


def differentiated(function, *inputs):
    w = Parameter([1.0, 2.0])
    gm = GradManager().attach([w])
    with gm:
        gm.backward(function(w, *inputs))


def trained(returned):
    differentiated(lambda w: Twice(returned)(w, w))


def loaded():
    layers = M.Sequential(M.Linear(2, 2), M.Linear(2, 2))
    state = layers.state_dict()
    state["0.wieght"] = state.pop("0.weight")
    layers.load_state_dict(state)


def cleared():
    layer = M.Linear(3, 2)
    layer.weight = 3
    layer(V)


# what is done, the type that callers catch, what the message and its notes say
MISTAKES = {
    # calls of layers and functions
    "misspelt argument": (
        lambda: M.Conv2d(3, 8, kernal_size=3),
        TypeError,
        "'kernal_size'; did you mean 'kernel_s",
    ),
    "argument of another engine": (lambda: F.softmax(V, dim=0), TypeError, "'dim'; did you mean 'axis'"),
    "missing argument": (
        lambda: optim.SGD(net().parameters()),
        TypeError,
        r"SGD: missing .*'lr'.*expected SGD\(",
    ),
    "text for a tensor": (lambda: F.relu("hello"), TypeError, r"relu\('hello'\)"),
    "file name for a picture": (lambda: M.Conv2d(3, 8, 3)("a.png"), TypeError, r"'a.png'[\s\S]*in module Conv2d\(3, 8"),
    "layer with two inputs": (lambda: net()(V, V), TypeError, r"Linear: too many .*expected Linear\(x\)"),
    "layer without input": (lambda: net()(), TypeError, r"Linear: missing .*'x'"),
    "channels in a nested layer": (lambda: Net()(PICTURE), ValueError, r"has 8 channels[\s\S]*body\.2, Conv2d\(4.*Net"),
    "layer in a dict of lists": (
        lambda: Head()(LOGITS[:, :2]),
        ValueError,
        r"blocks\.head\.0, Linear.* of Head",
    ),
    "no super().__init__()": (lambda: WithoutSuper()(PICTURE), AttributeError, "did not call super().__init__()"),
    "no forward": (lambda: Misspelt()(V), NotImplementedError, "no forward.*did you mean 'fowrard'"),
    "number for a weight": (cleared, ValueError, r"linear\(tensor float32\(3,\), 3,[\s\S]*in module Linear"),
    "layer that is None": (lambda: M.Sequential(net(), None), TypeError, "layer '1' is None; expected a Module"),
    "hook that is None": (lambda: net().register_forward_hook(None), TypeError, "hook is a NoneType"),
    "groups": (lambda: M.Conv2d(3, 8, 3, groups=2), ValueError, "groups=2 must divide in_channels=3"),
    "stride 0": (lambda: M.Conv2d(3, 8, 3, stride=0), ValueError, "Conv2d: stride is 0; expected at least 1"),
    "picture smaller than the window": (
        lambda: M.MaxPool2d(10)(PICTURE),
        ValueError,
        r"of \(10, 10\).*\(8, 8\)",
    ),
    "vector for a picture": (lambda: M.Conv2d(3, 8, 3)(V), ValueError, r"x has shape \(3,\).*expected x \[N,C,H,W\]"),
    "misspelt mode": (lambda: F.interpolate(PICTURE, (4, 4), mode="biliner"), ValueError, "did you mean 'bilinear'"),
    "probability above 1": (lambda: M.Dropout(2), ValueError, "drop_prob is 2; expected 0 <= drop_prob < 1"),
    # tensors
    "shapes": (lambda: LOGITS + tensor(np.ones((2, 4))), ValueError, r"add: shapes \(2, 3\) and \(2, 4\)"),
    "sum with a text": (lambda: V + "a", TypeError, "__add__"),
    "sum with None": (lambda: V + None, TypeError, r"__add__\(tensor float32\(3,\), None\)"),
    "index": (lambda: V[5], IndexError, "index 5 is out of range for axis 0 of length 3"),
    "index of a float": (lambda: V[1.5], TypeError, "expected integers"),
    "too many indices": (lambda: V[0, 0], IndexError, r"2 indices for a tensor of shape \("),
    "assigned shape": (lambda: V.__setitem__(0, tensor([1.0, 2])), ValueError, r"shape \(2,\) does not fit"),
    "reshape": (lambda: V.reshape(2, 2), ValueError, r"\(2, 2\) holds 4 elements, the input has 3"),
    "axis": (lambda: F.sum(V, axis=3), IndexError, r"sum: axis 3 is out of range for 1 axis"),
    "negative length": (lambda: F.zeros((2, -1)), ValueError, r"zeros: shape is \(2, -1\); expected"),
    "more than there is memory": (lambda: F.zeros((1 << 40,)), MemoryError, "zeros: there is not enough memory"),
    "layer larger than memory": (lambda: M.Linear(1 << 30, 1 << 30), MemoryError, r"memory[\s\S]*Linear\(1073741824"),
    "ragged list": (lambda: tensor([[1, 2], [3]]), TypeError, "rectangular"),
    "dtype": (lambda: tensor(1, dtype="float23"), TypeError, "did you mean 'float32'"),
    "device": (
        lambda: tensor(1, device="cuda:0"),
        RuntimeError,
        "device 'cuda:0' is not usable.*; or use xpux or cpu0",
    ),
    "truth of several": (lambda: bool(V > 1), ValueError, r"use \.any\(\) or \.all\(\)"),
    "number of several": (lambda: float(V), ValueError, "has 3 elements; expected one"),
    "division by zero": (lambda: tensor([1, 2]) // 0, ZeroDivisionError, "integer division by zero"),
    "remainder by zero": (lambda: tensor([1, 2]) % 0, ZeroDivisionError, "integer division by zero"),
    # names of other engines
    "loss.backward()": (lambda: V.sum().backward(), AttributeError, r"call gm\.backward\(loss\)"),
    "x.cuda()": (lambda: V.cuda(), AttributeError, "use .to\\('gpu0'\\)"),
    "requires_grad": (lambda: setattr(V, "requires_grad", True), AttributeError, "attach the tensor to a GradManager"),
    "net.register_buffer": (lambda: net().register_buffer("a", V), AttributeError, r"assign a Tensor: self\.name"),
    "net.named_parametres()": (lambda: net().named_parametres(), AttributeError, "did you mean 'named_parameters'"),
    "F.rleu": (lambda: F.rleu, AttributeError, "did you mean 'relu'"),
    "M.Conv2D": (lambda: M.Conv2D, AttributeError, "did you mean 'Conv2d'"),
    "optim.SDG": (lambda: optim.SDG, AttributeError, "did you mean 'SGD'"),
    "mge.functionnal": (lambda: mge.functionnal, AttributeError, "did you mean 'functional'"),
    "mge.random.uniformm": (lambda: mge.random.uniformm, AttributeError, "did you mean 'uniform'"),
    # training
    "no parameters": (lambda: optim.SGD([], lr=0.1), ValueError, r"no parameters to optimize"),
    "method for parameters": (
        lambda: optim.SGD(net().parameters, lr=0.1),
        TypeError,
        "expected parameters, such as",
    ),
    "network for parameters": (lambda: optim.SGD(net(), lr=0.1), TypeError, "SGD: params is Linear"),
    "learning rate as text": (
        lambda: optim.SGD(net().parameters(), lr="0.1"),
        TypeError,
        "lr is '0.1'; expected a num",
    ),
    "negative learning rate": (lambda: optim.SGD(net().parameters(), lr=-1), ValueError, "SGD: lr is -1; expected"),
    "one beta": (
        lambda: optim.Adam(net().parameters(), lr=1.0, betas=0.9),
        TypeError,
        r"betas is 0\.9; expected",
    ),
    "schedule of a network": (lambda: optim.MultiStepLR(net(), [1, 3]), TypeError, "optimizer is Linear; expected"),
    "network for attach": (lambda: GradManager().attach(net()), TypeError, r"Linear; .* give it net\.parameters\(\)"),
    "backward before record": (lambda: GradManager().backward(V), RuntimeError, "nothing was recorded; use 'with gm:'"),
    "backward of a number": (
        lambda: differentiated(lambda w: w.sum().item()),
        TypeError,
        r"y is 3\.0; expected a t",
    ),
    "labels out of range": (
        lambda: F.nn.cross_entropy(LOGITS, tensor([0, 3])),
        IndexError,
        r"3 is out of[\s\S]*cross",
    ),
    "shape of labels": (lambda: F.nn.cross_entropy(LOGITS, tensor([[0, 1]])), ValueError, r"\(1, 2\); expected \(2,\)"),
    "no backward": (lambda: differentiated(NoBackward()), NotImplementedError, "NoBackward has no backward"),
    "class for an instance": (lambda: NoBackward(V), TypeError, r"call an instance: NoBackward\(\)\(x\)"),
    "too few gradients": (lambda: trained(lambda g: g), RuntimeError, "returned 1 gradient for 2 tensors"),
    "array for a gradient": (
        lambda: trained(lambda g: (g.numpy(), None)),
        RuntimeError,
        "array float32.*expected a t",
    ),
    "shape of a gradient": (lambda: trained(lambda g: (g[:1], g)), RuntimeError, r"shape \(1,\); expected \(2,\)"),
    "array for a parameter": (lambda: M.init.zeros_(np.ones(3)), TypeError, r"array float64\(3,\)[\s\S]*zeros_\(array"),
    "negative deviation": (lambda: M.init.normal_(Parameter(V), std=-1), ValueError, "std is -1; expected at least 0"),
    "norm as text": (lambda: optim.clip_grad_norm([V], "a"), TypeError, "max_norm is 'a'; expected a number"),
    # files
    "keys of a state dict": (
        loaded,
        KeyError,
        r"missing \['0.weight'\], unknown \['0.wieght'\]; did you mean '0",
    ),
    "path for a state dict": (lambda: net().load_state_dict("a.pkl"), ValueError, "got a str; expected a dict"),
    "shape in a state dict": (
        lambda: net().load_state_dict(M.Linear(3, 2).state_dict()),
        ValueError,
        r"weight has shape",
    ),
    "no such file": (lambda: mge.load("no-folder/model.pkl"), FileNotFoundError, "no file 'no-folder/model.pkl'"),
    "number for a file": (lambda: mge.load(3), TypeError, "f is a int; expected a path"),
    "no such folder": (lambda: mge.save({}, "no-folder/model.pkl"), FileNotFoundError, "no folder 'no-folder'"),
}


@pytest.mark.parametrize(("call", "kind", "text"), MISTAKES.values(), ids=list(MISTAKES))
def test_mistake(call, kind, text):
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, MegEngineError)
    message = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert re.search(text.replace("()", r"\(\)") if "super()" in text else text, message), message
    assert "object is not iterable" not in str(caught.value)


def test_a_gradient_that_reaches_nothing_warns(caplog, monkeypatch):
    monkeypatch.setattr(mge.get_logger(), "propagate", True)
    w = Parameter([1.0])
    outside = w * 2
    gm = GradManager().attach([w])
    with gm:
        gm.backward(outside)
    assert "does not depend on any attached tensor" in caplog.text
    caplog.clear()
    with gm:
        gm.backward(w * 2)
        assert caplog.text == ""


def test_errors_of_users_layers_stay_theirs():
    class Mine(M.Module):
        def forward(self, x):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        M.Sequential(M.Identity(), Mine())(V)
    assert type(caught.value) is KeyError
    assert caught.value.__notes__ == ["in module 1, Mine(), of Sequential"]
    layer = M.Identity()
    layer.register_forward_hook(lambda *_: {}["none"])
    with pytest.raises(KeyError) as caught:
        layer(V)
    assert type(caught.value) is KeyError


def test_properties_that_fail_say_so_themselves():
    class Mine(M.Module):
        @property
        def width(self):
            return self.weight.shape[0]

    with pytest.raises(AttributeError, match="no attribute 'weight'"):
        Mine().width
    assert not hasattr(Mine(), "weight")
