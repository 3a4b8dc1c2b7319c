"""More that people write, longer than a few lines: own optimizers, training loops, surgery. `idioms.py` records them too."""

import numpy as np
from idioms import IDIOMS, idiom, values


def trained(mge, parameters, optimizer, steps=3):
    """The loss of each step of a small problem."""
    losses, manager = [], mge.autodiff.GradManager().attach(parameters)
    for _ in range(steps):
        with manager:
            loss = sum((p * p).sum() for p in parameters)
            manager.backward(loss)
        optimizer.step()
        optimizer.clear_grad()
        losses.append(loss)
    return losses


def parameters(mge):
    """Two parameters."""
    return [mge.Parameter(values(3)), mge.Parameter(values(2, 2))]


@idiom
def an_optimizer_of_ones_own(mge, F):
    class Own(mge.optimizer.Optimizer):
        def __init__(self, params, lr, momentum=0.9):
            super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=0.01))

        def _create_state(self, param_group):
            for p in param_group["params"]:
                self._add_state(p, "buffer")
                self._add_state(p, "step", initializer=0.0)

        def _updates(self, param_group):
            for p in param_group["params"]:
                if p.grad is None:
                    continue
                state = self._state[p]
                state["step"] += 1
                state["buffer"] = state["buffer"] * param_group["momentum"] + p.grad
                p -= param_group["lr"] * state["buffer"]

    params = parameters(mge)
    optimizer = Own(params, 0.1)
    losses = trained(mge, params, optimizer)
    stored = optimizer.state_dict()
    other = Own(params, 0.5)
    other.load_state_dict(stored)
    state = [sorted(stored["state"][0]), stored["state"][0]["step"], stored["state"][1]["buffer"]]
    return losses, params, state, other.param_groups[0]["lr"], other._state[params[0]]["buffer"]


@idiom
def a_step_of_ones_own(mge, F):
    class Halving(mge.optimizer.SGD):
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad = p.grad * 0.5
            return super().step()

    params = parameters(mge)
    return trained(mge, params, Halving(params, 0.1, momentum=0.9)), params


@idiom
def slow_weights_behind_fast_ones(mge, F):
    params = parameters(mge)
    optimizer, slow = mge.optimizer.SGD(params, 0.1, momentum=0.9), [p.numpy().copy() for p in params]
    for _ in range(2):
        trained(mge, params, optimizer, 2)
        for s, p in zip(slow, params):
            p.set_value(s + 0.5 * (p.numpy() - s))
            s[...] = p.numpy()
    return params, sorted(optimizer._state[params[0]]), optimizer._defaults["momentum"]


@idiom
def states_of_optimizers(mge, F):
    params, optim = parameters(mge), mge.optimizer
    made = [
        optim.SGD(params, 0.1),
        optim.SGD(params, 0.1, 0.9),
        optim.Adam(params, 0.1),
        optim.AdamW(params, 0.1),
        optim.Adadelta(params),
    ]
    shown = []
    for optimizer in made:
        stored = optimizer.state_dict()
        shown.append([sorted(stored["state"].get(0, {})), sorted(stored["param_groups"][0])])
        shown.append(next(iter(optimizer.param_groups[0])))
    return shown


@idiom
def values_of_another_shape(mge, F):
    x, y, p = mge.tensor(values(2)), mge.tensor(values(2)), mge.Parameter(values(2))
    x.set_value(values(3))
    y.set_value(mge.tensor([1, 2, 3]))
    p.set_value(5.0)
    return x, y, p, type(p).__name__


@idiom
def more_than_there_are(mge, F):
    x = mge.tensor(values(3, 6))
    return F.topk(x, 8), F.topk(x, -2), F.topk(x, 8, kth_only=True), F.topk(x, 2, descending=False, kth_only=True)


@idiom
def whole_floats_for_integers(mge, F):
    x, w = mge.tensor(values(1, 3, 5, 5)), mge.tensor(values(2, 3, 3, 3))
    pooled = F.max_pool2d(x, 2.0), F.avg_pool2d(x, 2, 2.0)
    y = mge.tensor(values(4, 6))
    cut = y.reshape(24.0), y.reshape(4 / 2, -1), F.split(y, 4 / 2), F.expand_dims(y, 0).shape
    return (
        F.conv2d(x, w, padding=(3 - 1) / 2),
        F.conv2d(x, w, stride=2.0),
        pooled,
        cut,
        mge.random.uniform(size=(2.0,)).shape,
    )


@idiom
def labels_of_other_dtypes(mge, F):
    x = mge.tensor(values(3, 4))
    labels = [mge.tensor(np.array([0, 1, 2], t)) for t in ("float32", "uint8", "int64")]
    two = mge.tensor(np.array([True, False, True]))
    return [F.nn.cross_entropy(x, y) for y in labels], F.nn.indexing_one_hot(x, labels[0]), F.nn.cross_entropy(x, two)


