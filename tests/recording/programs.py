"""Programs as people publish them, cut down: detection, segmentation, language, adversarial training. `idioms.py`
records them too.
"""

# pyright: reportOperatorIssue=false, reportIndexIssue=false

import numpy as np
from idioms import idiom, values


def filled(net):
    """A network whose parameters are numbers that depend on their place alone."""
    for k, (_, p) in enumerate(sorted(net.named_parameters())):
        p[...] = np.resize(values(*p.shape) * 0.3 + 0.01 * k, p.shape)
    return net


@idiom
def rates_that_are_tensors(mge, F):
    found = []
    for name in ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta"):
        p = mge.Parameter(values(3))
        rule = getattr(mge.optimizer, name)([p], lr=mge.tensor(0.1))
        for rate in (None, mge.tensor([0.2]), np.float32(0.3)):
            if rate is not None:
                rule.param_groups[0]["lr"] = rate
            p.grad = mge.tensor(values(3) + 1)
            rule.step()
        found.append(p)
    return found


@idiom
def schedules_go_on(mge, F):
    optim = mge.optimizer
    rule = optim.SGD([mge.Parameter(values(3))], 0.1)
    plan = optim.MultiStepLR(rule, [2, 4, 6], gamma=0.5)
    for _ in range(3):
        plan.step()
    stored = plan.state_dict()
    other = optim.MultiStepLR(optim.SGD([mge.Parameter(values(3))], 0.3), [9])
    other.load_state_dict(stored)
    rates = []
    for _ in range(4):
        other.step()
        rates.append([other.get_lr(), other.current_epoch, other.base_lrs])
    return sorted(stored), stored["milestones"], stored["gamma"], stored["current_epoch"], rates


@idiom
def truth_values_choose(mge, F):
    x = mge.tensor(values(2, 3))
    return x[True], x[False].shape, [x.astype(t) for t in ("half", "single", "f2", "i4", "byte", "short", "?", "<f4")]


@idiom
def tensors_in_words(mge, F):
    shown = [values(2, 3), np.float32([1 / 3, 123456.789]), np.float32(1 / 3), np.float16(0.1), np.float32(1e20)]
    shown += [np.float32([1e-6, 1.0]), np.float32([]), np.arange(2000), values(3, 40), np.float32([np.nan, np.inf])]
    return [repr(mge.tensor(x)).split(", device")[0] for x in shown]


@idiom
def costs_of_layers(mge, F):
    from megengine.utils.module_stats import get_activation_stats, get_op_stats, get_param_stats, module_stats

    layer, x = filled(mge.module.Linear(3, 2)), mge.tensor(values(4, 3))
    total, rows = module_stats(layer, inputs=x, cal_params=False, logging_to_stdout=False)
    found = [
        get_param_stats(layer.weight),
        get_activation_stats(x, has_input=True),
        get_op_stats(layer, (x,), layer(x)),
    ]
    return [str(list(row.items())) for row in [*rows.params, *found]], list(total)


def steps(mge, net, rule, loss_of, count=3):
    """The losses of some steps of training."""
    manager, losses = mge.autodiff.GradManager().attach(list(net.parameters())), []
    for step in range(count):
        with manager:
            loss = loss_of(step)
            manager.backward(loss)
        rule.step().clear_grad()
        losses.append(loss)
    return losses


