"""Record which exception the real MegEngine raises for wrong calls: `python refusals.py OUT.json`, with megengine 1.13.0 installed.

Users write `except` for these types, so errors here must be of them too. Calls that MegEngine lets pass are left out.
"""

import json
import sys

import numpy as np

CALLS = """
F.matmul(x, x)
F.add(x, F.zeros((7, 7)))
F.dot(x, x)
F.reshape(x, (5, 5))
F.broadcast_to(x, (3, 3))
F.concat([x, F.zeros((3, 3))], 1)
F.stack([x, F.zeros((3, 3))])
F.split(x, 5, axis=1)
F.squeeze(x, 0)
F.transpose(x, (0, 1, 2))
F.clip(x)
F.sum(x, axis=5)
F.argmax(x, axis=5)
F.topk(x, 0)
F.gather(x, 0, F.zeros((9, 9), dtype="int32"))
F.cond_take(x, x)
F.linspace(0, 1, -1)
F.norm(x, "nonsense")
F.conv2d(image, F.zeros((4, 5, 3, 3)))
F.conv2d(image, F.zeros((4, 3, 3, 3)), groups=2)
F.conv1d(x, x)
F.conv_transpose2d(image, F.zeros((5, 4, 3, 3)))
F.max_pool2d(image, "nonsense")
F.batch_norm(image)
F.linear(x, F.zeros((4, 5)))
F.nn.cross_entropy(x, x)
F.nn.cross_entropy(x, labels, reduction="nonsense")
F.nn.hinge_loss(x, x, norm="nonsense")
F.vision.interpolate(image)
F.vision.interpolate(image, size=(4, 4), scale_factor=2)
F.vision.interpolate(image, size=(4, 4), mode="nonsense")
F.vision.roi_align(image, F.zeros((1, 5)), (2, 2), mode="nonsense")
F.vision.nms(F.zeros((3, 4)), F.zeros((2,)), 0.5)
F.vision.cvt_color(image, mode="nonsense")
F.pixel_shuffle(image, 2)
F.svd(F.zeros((2,)))
F.nn.dropout(x, 2.0)
x[0, 0, 0]
x["a"]
x.reshape(5, 5)
bool(x)
int(x)
x.item()
mge.tensor([[1], [1, 2]])
mge.tensor("text")
mge.tensor([1], dtype="nonsense")
mge.tensor([1], device="nonsense")
mge.set_default_device("nonsense9")
M.Conv2d(3, 4)
M.Conv2d(3, 4, 3, groups=2)
M.Conv2d(3, 4, "a")
M.Linear(2, "a")
M.Linear(2, 3)(image)
M.BatchNorm2d(3)(x)
M.LayerNorm(5)(x)
M.GroupNorm(2, 3)
M.Elemwise("NONSENSE")
M.Module()(1)
M.Linear(2, 3).nonsense
M.Linear(2, 3).load_state_dict({})
M.Linear(2, 3).load_state_dict({"weight": np.zeros((9, 9)), "bias": np.zeros(3)})
M.Linear(2, 3).load_state_dict({"weight": "text", "bias": np.zeros(3)})
M.init.xavier_normal_(mge.Parameter([1.0]))
M.init.msra_normal_(mge.Parameter([[1.0]]), mode="nonsense")
M.init.calculate_gain("nonsense")
mge.random.permutation(-1)
mge.random.poisson(-1.0, (2,))
mge.random.gamma(0, 1, (2,))
mge.optimizer.SGD([], 0.1)
mge.optimizer.SGD(p, -0.1)
mge.optimizer.SGD(p, 0.1, momentum=-1)
mge.optimizer.SGD(p, 0.1, nesterov=True)
mge.optimizer.SGD([x], 0.1)
mge.optimizer.SGD([1], 0.1)
mge.optimizer.SGD("text", 0.1)
mge.optimizer.SGD(p)
mge.optimizer.Adam(p, 0.1, betas=(1.0, 0.9))
mge.optimizer.Adam(p, 0.1, weight_decay=-1)
mge.optimizer.SGD(p, 0.1).add_param_group({"params": p})
mge.optimizer.SGD(p, 0.1).add_param_group([])
mge.optimizer.SGD(p, 0.1).load_state_dict({})
mge.optimizer.SGD(p, 0.1).backward(x)
mge.optimizer.MultiStepLR(mge.optimizer.SGD(p, 0.1), [4, 2])
mge.optimizer.MultiStepLR(p, [2])
mge.optimizer.LRScheduler(mge.optimizer.SGD(p, 0.1))
mge.autodiff.GradManager().attach([1])
mge.autodiff.GradManager().backward(x)
mge.load("/nonsense/file.pkl")
F.concat([])
F.stack([])
F.expand_dims(x, 9)
F.squeeze(x, 9)
F.flatten(x, 9)
F.flatten(x, 1, 0)
F.roll(x, 1, 9)
F.repeat(x, 2, 9)
F.tile(x, "a")
F.concat([x], 9)
F.concat([x, "a"])
F.concat([x, x], device="nonsense")
F.stack([x, x], device=object())
F.arange("a")
F.arange(0, 5, 0)
F.linspace(0, 1, "a")
F.eye(-1)
F.full((2,), "a")
F.zeros("a")
F.zeros((2, -1))
F.reshape(x, (-1, -1))
F.transpose(x, (0, 0))
F.transpose(x, (0,))
F.gather(x, 9, labels)
F.cumsum(x, 9)
F.normalize(x, axis=9)
F.matmul(x, labels)
F.clip(x, "a")
F.where(x, x, x)
F.where(x > 0, x, labels)
F.split(x, "a")
F.split(x, 0)
F.softmax(x, "a")
F.one_hot(labels, "a")
F.one_hot(labels, -1)
F.topk(x, "a")
F.nn.pad(x, ((1, 1),), "nonsense")
F.nn.pad(x, ((-1, 1),))
F.max_pool2d(x, 2)
F.adaptive_avg_pool2d(x, 2)
F.vision.interpolate(image, size="a")
F.vision.interpolate(x, size=2)
F.pixel_shuffle(image, 3)
F.add(x, "a")
F.add(x, None)
F.left_shift(x, 1)
F.logical_and(x, x)
F.loss.l1_loss(x, x, reduction="nonsense")
F.loss.square_loss(x, F.zeros((7,)))
F.conv2d(image, F.zeros((4, 3, 3, 3)), compute_mode="nonsense")
F.batch_norm(image, training=True, momentum="a")
F.argmax(x, axis="a")
F.sum(x, axis="a")
x.reshape("a", 2)
x.astype("nonsense")
x + None
x["a":]
len(mge.tensor(1.0))
M.BatchNorm2d("a")
M.Embedding(3.5, 4)
M.Linear("a", 4)
M.Conv2d(3, 4, 3, name=5)
M.LSTM(3, 4, num_layers=1.5)
M.Linear(2, 3).load_state_dict({"weight": np.zeros((3, 2)), "bias": np.zeros(3), "more": 1})
M.Linear(2, 3).load_state_dict(lambda k, v: None)
M.Linear(2, 3).load_state_dict({"weight": np.zeros((9, 9)), "bias": np.zeros(3)}, strict=False)
M.init.calculate_correct_fan(mge.Parameter([[1.0]]), "nonsense")
M.init.calculate_fan_in_and_fan_out(mge.Parameter([1.0]))
mge.optimizer.SGD({"nonsense": 1}, 0.1)
mge.optimizer.SGD([{"lr": 1}], 0.1)
mge.optimizer.SGD([{"params": p}, {"params": p}], 0.1)
mge.optimizer.SGD(p + p, 0.1)
mge.optimizer.SGD(p, "a")
mge.optimizer.Adam(p, 0.1).load_state_dict(mge.optimizer.SGD(p, 0.1).state_dict())
mge.optimizer.Adadelta(p, rho=2)
mge.optimizer.MultiStepLR(mge.optimizer.SGD(p, 0.1), 5)
mge.optimizer.MultiStepLR(mge.optimizer.SGD(p, 0.1), [1], gamma="a")
mge.optimizer.MultiStepLR(mge.optimizer.SGD(p, 0.1), [1], current_epoch=3)
mge.optimizer.MultiStepLR(mge.optimizer.SGD(p, 0.1), [1]).load_state_dict({"milestones": [1]})
mge.autodiff.GradManager().attach("a")
mge.autodiff.GradManager().attach(p, callbacks=3)
mge.random.uniform("a")
mge.random.uniform(1, 0, (2,))
mge.random.beta(-1.0, 1.0)
mge.jit.trace(lambda x: x, nonsense=True)
late_tracking(image)
mge.autodiff.GradManager().attach(mge.tensor([1]))
mge.autodiff.GradManager().attach([x, mge.tensor([True])])
mge.random.seed("a")
mge.random.seed(1.5)
M.Embedding(4, 3, padding_idx=9)
M.Embedding(4, 3, initial_weight=x)
M.Embedding.from_pretrained(image)
Q.create_qparams("nonsense", "qint8", 1.0)
Q.fake_quant_bias(x, x, x)
Q.HistogramObserver().get_qparams()
graph.get_node_by_name("nonsense").as_unique()
graph.get_expr_by_id(9999).as_unique()
graph.nodes().as_unique()
graph.nodes().as_list()[1].__setattr__("name", 3)
graph.nodes().as_list()[1].__setattr__("name", "conv_out")
graph.replace_node({node("conv_out"): 3})
graph.replace_node({3: node("conv_out")})
graph.replace_node({node("x"): node("conv_out")})
graph.replace_node({node("conv_out"): elsewhere})
graph.insert_exprs(elsewhere.expr).__enter__()
graph.reset_outputs(3)
graph.reset_outputs([1])
graph.reset_outputs(elsewhere)
graph.add_output_node(3)
graph.add_output_node(elsewhere)
graph.add_input_node((1, 3, 4, 4), name=3)
traced(3)
traced(image, image)
traced.set_end_points([elsewhere])
tm.trace_module("a", image)
tm.trace_module(image, image)
"""


