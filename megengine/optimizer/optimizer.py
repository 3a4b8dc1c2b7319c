"""Optimizer: parameters in groups, state per parameter, one update rule."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from megengine.core.calls import shown
from megengine.core.dtype import bfloat16, storage_of
from megengine.core.errors import ArgumentError, MissingMethodError, OptionError, ShapeError, StateDictError
from megengine.dispatch.refusal import constructor, explains, own
from megengine.kernels import cuda, updates
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.placing import host, on_gpu, placed
from megengine.optimizer.recorded import RecordedUpdate
from megengine.tensor import Parameter, Tensor

Parameters = Iterable[Parameter] | Iterable[dict[str, Any]] | dict[str, Any] | Parameter
_Trained = tuple[Parameter, Tensor]  # a parameter and its gradient
Group = dict[str, Any]
State = dict[str, Any]  # arrays of the rules here, tensors of rules that users write


_PART = 1 << 15  # elements updated at a time


def check_range(owner: str, *, minimum: float = 0.0, below: float = float("inf"), **values: float) -> None:
    """Raise OptionError for a hyperparameter outside [minimum, below)."""
    for name, value in values.items():
        if not isinstance(value, numbers.Real) or not minimum <= value < below:
            limit = f"in [{minimum:g}, {below:g})" if below < float("inf") else f"at least {minimum:g}"
            kind = OptionError if isinstance(value, numbers.Real) else ArgumentError
            raise kind(f"{owner}: {name} is {shown(value)}; expected a number {limit}")


class Optimizer:
    """Base of the optimizers.

    A subclass gives the rule of a group, as MegEngine has it: `_create_state(group)` calls
    `_add_state(parameter, name, initializer)` for each parameter of `group["params"]`, and `_updates(group)` changes
    them by their `grad` and `self._state[parameter][name]`. The optimizers here give the rule of a vector instead
    (`_state_names`, `_update`), which is run natively over all parameters at once.

    `params` are parameters, or groups: dicts with `params` and hyperparameters of their own.
    A learning rate of 0 is allowed.
    """

    # state array -> its shape is the parameter's (True) or () (False); "step" counts the updates
    _state_names: ClassVar[dict[str, bool]] = {}
    # name of the state that holds float32 copies of parameters, which are updated in their place
    _copies: ClassVar[str] = ""
    # whether weight decay is added to the gradient
    _decays_gradient: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if own(cls) and "__init__" in cls.__dict__:
            cls.__init__ = constructor(cls.__init__)

    def __init__(self, params: Parameters, defaults: dict[str, Any]) -> None:
        self._defaults = dict(defaults)
        self._state: dict[Tensor, State] = {}
        self._memory: dict[int, Any] = {}  # of the values that this optimizer wrote
        self.param_groups: list[dict[str, Any]] = []
        entries: Any = [params] if isinstance(params, (Parameter, dict)) else params
        if not isinstance(entries, Iterable) or isinstance(entries, (str, Tensor)):
            raise ArgumentError(
                f"{type(self).__name__}: params is {shown(params)}; expected parameters, such as net.parameters()"
            )
        items = list(entries)
        if not items:
            raise OptionError(f"{type(self).__name__}: no parameters to optimize; is net.parameters() exhausted?")
        groups = items if isinstance(items[0], dict) else [{"params": items}]
        for group in groups:
            self.add_param_group(group)

    @explains
    def add_param_group(self, param_group: Group) -> None:
        """Optimize more parameters, with hyperparameters of their own."""
        name = type(self).__name__
        if not isinstance(param_group, dict) or "params" not in param_group:
            kind = StateDictError if isinstance(param_group, dict) else ArgumentError
            raise kind(f"{name}.add_param_group: a group is {shown(param_group)}; expected a dict with 'params'")
        params = param_group["params"]
        if not isinstance(params, Iterable):
            raise ArgumentError(f"{name}.add_param_group: params is {shown(params)}; expected parameters")
        params = [params] if isinstance(params, Tensor) else list(params)
        wrong = [type(p).__name__ for p in params if not isinstance(p, Parameter)]
        if wrong:
            raise ArgumentError(f"{name}: cannot optimize a {wrong[0]}; expected Parameters")
        known = {id(p) for group in self.param_groups for p in group["params"]}
        if len({id(p) for p in params} | known) != len(params) + len(known):
            raise OptionError(f"{name}: a parameter appears twice; give each to one group")
        group = {**param_group, "params": params}  # in MegEngine's order: the options of the group, then the defaults
        group.update({k: v for k, v in self._defaults.items() if k not in group})
        if "lr" not in group:
            raise OptionError(f"{name}: lr is missing; give it to the optimizer or to each group")
        self._check(group)
        for p in params:
            self._state[p] = {}
        self._create_state(group)
        self.param_groups.append(group)

    def _create_state(self, param_group: Group) -> None:
        """Make the state of a group's parameters before the first step."""
        for p in param_group["params"]:
            self._state[p] = self._first_state(p)

    def _add_state(self, param: Parameter, state_name: str, initializer: Any = None) -> None:
        """Give a parameter a state: zeros of its shape, or a tensor of `initializer`."""
        value = np.zeros(param.shape, np.float32) if initializer is None else initializer
        self._state[param][state_name] = Tensor(value)

    def _first_state(self, p: Tensor) -> State:
        return {n: np.zeros(p.shape if like else (), np.float32) for n, like in self._state_names.items()}

    def _check(self, group: Group) -> None:
        name = type(self).__name__
        check_range(name, lr=_number(group["lr"]))
        for option in ("momentum", "weight_decay", "eps", "lr_decay"):
            if option in group:
                check_range(name, **{option: group[option]})
        betas = group.get("betas", (0.0, 0.0))
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise ArgumentError(f"{name}: betas is {shown(betas)}; expected two numbers in [0, 1)")
        fractions = {"rho": group.get("rho", 0.0)} | {f"beta{i}": b for i, b in enumerate(betas, 1)}
        check_range(name, below=1.0, **fractions)

    def _update(self, w: np.ndarray, g: np.ndarray, state: State, group: Group) -> np.ndarray:
        """New values from values, gradients and state (changed in place): vectors, a part of a parameter each."""
        raise MissingMethodError(f"{type(self).__name__} has no update rule; define _update in the subclass")

    def _write_new(self, out: np.ndarray, w: np.ndarray, g: np.ndarray, state: State, group: Group) -> np.ndarray:
        """Write the new value of a parameter to `out`, which may be `w`, and return it.

        Natively in one pass, or in NumPy part by part, so that intermediate results stay in cache: the same bits.
        """
        if "step" in state:
            state["step"] += 1
        twin = updates.twin_of(self._update)
        if twin is not None and updates.fits(w, g):
            batch = updates.Batch(twin(self, state, group))
            batch.add(out, w, g, state)
            batch.run(self._gradient_decay(group))
            return out
        decay, values, gradients = self._gradient_decay(group), w.reshape(-1), g.reshape(-1)
        flat, vectors = out.reshape(-1), {n: s.reshape(-1) if self._state_names[n] else s for n, s in state.items()}
        for start in range(0, flat.size, _PART):
            part = slice(start, start + _PART)
            w_part, g_part = values[part], gradients[part]
            pieces = {n: v[part] if self._state_names[n] else v for n, v in vectors.items()}
            flat[part] = self._update(w_part, g_part + decay * w_part if decay else g_part, pieces, group)
        return out

    def _gradient_decay(self, group: Group) -> float:
        return group.get("weight_decay", 0.0) if self._decays_gradient else 0.0

    def _place(self, p: Parameter) -> np.ndarray:
        """The array for the new value: the old memory if this optimizer wrote it and no other object refers to it.

        Always a new array object, since kernels that packed the old value know it by its array.
        """
        memory, base = self._memory.get(id(p)), p._storage().base
        ours = memory is not None and isinstance(base, memoryview) and base.obj is memory
        if memory is None or not ours or _holders(p) > _ALONE:
            memory = self._memory[id(p)] = np.empty(p._storage().shape, np.float32)
        # a view through a buffer counts as an owner of its own
        return np.asarray(memory.data)

    def step(self) -> Optimizer:
        """Update every parameter that has a gradient. Returns the optimizer: `optimizer.step().clear_grad()`."""
        name = type(self).__name__
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            if not isinstance(p.grad, Tensor):
                raise ArgumentError(f"{name}: a gradient is {shown(p.grad)}; expected a tensor")
            if p.grad._storage().shape != p._storage().shape:
                raise ShapeError(f"{name}: a gradient has shape {p.grad.shape}; expected {p.shape} of its parameter")
        for group in self.param_groups:
            self._updates(group)
        return self

    def _updates(self, param_group: Group) -> None:
        """Update the parameters of a group that have a gradient."""
        trained, options = [(p, p.grad) for p in param_group["params"] if p.grad is not None], param_group
        param_group = {**param_group, "lr": _number(param_group["lr"])}
        on_gpus = [pair for pair in trained if on_gpu(pair[0].spec.device)]
        if on_gpus:
            trained = [pair for pair in trained if not on_gpu(pair[0].spec.device)]
            trained += self._step_on_gpus(on_gpus, param_group, options)
        for p, gradient in self._step_together(trained, param_group):
            self._state[p] = {name: host(value) for name, value in self._state[p].items()}
            out = self._place(p) if p.dtype == np.float32 and not on_gpu(p.spec.device) else None
            w, g = p.numpy(), gradient.numpy()
            single = _single(w)  # the arithmetic is in float32 also for half precision
            if out is None:
                out = np.empty(w.shape, single.dtype)
            new = self._write_new(out, single, _single(g), self._state[p], param_group)
            p._reset(Tensor._wrap(new.astype(w.dtype, copy=False), p.dtype, p.device))

    def _place_on_gpu(self, p: Parameter) -> DeviceArray:
        """`_place` on a GPU."""
        memory = self._memory.get(id(p))
        if memory is None or _holders(p) > _ALONE or p._value.owner is not memory or sys.getrefcount(memory) > _OWNED:
            new = p._value.runtime.empty(p._value.shape, np.float32)
            self._memory[id(p)] = new.owner
            return new
        value = p._value
        return DeviceArray(value.runtime, memory, value.address, value.shape, value.dtype)

    def _step_on_gpus(self, params: list[_Trained], group: Group, options: Group) -> list[_Trained]:
        """Update parameters of GPUs, by few launches for each count of past steps. Returns those it cannot update.

        `options` is the group as it is kept, which replays of a recording read again.
        """
        twin = updates.twin_of(self._update)
        writer = next(c for c in type(self).__mro__ if "_write_new" in vars(c))
        if twin is None or "_run_on_gpu" not in vars(writer):
            return params
        batches: dict[Any, tuple[cuda.updates.DeviceBatch, list[tuple[Parameter, DeviceArray]]]] = {}
        others = []
        for p, gradient in params:
            g = on_its_device(gradient, p)
            if p.dtype not in _SINGLE or g.dtype not in _SINGLE:
                others.append((p, gradient))
                continue
            state, count = self._state[p], None
            if "step" in state:
                state["step"] += 1
                count = state["step"].item()
            key = (p.spec.device, count)
            if key not in batches:
                update = twin(self, state, group)
                batches[key] = (cuda.updates.DeviceBatch(update, RecordedUpdate(self, twin, options, update)), [])
            batch, done = batches[key]
            for name in (*batch.update.states, *filter(None, (self._copies,))):
                if type(state[name]) is not DeviceArray:  # `placed` would share numbers with others
                    state[name] = g.runtime.upload(state[name])
            if self._copies:
                w = out = state[self._copies]
            elif p.dtype == np.float32:
                out = self._place_on_gpu(p)
                w = p._storage()
            else:
                w, out = cuda.elementwise.cast(p._storage(), _F32), g.runtime.empty(p.shape, _F32)
            batch.add(out, w, g if g.dtype == _F32 else cuda.elementwise.cast(g, _F32), state)
            done.append((p, out))
        for batch, done in batches.values():
            batch.again.parameters = [p for p, _ in done]
            self._run_on_gpu(batch, group)
            for p, out in done:
                p._value = cuda.elementwise.cast(out, storage_of(p.dtype)) if self._copies or p.dtype != _F32 else out
        return others

    def _run_on_gpu(self, batch: cuda.updates.DeviceBatch, group: Group) -> None:
        """Write new values of parameters on a GPU: what `_write_new` does on the processor."""
        batch.run(self._gradient_decay(group))

    def _step_together(self, params: list[_Trained], group: Group) -> list[_Trained]:
        """Update parameters by one native call for each count of past steps. Returns those it cannot update."""
        twin = updates.twin_of(self._update)
        if twin is None or type(self)._write_new is not Optimizer._write_new:
            return params
        batches: dict[Any, updates.Batch] = {}
        done, others = [], []
        for p, gradient in params:
            state, w, g = self._state[p], p._storage(), gradient._storage()
            if not updates.fits(w, g):
                others.append((p, gradient))
                continue
            count, steps = None, state.get("step")
            if steps is not None:
                steps += 1
                count = steps.item()
            batch = batches.get(count)
            if batch is None:
                batch = batches[count] = updates.Batch(twin(self, state, group))
            del w  # _place counts the references to the value
            out = self._place(p)
            batch.add(out, p._storage(), g, state)
            done.append((p, out))
        for batch in batches.values():
            batch.run(self._gradient_decay(group))
        for p, out in done:
            p._value = out
        return others

    def clear_grad(self) -> Optimizer:
        """Forget the gradients of all parameters."""
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None
        return self

    def zero_grad(self) -> Optimizer:
        """Set the gradients that there are to zero: a step moves on by momentum then. `clear_grad` forgets them."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.reset_zero()
        return self

    def bcast_param(self) -> None:
        """Nothing: it gives every worker the parameters of the first, and there is one process here."""

    def backward(self, loss: Tensor) -> None:
        """Refused: gradients come from a GradManager. Raises MissingMethodError that says how."""
        raise MissingMethodError(
            "Optimizer.backward was removed in MegEngine 1.0; record within "
            "`with GradManager().attach(parameters) as gm:` and call gm.backward(loss)"
        )

    def state_dict(self, keep_var: bool = False) -> dict[str, Any]:
        """Hyperparameters and state in MegEngine's form; parameters are numbered across groups."""
        numbers: dict[Tensor, int] = {}
        groups, states = [], {}
        for group in self.param_groups:
            for p in group["params"]:
                numbers[p] = len(numbers)
                saved = {n: v for n, v in self._state[p].items() if self._is_kept(n, group)}
                if saved:
                    states[numbers[p]] = {n: v if keep_var else np.array(host(v)) for n, v in saved.items()}
            options = {k: v for k, v in group.items() if k != "params"}
            groups.append({**options, "params": [numbers[p] for p in group["params"]]})
        return {"param_groups": groups, "state": states}

    def _is_kept(self, name: str, group: Group) -> bool:
        """Whether a state is saved, under the options of a group."""
        return True

    @explains
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take hyperparameters and state from `state_dict()`, ours or MegEngine's. On an error nothing changes."""
        name = type(self).__name__
        call = f"{name}.load_state_dict"
        if not isinstance(state, Mapping) or not {"param_groups", "state"} <= state.keys():
            kind = StateDictError if isinstance(state, Mapping) else ArgumentError
            raise kind(f"{call}: state is {shown(state)}; expected what state_dict() gave")
        theirs, arrays = state["param_groups"], state["state"]
        if not isinstance(theirs, (list, tuple)) or not all(isinstance(g, Mapping) and _numbered(g) for g in theirs):
            raise ArgumentError(f"{call}: param_groups is {shown(theirs)}; expected dicts with numbered params")
        if not isinstance(arrays, Mapping) or not all(isinstance(s, Mapping) for s in arrays.values()):
            raise ArgumentError(f"{call}: state is {shown(arrays)}; expected a dict for each parameter")
        have, got = [len(g["params"]) for g in self.param_groups], [len(g["params"]) for g in theirs]
        if have != got:
            raise OptionError(f"{name}: the numbers of parameters in the groups are {got}; this optimizer has {have}")
        ours = [p for group in self.param_groups for p in group["params"]]
        numbers = [number for group in theirs for number in group["params"]]
        loaded = {p: self._loaded(arrays.get(n, {}), p, n) for p, n in zip(ours, numbers, strict=True)}
        for group, new in zip(self.param_groups, theirs, strict=True):
            self._check({**group, **new})
            lacking = sorted(group.keys() - new.keys() - {"initial_lr"})  # a schedule may be made before or after
            if lacking:
                raise StateDictError(f"{name}.load_state_dict: a group has no {lacking}; is the state of another kind?")
        for group, new in zip(self.param_groups, theirs, strict=True):
            group.update({k: v for k, v in new.items() if k != "params"})
        self._state = loaded

    def _loaded(self, stored: Mapping[str, Any], p: Parameter, number: int) -> State:
        own = {n: v for n, v in self._state[p].items() if isinstance(v, Tensor)}
        out: State = {n: Tensor(stored[n], v.dtype, v.device) if n in stored else v for n, v in own.items()}
        for name, like in self._state_names.items():
            shape = p.shape if like else ()
            what = f"{type(self).__name__}: {name} of parameter {number}"
            data = stored.get(name, np.zeros(shape))
            try:
                value = np.array(data, np.float32)
            except (TypeError, ValueError):
                raise ArgumentError(f"{what} is {shown(data)}; expected numbers") from None
            if value.size != int(np.prod(shape)):
                raise ShapeError(f"{what} has shape {value.shape}; expected {shape}")
            out[name] = value.reshape(shape)
        return out


def _numbered(group: Mapping[str, Any]) -> bool:
    params = group.get("params")
    return isinstance(params, (list, tuple)) and all(isinstance(p, Hashable) for p in params)


def _number(rate: Any) -> Any:
    """A learning rate that is a tensor or an array of one element, as a number; other values unchanged."""
    return rate.item() if isinstance(rate, (Tensor, np.ndarray)) and rate.size == 1 else rate


def _holders(tensor: Tensor) -> int:
    return sys.getrefcount(tensor._value)


def on_its_device(gradient: Tensor, p: Tensor) -> DeviceArray:
    """The storage of a gradient on the GPU of its parameter."""
    return placed(gradient._storage(), p.spec.device)


_ALONE = _holders(Tensor(0.0))
_OWNED = 4  # references to memory that an optimizer and one value know: those two, a name, and the count's argument
_F32 = np.dtype(np.float32)
_SINGLE = (_F32, np.dtype(np.float16), bfloat16)  # what is computed in float32


def _single(x: np.ndarray) -> np.ndarray:
    return x if x.dtype == np.float64 else x.astype(np.float32, copy=False)
