"""Programs that train: heads of detectors, margins between classes, several tasks, sums of gradients, rates that are
searched. `idioms.py` records them too.
"""

# pyright: reportOperatorIssue=false, reportIndexIssue=false

import numpy as np
from idioms import idiom, values
from programs import filled, steps


@idiom
def heads_of_a_detector_are_trained(mge, F):
    M = mge.module

    class Head(M.Module):
        def __init__(self):
            super().__init__()
            self.tower = M.Sequential(M.Conv2d(4, 4, 3, 1, 1), M.ReLU())
            self.score, self.box = M.Conv2d(4, 15, 3, padding=1), M.Conv2d(4, 12, 3, padding=1)

        def forward(self, levels):
            scores, boxes = [], []
            for x in map(self.tower, levels):
                n, _, h, w = x.shape
                scores.append(F.transpose(self.score(x).reshape(n, 3, 5, h, w), (0, 3, 4, 1, 2)).reshape(n, -1, 5))
                boxes.append(self.box(x).reshape(n, 3, 4, h, w).transpose(0, 3, 4, 1, 2).reshape(n, -1, 4))
            return F.concat(scores, 1), F.concat(boxes, axis=1)

    head, levels = filled(Head()), [mge.tensor(values(2, 4, s, s)) for s in (8, 4, 2)]

    def loss_of(step):
        scores, boxes = head(levels)
        labels = mge.tensor((np.arange(2 * scores.shape[1]) % 7 - 1).reshape(2, -1).astype("int32"))
        found, valid = labels > 0, labels >= 0
        target = F.zeros_like(scores)
        target[found, labels[found] - 1] = 1
        p, target = F.sigmoid(scores[valid]), target[valid]
        entropy = -(target * F.log(F.maximum(p, 1e-6)) + (1 - target) * F.log(F.maximum(1 - p, 1e-6)))
        focal = F.where(target > 0, (1 - p) ** 2 * 0.25, p**2 * 0.75)
        far = F.abs(boxes[found] - 1.0)
        smooth = F.where(far < 0.11, 0.5 * far * far / 0.11, far - 0.5 * 0.11)
        return ((focal * entropy).sum() + smooth.sum()) / F.maximum(found.sum(), 1)

    losses = steps(mge, head, mge.optimizer.SGD(head.parameters(), 0.01, momentum=0.9, weight_decay=1e-4), loss_of)
    best, places = F.topk(F.sigmoid(head(levels)[0][0]).flatten(), 10, descending=True)
    return losses, best, places // 5, places % 5


@idiom
def margins_between_classes(mge, F):
    weight, x = mge.Parameter(values(6, 4)), mge.tensor(values(7, 4))
    labels, manager = mge.tensor(np.arange(7, dtype="int32") % 6), mge.autodiff.GradManager()
    manager.attach([weight]).attach(x)
    with manager:
        cosine = F.clip(F.linear(F.normalize(x, axis=1), F.normalize(weight, axis=1)), -1 + 1e-6, 1 - 1e-6)
        own = F.one_hot(labels, 6).astype("bool")
        logits = F.where(own, F.cos(F.acos(cosine) + 0.5), cosine) * 16.0
        loss = F.nn.cross_entropy(logits, labels, reduction="sum")
        manager.backward(loss)
    return logits, loss, weight.grad, x.grad, F.topk_accuracy(logits, labels, topk=(1, 3))


@idiom
def tasks_share_a_trunk(mge, F):
    M = mge.module

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.trunk = M.Sequential(M.Conv2d(1, 4, 3, padding=1), M.BatchNorm2d(4), M.ReLU())
            self.heads = {"kind": M.Linear(4, 3), "size": M.Linear(4, 1)}
            self.doubt = mge.Parameter(np.zeros(2, np.float32))

        def forward(self, x):
            x = F.flatten(F.adaptive_avg_pool2d(self.trunk(x), 1), 1)
            return {name: head(x) for name, head in self.heads.items()}

    net = filled(Net())

    def loss_of(step):
        found = net(mge.tensor(values(4, 1, 5, 5) + step))
        kind = F.nn.cross_entropy(found["kind"], mge.tensor([0, 1, 2, 1]))
        size = F.loss.l1_loss(found["size"], mge.tensor(values(4, 1)))
        return (F.exp(-net.doubt) * F.stack([kind, size]) + net.doubt).sum()

    losses = steps(mge, net, mge.optimizer.SGD(net.parameters(), 0.01), loss_of)
    return losses, net.doubt, sorted(net.state_dict()), net.trunk[1].running_mean


@idiom
def gradients_are_summed_and_clipped(mge, F):
    net, found = filled(mge.module.Linear(4, 3)), []
    manager, rule = mge.autodiff.GradManager().attach(net.parameters()), mge.optimizer.SGD(net.parameters(), lr=0.5)
    for step in range(6):
        with manager:
            loss = F.loss.square_loss(net(mge.tensor(values(5, 4) + step)), mge.tensor(values(5, 3))) / 3
            manager.backward(loss)
        if step == 2:
            mge.optimizer.clip_grad_value(net.parameters(), -0.05, 0.05)
        if step == 5:
            found.append(mge.optimizer.clip_grad_norm(net.parameters(), max_norm=0.1))
        found.append([loss, net.weight.grad.numpy().copy()])
        if step % 3 == 2:
            rule.step().clear_grad()
    return found, net.weight


@idiom
def rates_are_searched(mge, F):
    net, x, found, best = filled(mge.module.Linear(3, 1)), values(8, 3), [], None
    rule, manager = mge.optimizer.SGD(net.parameters(), lr=1e-3), mge.autodiff.GradManager().attach(net.parameters())
    kept = {name: value.copy() for name, value in net.state_dict().items()}
    for k in range(12):
        for group in rule.param_groups:
            group["lr"] = float(1e-3 * 10 ** (k / 4))
        with manager:
            loss = ((net(mge.tensor(x)) - x.sum(1, keepdims=True)) ** 2).mean()
            manager.backward(loss)
        rule.step().clear_grad()
        best = loss.item() if best is None else min(best, loss.item())
        if loss > 4 * best:
            break
        found.append(float(loss))
    net.load_state_dict(kept)
    return found, net.weight