@idiom
def pictures_of_four_channels_are_warped(mge, F):
    matrix = mge.tensor(np.array([[[1.1, 0.1, 0.2], [0.1, 0.9, -0.3]]], np.float32))
    four, two = mge.tensor(values(1, 6, 6, 4)), mge.tensor(values(1, 6, 6, 2))
    return F.vision.warp_affine(four, matrix, (5, 4)), F.vision.warp_affine(two, matrix, (5, 4))


@idiom
def grids(mge, F):
    found = F.meshgrid(F.arange(3), F.arange(2))
    return type(found).__name__, found, F.meshgrid(F.arange(2), F.arange(2), F.arange(2), indexing="ij")


@idiom
def names_of_loggers(mge, F):
    return [mge.get_logger(name).name for name in ("script", "megengine.part", "__main__")]


def numbered(count=11):
    """A data set of numbers."""
    from megengine.data.dataset import Dataset

    class Numbers(Dataset):
        def __init__(self):
            super().__init__()

        def __getitem__(self, index):
            return np.float32(index), index % 3

        def __len__(self):
            return count

    return Numbers()


@idiom
def parts_of_a_data_set(mge, F):
    import megengine.data as data

    samplers = [data.SequentialSampler(numbered(), 2, world_size=3, rank=rank) for rank in range(3)]
    drawn = [data.ReplacementSampler(numbered(), 2, num_samples=7, world_size=3, rank=r, seed=3) for r in range(3)]
    shuffled = [data.RandomSampler(numbered(), 2, world_size=3, rank=rank, seed=3) for rank in range(3)]
    everything = sorted({int(i) for sampler in shuffled for batch in sampler for i in batch})
    batches = [[int(i) for i in batch] for sampler in samplers for batch in sampler]
    return batches, [[len(b) for b in sampler] for sampler in drawn], [len(s) for s in samplers + drawn], everything


@idiom
def batches_of_a_loader(mge, F):
    import megengine.data as data

    joined = data.dataset.ConcatDataset([numbered(3), numbered(2)])
    loader = data.DataLoader(joined, data.SequentialSampler(joined, batch_size=2))
    nested = data.Collator().apply([{"a": [np.ones(2), 1], "b": "x"}, {"a": [np.zeros(2), 2], "b": "y"}])
    return len(joined), len(loader), [[type(b).__name__, *b] for b in loader], nested["a"], nested["b"], joined[-1][1]


@idiom
def pictures_are_prepared(mge, F):
    import megengine.data.transform as T

    x = np.arange(72, dtype=np.uint8).reshape(4, 6, 3)
    steps = T.Compose([T.Pad(1, value=(1, 2, 3)), T.CenterCrop((5, 6)), T.Normalize(128.0, 64.0), T.ToMode()])
    crops = [
        T.RandomCrop((8, 10), 2, [1, 2, 3]),
        T.RandomCrop((4, 9)),
        T.RandomCrop((6, 6)),
        T.RandomCrop((8, 10), 2, 1),
    ]
    both = T.Compose([T.Pad((1, 2)), T.ToMode()]).apply_batch([(x, 1), (x, 2)])
    return steps.apply(x), [c.apply(x) for c in crops], T.Pad((1, 2, 0, 3)).apply(x), T.Pad(1, 7).apply(x), both[1]


@idiom
def pictures_of_bytes(mge, F):
    x = [
        mge.tensor((np.arange(16) * 7 % 100 - shift).astype(t).reshape(1, 1, 4, 4))
        for t, shift in (("uint8", 0), ("int8", 50))
    ]
    modes = {"scale_factor": 2.0}, {"size": (3, 5), "mode": "nearest"}, {"size": (3, 5), "mode": "bicubic"}
    return (
        [[F.vision.interpolate(y, **mode) for mode in modes] for y in x],
        F.avg_pool2d(x[1], 2),
        F.avg_pool2d(x[1], 3, 1, 1),
    )


@idiom
def scaled_gradients(mge, F):
    import megengine.amp as amp

    w, found = mge.Parameter(values(3)), []
    manager = mge.autodiff.GradManager().attach([w])
    scaler = amp.GradScaler(init_scale=8.0, backoff_factor=0.25, growth_interval=2)
    for step in range(6):
        with manager:
            scaler.backward(manager, (w * w).sum() * (float("inf") if step == 3 else 1.0))
        found.append([scaler.scale_factor, w.grad is None, scaler._growth_tracker])
        w.grad = None
    fixed = amp.GradScaler(init_scale=8.0, growth_interval=0)
    fixed.update(3.0)
    return found, [scaler.state_dict()[k] for k in sorted(scaler.state_dict())], fixed.scale_factor