@idiom
def pictures_are_segmented(mge, F):
    M = mge.module

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.down, self.deep = M.ConvBnRelu2d(3, 4, 3, 1, 1), M.Conv2d(4, 6, 3, padding=2, dilation=2, bias=False)
            self.pool, self.norm, self.head = M.MaxPool2d(2, 2), M.BatchNorm2d(6), M.Conv2d(10, 3, 1)

        def forward(self, x):
            wide = self.down(x)
            deep = F.relu(self.norm(self.deep(self.pool(wide))))
            deep = F.vision.interpolate(deep, size=wide.shape[-2:], mode="bilinear", align_corners=True)
            return self.head(F.concat([deep, wide], 1))

    net, x = filled(Net()), mge.tensor(values(2, 3, 8, 10))
    labels = mge.tensor((np.abs(values(2, 8, 10)) * 2).astype(np.int32) % 4)
    counted = labels != 3

    def loss_of(step):
        scores = net(x)
        chosen = -F.nn.indexing_one_hot(F.logsoftmax(scores, 1), F.where(counted, labels, F.zeros_like(labels)), 1)
        share = F.softmax(scores, 1)[:, 1]
        dice = 1 - 2 * (share * (labels == 1)).sum() / (share.sum() + (labels == 1).sum() + 1e-6)
        return (chosen * counted).sum() / F.maximum(counted.astype("float32").sum(), 1) + dice

    losses = steps(mge, net, mge.optimizer.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4), loss_of)
    net.eval()
    found = F.argmax(net(x), axis=1)
    return losses, [((found == k) & (labels == k)).sum().item() for k in range(3)], net.norm.running_mean


@idiom
def regions_are_read(mge, F):
    features = mge.tensor(values(2, 4, 12, 12))
    rois = mge.tensor(np.float32([[0, 1, 1, 9, 9], [1, 0, 0, 5, 11], [0, 3, 2, 10, 7]]))
    with mge.autodiff.GradManager().attach([features]) as manager:
        aligned = F.vision.roi_align(features, rois, (3, 3), spatial_scale=0.5, sample_points=2, aligned=True)
        pooled = F.vision.roi_pooling(features, rois, (2, 2), mode="max", scale=0.5)
        manager.backward(aligned.sum() + (pooled * pooled).mean())
    boxes = mge.tensor(np.abs(values(8, 4)) * 10)
    boxes[:, 2:] += boxes[:, :2]
    boxes = F.stack([F.clip(boxes[:, k], 0, 24) for k in range(4)], axis=1)
    large = (boxes[:, 2] - boxes[:, 0] > 1) & (boxes[:, 3] - boxes[:, 1] > 1)
    scores, best = F.topk(mge.tensor(values(8)), 5, descending=True)
    return aligned.mean(axis=(2, 3)), pooled, features.grad.sum(axis=1), boxes[large], boxes[best], scores


@idiom
def points_are_given_targets(mge, F):
    xs, ys = F.meshgrid(F.linspace(4, 28, 4), F.linspace(4, 20, 3))
    points = F.stack([F.flatten(xs), F.flatten(ys)], axis=1)
    truth = mge.tensor([[0.0, 0, 15, 20], [8, 4, 30, 22]])
    left, top = points[:, None, 0] - truth[None, :, 0], points[:, None, 1] - truth[None, :, 1]
    right, bottom = truth[None, :, 2] - points[:, None, 0], truth[None, :, 3] - points[:, None, 1]
    sides = F.stack([left, top, right, bottom], axis=-1)
    inside = (F.min(sides, axis=2) > 0) & (F.max(sides, axis=2) <= 24)
    areas = F.broadcast_to(F.expand_dims((truth[:, 2] - truth[:, 0]) * (truth[:, 3] - truth[:, 1]), 0), inside.shape)
    areas = F.where(inside, areas, F.full(areas.shape, 1e10))
    smallest, chosen = F.min(areas, axis=1), F.argmin(areas, axis=1)
    targets, found = sides[F.arange(12).astype("int32"), chosen], smallest < 1e9
    pairs = targets[:, 0::2], targets[:, 1::2]
    ratios = [F.maximum(F.min(p, axis=1) / F.max(p, axis=1), 0) for p in pairs]
    return points, chosen, targets[found], F.sqrt(ratios[0] * ratios[1]), found


