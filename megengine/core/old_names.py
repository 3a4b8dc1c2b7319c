"""Names of early MegEngine (before 1.0) and of PyTorch that people look for in a module -> what to write here."""

from __future__ import annotations

_RECORD = "record within `with GradManager().attach(parameters) as gm:` and call gm.backward(loss)"
_LOSSES = "use a function of megengine.functional.loss"

_OF_MODULE: dict[str, dict[str, str]] = {
    "megengine": {
        "nn": "layers are in megengine.module, functions in megengine.functional",
        "Buffer": "a Tensor that is an attribute of a Module is one of its buffers",
        "no_grad": "there is nothing to do: gradients are recorded only within a GradManager",
        "from_numpy": "use megengine.tensor(array)",
        "manual_seed": "use megengine.random.seed",
        "zeros": "use megengine.functional.zeros",
        "ones": "use megengine.functional.ones",
        "arange": "use megengine.functional.arange",
        "cat": "use megengine.functional.concat",
        "stack": "use megengine.functional.stack",
        "graph": "functions run as they are called; megengine.traced_module holds graphs",
        "dump": "traced = megengine.traced_module.trace_module(net, x), then megengine.save(traced, 'net.tm') or "
        "megengine.plan.compile(traced)",
    },
    "megengine.functional": {
        "accuracy": "use megengine.functional.topk_accuracy",
        "add_axis": "use megengine.functional.expand_dims",
        "add_update": "assign the value: dest[...] = dest * alpha + delta * beta",
        "assert_equal": "use numpy.testing.assert_allclose on x.numpy()",
        "batched_matrix_mul": "use megengine.functional.matmul, which takes batches",
        "bmm": "use megengine.functional.matmul, which takes batches",
        "cat": "use megengine.functional.concat",
        "chunk": "use megengine.functional.split",
        "cosine_similarity": "use (normalize(x, axis=1) * normalize(y, axis=1)).sum(axis=1)",
        "cross_entropy_with_softmax": "use megengine.functional.nn.cross_entropy, which takes logits",
        "dimshuffle": "use megengine.functional.transpose, and expand_dims for new axes",
        "grad": _RECORD,
        "grid_sample": "use megengine.functional.vision.remap, which takes positions in pixels",
        "identity": "use the value itself, or megengine.module.Identity",
        "kl_div": "use (target * (F.log(target) - log_probabilities)).sum()",
        "logit": "use F.log(x / (1 - x))",
        "matrix_mul": "use megengine.functional.matmul",
        "mm": "use megengine.functional.matmul",
        "mse_loss": "use megengine.functional.nn.square_loss",
        "nll_loss": "use -megengine.functional.nn.indexing_one_hot(log_probabilities, labels).mean()",
        "permute": "use megengine.functional.transpose",
        "remove_axis": "use megengine.functional.squeeze",
        "smooth_l1_loss": "use F.where(d < 1, 0.5 * d * d, d - 0.5).mean() of d = F.abs(pred - label)",
        "unsqueeze": "use megengine.functional.expand_dims",
        "upsample": "use megengine.functional.vision.interpolate",
        "view": "use megengine.functional.reshape",
        "zero_grad": "call clear_grad() of the optimizer",
    },
    "megengine.module": {
        "Buffer": "a Tensor that is an attribute of a Module is one of its buffers",
        "Flatten": "call megengine.functional.flatten(x, 1) in forward",
        "ModuleList": "a list of modules that is an attribute does the same",
        "ModuleDict": "a dict of modules that is an attribute does the same",
        "ParameterList": "a list of Parameters that is an attribute does the same",
        "Parameter": "it is megengine.Parameter",
        "Upsample": "call megengine.functional.vision.interpolate in forward",
        "CrossEntropyLoss": _LOSSES,
        "BCELoss": _LOSSES,
        "BCEWithLogitsLoss": _LOSSES,
        "L1Loss": _LOSSES,
        "MSELoss": "use megengine.functional.nn.square_loss",
    },
    "megengine.core": {
        "Buffer": "a Tensor that is an attribute of a Module is one of its buffers",
        "Function": "it is megengine.autodiff.Function",
        "Parameter": "it is megengine.Parameter",
        "Tensor": "it is megengine.Tensor",
        "TensorDict": "a dict whose keys are tensors does the same",
        "Graph": "functions run as they are called; megengine.traced_module holds graphs",
        "set_default_device": "it is megengine.set_default_device",
    },
    "megengine.core._imperative_rt.core2": {
        "config_async_level": "set megengine.config.async_level; calls are synchronous whatever it says",
        "get_async_level": "read megengine.config.async_level",
        "apply_backward": "GradManager.backward computes gradients",
        "TensorWeakRef": "use weakref.ref(tensor)",
        "set_python_backtrace_enabled": "errors come from the call itself, with Python's traceback",
    },
    "megengine.core._imperative_rt.utils": {
        "Logger": "use megengine.logger",
        "TensorSanityCheckImpl": "use megengine.utils.tensor_sanity_check.TensorSanityCheck",
        "AtomicUint64": "use itertools.count, or a multiprocessing.Value",
    },
    "megengine.core.tensor.utils": {
        "setscalar": "use x.reshape(()), or megengine.functional.squeeze",
        "unsetscalar": "use x.reshape(1)",
        "concatenate": "use megengine.functional.concat",
        "astype": "use x.astype(dtype)",
    },
    "megengine.jit": {
        "sideeffect": "it is no longer needed: functions under jit.trace run as they are written",
    },
    "megengine.distributed": {
        "get_free_ports": "training runs in one process",
    },
}
OLD_NAMES = {f"{module}.{name}": what for module, names in _OF_MODULE.items() for name, what in names.items()}