@idiom
def folded_norms(mge, F):
    import megengine.utils.bn_fusion as fusion

    def filled(layer):
        for k, (_, t) in enumerate(sorted([*layer.named_parameters(), *layer.named_buffers()])):
            t[...] = mge.tensor(np.abs(values(*t.shape)) + 0.1 * k + 0.1)
        layer.eval()
        return layer

    M, found = mge.module, []
    for layer in (M.Conv2d(3, 4, 3), M.Conv2d(4, 4, 3, groups=2, bias=False), M.ConvTranspose2d(3, 4, 3)):
        for relu in (None, M.ReLU()):
            made = fusion.fuse_conv_bn_relu_module(filled(layer), filled(M.BatchNorm2d(4)), relu)
            found.append([type(made).__name__, made.weight, made.bias, made.training])
    return found


@idiom
def boxes_are_assigned(mge, F):
    def overlaps(a, b):
        low, high = F.maximum(F.expand_dims(a[:, :2], 1), b[:, :2]), F.minimum(F.expand_dims(a[:, 2:], 1), b[:, 2:])
        sides = F.maximum(high - low, 0)
        shared = sides[..., 0] * sides[..., 1]
        areas = [(x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1]) for x in (a, b)]
        return shared / (F.expand_dims(areas[0], 1) + areas[1] - shared)

    shifts = F.stack([F.arange(3) * 8] * 4, axis=1)
    base = mge.tensor(np.array([[-4, -4, 4, 4], [-8, -4, 8, 4]], np.float32))
    anchors = (F.expand_dims(shifts, 1) + F.expand_dims(base, 0)).reshape(-1, 4)
    truth = mge.tensor(np.array([[0, 0, 9, 9], [10, 10, 21, 23]], np.float32))
    found = overlaps(anchors, truth)
    best, chosen = F.max(found, axis=1), F.argmax(found, axis=1)
    labels = mge.tensor(np.full(anchors.shape[0], -1, np.int32))
    labels[best < 0.3] = 0
    labels[best >= 0.4] = 1
    return anchors, found, labels, truth[chosen], (labels == 1).sum()


@idiom
def two_networks_against_each_other(mge, F):
    maker, judge = mge.module.Linear(3, 4), mge.module.Linear(4, 1)
    for layer in (maker, judge):
        for p in layer.parameters():
            p[...] = mge.tensor(values(*p.shape))
    optim, losses = mge.optimizer, []
    managers = [mge.autodiff.GradManager().attach(layer.parameters()) for layer in (maker, judge)]
    rules = [optim.Adam(layer.parameters(), lr=0.02, betas=(0.5, 0.999)) for layer in (maker, judge)]
    one, zero, real = F.ones((5, 1)), F.zeros((5, 1)), mge.tensor(values(5, 4))
    for _ in range(3):
        made = F.tanh(maker(mge.tensor(values(5, 3))))
        with managers[1]:
            loss = F.nn.binary_cross_entropy(judge(real), one) + F.nn.binary_cross_entropy(judge(made.detach()), zero)
            managers[1].backward(loss)
        rules[1].step().clear_grad()
        with managers[0]:
            fooled = F.nn.binary_cross_entropy(judge(F.tanh(maker(mge.tensor(values(5, 3))))), one)
            managers[0].backward(fooled)
        rules[0].step().clear_grad()
        losses += [loss, fooled]
    return losses, judge.weight


@idiom
def learning_to_learn(mge, F):
    w, x, y = mge.Parameter(values(3, 2)), mge.tensor(values(4, 3)), mge.tensor(values(4, 2))
    outer, inner = (mge.autodiff.GradManager().attach([w]) for _ in range(2))
    with outer:
        with inner:
            inner.backward(F.mean((F.matmul(x, w) - y) ** 2))
        fast = w - 0.1 * w.grad
        w.grad = None
        loss = F.mean((F.matmul(x, fast) + y) ** 2)
        outer.backward(loss)
    return loss, w.grad


@idiom
def inputs_attached_step_after_step(mge, F):
    w, manager, found = mge.Parameter(values(3)), mge.autodiff.GradManager(), []
    manager.attach([w])
    for step in range(3):
        x = mge.tensor(values(3) + step)
        manager.attach(x)
        with manager:
            manager.backward((x * x * w).sum())
        found.append(x.grad)
        del x
    return found, w.grad, len(list(manager.attached_tensors()))


@idiom
def penalties_on_gradients(mge, F):
    w, x = mge.Parameter(values(3, 1)), mge.tensor(values(4, 3))
    with mge.autodiff.GradManager().attach([w]) as outer:
        with mge.autodiff.GradManager().attach([x]) as inner:
            inner.backward(F.tanh(F.matmul(x, w)).sum())
        penalty = ((F.norm(x.grad, axis=1) - 1) ** 2).mean()
        outer.backward(penalty)
    return penalty, w.grad


__all__ = ["IDIOMS"]