@idiom
def boxes_are_decoded(mge, F):
    y = mge.tensor(values(1, 7, 4, 4))
    out = F.flatten(F.concat([y, F.sigmoid(y[:, :2])], axis=1), start_axis=2).transpose(0, 2, 1)
    xs, ys = F.meshgrid(F.arange(4), F.arange(4))
    grid, stride = F.stack((xs, ys), 2).reshape(1, -1, 2), F.full((1, 16, 1), 2)
    out[..., :2] = (out[..., :2] + grid) * stride
    out[..., 2:4] = F.exp(out[..., 2:4]) * stride
    boxes = F.zeros_like(out[:, :, :4])
    boxes[:, :, 0], boxes[:, :, 1] = out[:, :, 0] - out[:, :, 2] / 2, out[:, :, 1] - out[:, :, 3] / 2
    boxes[:, :, 2:] = boxes[:, :, :2] + out[:, :, 2:4]
    out[:, :, :4] = boxes
    sure, kind = F.max(out[0, :, 5:], 1, keepdims=True), F.argmax(out[0, :, 5:], 1, keepdims=True)
    rows = F.concat((out[0, :, :5], sure, kind.astype("float32")), 1)[(out[0, :, 4] * sure[:, 0]) >= 0.1]
    kept = F.vision.nms(rows[:, :4], rows[:, 4] * rows[:, 5], 0.45)
    return out, kept, rows[kept]


@idiom
def words_follow_words(mge, F):
    M = mge.module

    class Model(M.Module):
        def __init__(self):
            super().__init__()
            self.words, self.cell, self.out = M.Embedding(11, 6), M.LSTMCell(6, 6), M.Linear(6, 11)
            self.out.weight = self.words.weight

        def forward(self, ids, state=None):
            h, c = state or (F.zeros((ids.shape[0], 6)), F.zeros((ids.shape[0], 6)))
            found = []
            for t in range(ids.shape[1]):
                h, c = self.cell(self.words(ids[:, t]), (h, c))
                found.append(self.out(h))
            return F.stack(found, axis=1), (h, c)

    net, ids = filled(Model()), mge.tensor((np.arange(18) * 7 % 11).astype(np.int32).reshape(3, 6))
    scores, state = net(ids[:, :-1])
    loss = F.nn.cross_entropy(scores.reshape(-1, 11), ids[:, 1:].reshape(-1), label_smooth=0.1)
    following = F.argmax(scores[:, -1], axis=-1)
    again, _ = net(F.expand_dims(following, 1), state)
    deep = filled(M.LSTM(4, 5, num_layers=2, bidirectional=True))
    outputs, (h, c) = deep(mge.tensor(values(3, 2, 4)))
    return loss, F.exp(loss), following, again, sorted(net.state_dict()), outputs, h, c


