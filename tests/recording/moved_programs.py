"""Parts of programs that change nothing but the package: gradients set to zero, samplers and transforms of one's own,
functions that are wrapped, nodes that are found by names. `idioms.py` records them too.
"""

# pyright: reportOperatorIssue=false, reportIndexIssue=false

import numpy as np
from idioms import idiom, values
from programs import filled


@idiom
def gradients_are_set_to_zero(mge, F):
    net, found = filled(mge.module.Linear(2, 2)), []
    manager, x = mge.autodiff.GradManager().attach(net.parameters()), mge.tensor(values(3, 2))
    rule = mge.optimizer.SGD(net.parameters(), 0.1, momentum=0.9)
    net.zero_grad()
    found.append(net.weight.grad is None)
    for zero in (net.zero_grad, rule.zero_grad, rule.clear_grad):
        with manager:
            manager.backward(net(x).sum())
        rule.step()
        zero()
        found.append(None if net.weight.grad is None else F.abs(net.weight.grad))
        rule.step()
        found.append(net.weight.numpy().copy())
    return found


@idiom
def parameters_are_replaced_by_place(mge, F):
    net = filled(mge.module.Sequential(mge.module.Linear(2, 3), mge.module.Linear(3, 1)))
    others = {k: mge.Parameter(np.full(s, k, np.float32)) for k, s in enumerate([(3,), (3, 2), (1,), (1, 3)], 5)}
    del others[6]
    count, known = net.replace_param(others, 5), net[1].weight is others[8]
    inside = [list(net._flatten(with_key=k, predicate=lambda x: isinstance(x, mge.Parameter))) for k in (False, True)]
    return count, known, list(net.parameters()), len(inside[0]), [name for name, _ in inside[1]]


@idiom
def samplers_choose_for_themselves(mge, F):
    from megengine.data import MapSampler

    class Chosen(MapSampler):
        def sample(self):
            return [3, 1, 2, 0, 9]

    return [[list(map(int, b)) for b in Chosen(range(10), 2, drop_last=d)] for d in (False, True)]


@idiom
def texts_and_single_parts_in_batches(mge, F):
    import megengine.data.transform as T
    from megengine.data import Collator, DataLoader, SequentialSampler
    from megengine.data.dataset import ArrayDataset

    pictures = np.arange(4 * 27, dtype=np.uint8).reshape(4, 3, 3, 3)
    data = ArrayDataset(pictures)
    loader = DataLoader(data, SequentialSampler(data, 2), transform=T.ToMode("CHW"))
    kinds = [type(batch).__name__ for batch in loader]
    one = T.Pad(1).apply((pictures[0],))
    return Collator().apply([(1.0, "x"), (2.0, "y")])[1] == ("x", "y"), kinds, list(loader)[1], one.shape


@idiom
def calibrated_scales_are_no_part_of_states(mge, F):
    M, Q = mge.module, mge.quantization
    net = Q.quantize_qat(filled(M.Sequential(M.QuantStub(), M.Linear(3, 2))), qconfig=Q.calibration_qconfig)
    net.eval()
    Q.enable_observer(net)
    Q.disable_fake_quant(net)
    net(mge.tensor(values(4, 3)))
    Q.disable_observer(net)
    net = Q.reset_qconfig(net, Q.passive_qconfig)
    observer = net[1].act_observer
    kept = type(observer.orig_scale).__name__, observer.orig_scale, observer.scale
    return [n for n, _ in net.named_tensors()], sorted(net.state_dict()), kept, net.load_state_dict(net.state_dict())


@idiom
def functions_are_wrapped_by_a_statement(mge, F):
    from megengine.traced_module import trace_module, wrap

    namespace = {"__name__": "own_functions", "wrap": wrap}
    exec(
        "def twice(x, k=2):\n    return x * k\nwrap(twice)\ndef call(x):\n    return twice(x) + twice(x, 3)", namespace
    )

    class Net(mge.module.Module):
        def forward(self, x):
            return namespace["call"](x)

    traced = trace_module(Net(), mge.tensor(values(3)))
    return [node.name for node in traced.graph.nodes()], traced(mge.tensor(values(3)))


@idiom
def nodes_are_found_by_names_of_graphs(mge, F):
    M = mge.module

    class Block(M.Module):
        def __init__(self):
            super().__init__()
            self.conv = M.Conv2d(2, 2, 1)

        def forward(self, x):
            return F.relu(self.conv(x)) + x

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.b1, self.b2 = Block(), Block()

        def forward(self, x):
            return self.b2(self.b1(x))

    traced = mge.traced_module.trace_module(Net(), mge.tensor(values(1, 2, 3, 3)))
    patterns = ["*b1*", "Net_b1*", "*b1_conv*", "*_x", "net*relu_out", "*conv"]
    found = [[n.name for n in traced.graph.get_node_by_name(p).as_list()] for p in patterns]
    return found, sorted(str(traced).split("\n"))
