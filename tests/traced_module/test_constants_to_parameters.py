"""ConstantToParameter: networks of ops train as the modules that they came from."""

import numpy as np

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine.autodiff import GradManager
from megengine.optimizer import SGD
from megengine.traced_module import lower, optimize, trace_module
from megengine.traced_module.passes import PassManager, passes_named

X = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = M.Conv2d(3, 4, 3), M.BatchNorm2d(4), M.Linear(4, 2)
        self.extra_state_dict = M.Linear(2, 2)

    def forward(self, x):
        y = F.relu(self.norm(self.conv((x - 0.45) / 0.22))).mean(axis=(2, 3))
        return self.extra_state_dict(self.fc(y))


def train(model, steps=3):
    parameters = list(model.parameters())
    manager, optimizer = GradManager().attach(parameters), SGD(parameters, lr=0.05)
    for _ in range(steps):
        with manager:
            manager.backward((model(mge.tensor(X)) ** 2).sum())
        assert all(p.grad is not None for p in parameters)
        optimizer.step().clear_grad()


def of_ops(net):
    return trace_module(lower(trace_module(net, mge.tensor(X))), mge.tensor(X))


def test_weights_train_as_those_of_the_module():
    net = Net().eval()
    model = of_ops(net)
    assert list(model.parameters()) == []
    before = repr(model)
    model = optimize(model, passes="ConstantToParameter", check_with=mge.tensor(X))
    model.graph.lint()
    names = [name for name, _ in model.named_parameters()]
    assert {"conv_weight", "fc_weight", "fc_bias", "extra_state_dict_weight"} <= set(names)
    assert len(names) == len(list(net.parameters()))
    assert [e.output.shape for e in model.graph.exprs() if e.kind == "Constant" and e.output.ndim] == [(4,)] * 2
    train(net)
    train(model)
    np.testing.assert_allclose(model(mge.tensor(X)).numpy(), net(mge.tensor(X)).numpy(), rtol=1e-4, atol=1e-5)
    assert PassManager(passes_named("ConstantToParameter", "calls")).run(model) == []
    while model.graph.undo():
        pass
    assert repr(model) == before


def test_the_log_fits_copies_with_other_weights():
    first, second = of_ops(Net().eval()), of_ops(Net().eval())
    edited = optimize(first, passes="ConstantToParameter")
    want = second(mge.tensor(X)).numpy()
    edited.edit_log.replay(second)
    np.testing.assert_array_equal(second(mge.tensor(X)).numpy(), want)
    for name, parameter in second.named_parameters():
        assert parameter.shape == dict(edited.named_parameters())[name].shape
    train(second)
    assert not np.allclose(second(mge.tensor(X)).numpy(), want)


def test_files_keep_parameters(tmp_path):
    model = optimize(of_ops(Net().eval()), passes="ConstantToParameter")
    mge.save(model, tmp_path / "net.mgt")
    again = mge.load(tmp_path / "net.mgt")
    assert [n for n, _ in again.named_parameters()] == [n for n, _ in model.named_parameters()]
    for one in (again, lower(again)):
        np.testing.assert_array_equal(one(mge.tensor(X)).numpy(), model(mge.tensor(X)).numpy())


def test_functions_with_statistics_keep_them():
    class Functions(M.Module):
        def forward(self, x):
            mean, var, scale = (mge.tensor(np.full(3, v, np.float32)) for v in (0.5, 2, 3))
            return F.batch_norm(x, mean, var, scale, None, training=False) * mge.tensor(np.arange(3))[:, None, None]

    model = trace_module(Functions(), mge.tensor(X))
    edited = optimize(model, passes="ConstantToParameter")
    assert [p.numpy().tolist() for p in edited.parameters()] == [[3, 3, 3]]
    np.testing.assert_array_equal(edited(mge.tensor(X)).numpy(), model(mge.tensor(X)).numpy())