@idiom
def words_attend_to_words(mge, F):
    M = mge.module

    class Block(M.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.norms = M.MultiHeadAttention(8, 2), [M.LayerNorm(8), M.LayerNorm(8)]
            self.up, self.down = M.Linear(8, 16), M.Linear(16, 8)

        def forward(self, x):
            x = self.norms[0](x + self.attention(x, x, x)[0])
            return self.norms[1](x + self.down(F.gelu(self.up(x))))

    net = filled(Block())
    net.eval()
    places, rates = F.arange(6).reshape(-1, 1), F.exp(F.arange(0, 8, 2) * -1.15)
    waves = F.zeros((6, 8))
    waves[:, 0::2], waves[:, 1::2] = F.sin(places * rates), F.cos(places * rates)
    later = F.arange(6)[None, :] > F.arange(6)[:, None]
    scores = mge.tensor(values(2, 6, 6))
    causal = F.where(F.broadcast_to(later, scores.shape), F.full_like(scores, -1e9), scores)
    return (
        net(mge.tensor(values(2, 6, 8)) + waves),
        F.softmax(causal, -1),
        later,
        [n for n, _ in net.named_parameters()],
    )


@idiom
def training_goes_on_from_a_file(mge, F):
    import io

    M, optim = mge.module, mge.optimizer

    def made():
        net = filled(M.Sequential(M.Linear(4, 6), M.ReLU(), M.Linear(6, 2)))
        rule = optim.AdamW(net.parameters(), lr=0.05, weight_decay=0.1)
        return net, rule, optim.MultiStepLR(rule, [2, 4], gamma=0.1)

    def trained(net, rule, plan, first, last):
        manager, found = mge.autodiff.GradManager().attach(net.parameters()), []
        for epoch in range(first, last):
            with manager:
                loss = F.nn.cross_entropy(net(mge.tensor(values(5, 4) + epoch)), mge.tensor(np.int32([0, 1, 0, 1, 1])))
                manager.backward(loss)
            norm = optim.clip_grad_norm(net.parameters(), max_norm=0.5)
            rule.step().clear_grad()
            plan.step()
            found += [loss, norm, plan.get_lr()]
        return found

    parts, file = made(), io.BytesIO()
    begun = trained(*parts, 0, 3)
    mge.save({"epoch": 3, "states": [p.state_dict() for p in parts]}, file)
    file.seek(0)
    stored, others = mge.load(file), made()
    for part, state in zip(others, stored["states"]):
        part.load_state_dict(state)
    return begun, trained(*others, stored["epoch"], 6)


@idiom
def functions_with_gradients_of_their_own(mge, F):
    class Rounded(mge.autodiff.Function):
        def forward(self, x, scale):
            self.saved = x
            return F.round(x / scale) * scale

        def backward(self, dy):
            return dy * (F.abs(self.saved) < 1).astype("float32"), (dy * self.saved).sum().reshape(1)

    class Two(mge.autodiff.Function):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, a, b):
            self.saved = a, b
            return a * b * self.factor, a + b

        def backward(self, first, second):
            a, b = self.saved
            return first * b * self.factor + second, first * a * self.factor + second

    class OfTheFirst(mge.autodiff.Function):
        def forward(self, a, b):
            return a * 2

        def backward(self, dy):
            return dy * 2, None

    x, scale, other = mge.tensor(values(5)), mge.Parameter([0.25]), mge.Parameter(values(5) + 1)
    with mge.autodiff.GradManager().attach([x, scale, other]) as manager:
        product, total = Two(3.0)(Rounded()(x, scale), other)
        y = OfTheFirst()(product, total)
        manager.backward((y * total).sum())
    return product, total, y, x.grad, scale.grad, other.grad


