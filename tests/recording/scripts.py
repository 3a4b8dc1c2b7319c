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
    return (
        F.conv2d(x, w, padding=(3 - 1) / 2),
        F.conv2d(x, w, stride=2.0),
        pooled,
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


__all__ = ["IDIOMS"]