def names():
    """What the calls use."""
    import megengine as mge
    import megengine.autodiff
    import megengine.functional as F
    import megengine.jit
    import megengine.module as M
    import megengine.optimizer
    import megengine.quantization as Q
    import megengine.random
    import megengine.traced_module as tm

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.relu = M.Conv2d(3, 4, 1), M.ReLU()

        def forward(self, x):
            return self.relu(self.conv(x))

    def late_tracking(image):
        norm = M.BatchNorm2d(3, track_running_stats=False)
        norm.track_running_stats = True
        return norm(image)

    x, image = (mge.tensor(np.ones(s, np.float32)) for s in ((2, 3), (1, 3, 4, 4)))
    labels = mge.tensor(np.zeros(2, np.int32))
    found = {"mge": mge, "F": F, "M": M, "Q": Q, "tm": tm, "np": np, "x": x, "image": image, "labels": labels}
    traced, other = (tm.trace_module(Net(), image) for _ in range(2))
    graph, elsewhere = traced.graph, other.graph.get_node_by_name("*relu_out").as_unique()
    return {
        **found,
        "p": [mge.Parameter([1.0])],
        "late_tracking": late_tracking,
        "traced": traced,
        "graph": graph,
        "node": lambda name: graph.get_node_by_name("*" + name).as_unique(),
        "elsewhere": elsewhere,
    }


def answers():
    """Call -> name of the exception."""
    found = {}
    for call in CALLS.split("\n"):
        try:
            getattr(eval(call, names()) if call else None, "numpy", lambda: None)()
        except Exception as error:
            found[call] = "RuntimeError" if type(error).__name__ == "AsyncError" else type(error).__name__
    return found


if __name__ == "__main__":
    import megengine

    megengine.config.async_level = 0
    with open(sys.argv[1], "w") as file:
        json.dump(answers(), file, indent=0)