@idiom
def numbers_of_many_kinds(mge, F):
    i, h = mge.tensor(np.arange(6, dtype=np.int32).reshape(2, 3)), mge.tensor(values(2, 3).astype(np.float16))
    u, b = mge.tensor(np.uint8([[1, 200, 255], [3, 4, 5]])), mge.tensor(values(2, 3)) > 0
    sums = [i + h, u * 2, u + 1.5, u - u, b + i, b * h, b & (i > 1), b.astype("int32") + True, h * 8, i / 2, u / 2]
    ways = [i // 2, i % 2, u // 2, i**2, 2**i, i**0.5, F.exp(i), F.sqrt(i), F.floor(h), F.clip(i, 1, 3), F.clip(u, 1)]
    ways += [F.clip(i, 0), F.clip(i, 1, 2.5), F.maximum(i, h), F.stack([i, i * 2]), F.matmul(h, h.transpose(1, 0))]
    folded = [h.sum(), h.mean(), i.mean(), i.sum(axis=0), b.sum(), u.max(), F.argmax(u), i.prod(), i.min(axis=1)]
    asked = [i == u.astype("int32"), i < 2.5, u > 200, ~b, i << 1, u >> 1, u.astype("int8")]
    return sums, ways, folded, asked


@idiom
def layers_are_listened_to(mge, F):
    net, heard = filled(mge.module.Sequential(mge.module.Linear(3, 4), mge.module.ReLU(), mge.module.Linear(4, 2))), []
    hooks = [
        net[0].register_forward_hook(lambda m, i, o: heard.append([type(m).__name__, type(i).__name__, len(i)])),
        net[2].register_forward_hook(lambda m, i, o: o * 2),
        net[1].register_forward_pre_hook(lambda m, i: (i[0] + 1,)),
    ]
    x, found = mge.tensor(values(2, 3)), []
    for hook in [*hooks, None]:
        found.append(net(x))
        if hook is not None:
            hook.remove()
    manager = mge.autodiff.GradManager()
    manager.attach(net.parameters(), callbacks=[lambda p, g: g * 2, lambda p, g: g + 1])
    with manager:
        manager.backward(net(x).sum())
    return found, heard, [p.grad for p in net.parameters()]


@idiom
def elements_are_assigned(mge, F):
    x = F.zeros((4, 5))
    x[1], x[:, 2], x[2:, 3:] = 1, mge.tensor(np.arange(4)), mge.tensor(values(2, 2))
    x[[0, 3], [1, 4]] = 9
    x[x > 8] = -1
    x[..., 0] += 2
    x[0] *= 3
    x[mge.tensor([1, 2]), 1:3] = 7
    x[-1, -1] = mge.tensor(5.0)
    x[::2, ::2] = 0.5
    x[F.arange(4, dtype="int32"), F.arange(4, dtype="int32")] = mge.tensor([1.0, 2, 3, 4])
    x[np.array([True, False, False, True])] -= 1
    i = mge.tensor(np.arange(12).reshape(3, 4))
    i[1:] = i[:-1] * 2
    i[i % 2 == 0] = 100
    i[2] = mge.tensor([1.9, 2.1, -3.9, 4.0])
    bits = i > 50
    bits[0], bits[:, 1] = True, 0
    return x, i, bits


@idiom
def styles_change_convolutions(mge, F):
    style, weight, x = mge.tensor(values(2, 3)), mge.Parameter(values(1, 4, 3, 3, 3)), mge.tensor(values(2, 3, 5, 5))
    with mge.autodiff.GradManager().attach([weight, style]) as manager:
        mean = x.mean(axis=(2, 3), keepdims=True)
        normal = (x - mean) / F.sqrt(((x - mean) ** 2).mean(axis=(2, 3), keepdims=True) + 1e-5)
        scaled = weight * style.reshape(2, 1, 3, 1, 1)
        scaled = scaled / F.sqrt((scaled**2).sum(axis=(2, 3, 4), keepdims=True) + 1e-8)
        y = F.conv2d(normal.reshape(1, 6, 5, 5), scaled, padding=1, groups=2).reshape(2, 4, 5, 5)
        y = F.leaky_relu(y, 0.2) * np.sqrt(2).astype(np.float32)
        manager.backward((y * y).mean())
    return y.mean(axis=(2, 3)), weight.grad[0, 0], style.grad


@idiom
def likeness_is_learned(mge, F):
    points, kinds = F.normalize(mge.tensor(values(6, 4)), axis=1), mge.tensor(np.int32([0, 0, 1, 1, 2, 2]))
    near = F.matmul(points, points, transpose_b=True)
    same, itself = F.equal(F.expand_dims(kinds, 0), F.expand_dims(kinds, 1)).astype("float32"), F.eye(6)
    apart = F.sqrt(F.maximum(2 - 2 * near, 1e-12))
    triplet = F.relu((apart * (same - itself)).max(axis=1) - (apart + 1e6 * same).min(axis=1) + 0.3).mean()
    contrast = -((same - itself) * F.logsoftmax(near / 0.1 - 1e9 * itself, axis=1)).sum(axis=1)
    cosine = F.linear(points, F.normalize(mge.tensor(values(3, 4)), axis=1))
    wanted = F.one_hot(kinds, 3)
    margin = F.cos(F.acos(F.clip(cosine, -1 + 1e-7, 1 - 1e-7)) + 0.5)
    scores = F.where(wanted.astype(bool), margin, cosine) * 8
    return triplet, contrast, F.nn.cross_entropy(scores, kinds), F.topk_accuracy(scores, kinds, topk=(1, 2))
