"""The list of every op that has kernels, best first: the first usable one runs.

If none is usable, the NumPy reference of the op's record runs.
"""

from __future__ import annotations

from megengine.kernels import (
    along,
    elementwise,
    floating,
    int8,
    int8_rows,
    large,
    onednn,
    recurrent,
    small,
    strided,
    training,
)
from megengine.kernels.kernel import Kernel

LISTS: dict[str, tuple[Kernel, ...]] = {
    # ---------------------------------------------------------------- arithmetic
    "add": (large.numpy_large_add, elementwise.own_elementwise, small.own_small_add),
    "sub": (large.numpy_large_sub, elementwise.own_elementwise, small.own_small_sub),
    "mul": (large.numpy_large_mul, elementwise.own_elementwise, small.own_small_mul),
    "div": (elementwise.own_elementwise, small.own_small_div),
    **dict.fromkeys(elementwise.OPS, (elementwise.own_elementwise,)),
    "sum": (along.own_sum, small.own_small_sum),
    "mean": (along.own_mean, small.own_small_mean),
    "prod": (along.own_prod,),
    "max": (along.own_extreme,),
    "min": (along.own_extreme,),
    "argmax": (along.own_place,),
    "argmin": (along.own_place,),
    "cumsum": (along.own_running_sum,),
    "topk": (along.own_top,),
    "matmul": (small.own_small_matmul, onednn.onednn_matmul_rows, onednn.onednn_matmul),
    # ---------------------------------------------------------------- activations
    "relu": (large.numpy_large_relu, elementwise.own_elementwise, small.own_small_relu),
    "relu_backward": (small.own_small_relu_backward, training.own_relu_backward),
    "relu6": (elementwise.own_elementwise,),
    "sigmoid": (small.own_small_function, floating.own_function),
    "silu": (small.own_small_function, floating.own_function),
    "hsigmoid": (small.own_small_function, floating.own_function),
    "hswish": (small.own_small_function, floating.own_function),
    "tanh": (small.own_small_function, floating.own_function),
    "gelu": (small.own_small_function, floating.own_function),
    "erf": (small.own_small_function, floating.own_function),
    "softplus": (small.own_small_function, floating.own_function),
    "leaky_relu": (small.own_small_function, floating.own_function),
    # ---------------------------------------------------------------- functions of one value
    "exp": (small.own_small_function, floating.own_function),
    "log": (small.own_small_function, floating.own_function),
    # ---------------------------------------------------------------- softmax
    "softmax": (along.own_softmax, along.own_flat_softmax),
    "log_softmax": (along.own_softmax, along.own_flat_softmax),
    # ---------------------------------------------------------------- convolution, pooling, normalisation
    "conv2d": (small.own_small_conv2d, onednn.onednn_conv2d),
    "conv2d_backward_weight": (onednn.onednn_backward_weight,),
    "conv2d_backward_data": (onednn.onednn_backward_data,),
    "conv_transpose2d": (onednn.onednn_windows,),
    "conv3d": (onednn.onednn_windows,),
    "conv3d_backward_weight": (onednn.onednn_backward_weight,),
    "conv3d_backward_data": (onednn.onednn_backward_data,),
    "conv_transpose3d": (onednn.onednn_windows,),
    "fused_conv2d": (onednn.onednn_fused_conv2d,),
    "fused_norm": (along.own_norm,),
    "fused_linear": (onednn.onednn_fused_linear,),
    "max_pool2d": (floating.own_max_pool2d, int8.int8_max_pool2d),
    "max_pool2d_backward": (training.own_max_pool2d_backward,),
    "resize": (floating.own_resize,),
    "avg_pool2d": (floating.own_avg_pool2d,),
    "pool": (onednn.onednn_pool,),
    "recurrent": (recurrent.own_recurrent, recurrent.own_recurrent_rows),
    "batch_norm_training": (training.own_batch_norm_training,),
    "batch_norm_training_backward": (training.own_batch_norm_training_backward,),
    # ---------------------------------------------------------------- moves
    "index": (along.own_take,),
    "one_hot": (along.own_one_hot,),
    "reshape": (small.view_reshape,),
    "transpose": (strided.own_strided_transpose, small.own_small_transpose),
    "slice": (strided.own_strided_slice, small.own_small_slice),
    "broadcast_to": (strided.own_strided_broadcast_to, small.own_small_broadcast_to),
    "copy": (strided.own_strided_copy, small.own_small_copy),
    "concat": (floating.own_concat, strided.own_strided_concat, small.own_small_concat),
    "split": (strided.own_strided_split, small.own_small_split),
    "pad": (strided.own_strided_pad, small.own_small_pad),
    "set_index": (strided.own_strided_set_index, small.own_small_set_index),
    # ---------------------------------------------------------------- integers
    "qconv2d": (
        int8.int8_depthwise_full,  # the first two were measured to be faster than oneDNN's kernel
        int8.int8_conv_full,
        onednn.onednn_qconv2d,
        int8.int8_depthwise,
        int8.int8_conv,
    ),
    "qlinear": (onednn.onednn_qlinear, int8.int8_linear),
    "qmatmul": (int8_rows.int8_product, int8_rows.int8_product_in_rows),
    "qadd": (int8.int8_add, int8_rows.int8_broadcast_add),
    "qmul": (int8.int8_multiply, int8.int8_gate, int8_rows.int8_broadcast_multiply),
    "qmaximum": (int8_rows.int8_maximum,),
    "qminimum": (int8_rows.int8_minimum,),
    "qsoftmax": (int8_rows.int8_softmax,),
    "qnorm": (int8_rows.int8_normalize, int8_rows.int8_normalize_in_rows),
    "qavg_pool2d": (int8.int8_avg_pool2d,),
    "qmean": (int8.int8_mean, int8_rows.int8_block_mean),
    "qtable": (int8.int8_table,),
    "quantize": (int8.int8_quantize,),
    "requantize": (int8.int8_requantize,),
    "dequantize": (int8.int8_dequantize,),
    "fake_quant": (int8.int8_fake_quant,),
}
