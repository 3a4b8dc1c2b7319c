// Every family's binding function, once.
#pragma once
#include <nanobind/nanobind.h>

namespace mge {

void bind_along(nanobind::module_& m);
void bind_channel_norm(nanobind::module_& m);
void bind_channels(nanobind::module_& m);
void bind_counting(nanobind::module_& m);
void bind_cuda(nanobind::module_& m);
void bind_elementwise(nanobind::module_& m);
void bind_executor(nanobind::module_& m);
void bind_flat(nanobind::module_& m);
void bind_float(nanobind::module_& m);
void bind_fork_gate(nanobind::module_& m);
void bind_grouped(nanobind::module_& m);
void bind_volumes(nanobind::module_& m);
void bind_half_table(nanobind::module_& m);
void bind_int8(nanobind::module_& m);
void bind_layout(nanobind::module_& m);
void bind_memory(nanobind::module_& m);
void bind_ordered_products(nanobind::module_& m);
void bind_ordered_windows(nanobind::module_& m);
void bind_places(nanobind::module_& m);
void bind_pooling(nanobind::module_& m);
void bind_products(nanobind::module_& m);
void bind_random(nanobind::module_& m);
void bind_recurrent(nanobind::module_& m);
void bind_resize(nanobind::module_& m);
void bind_strided(nanobind::module_& m);
void bind_taken_windows(nanobind::module_& m);
void bind_tiled_conv(nanobind::module_& m);
void bind_training(nanobind::module_& m);
void bind_transposed(nanobind::module_& m);
void bind_update(nanobind::module_& m);
void bind_winograd(nanobind::module_& m);

inline void bind_all(nanobind::module_& m) {
    bind_along(m);
    bind_channel_norm(m);
    bind_channels(m);
    bind_counting(m);
    bind_cuda(m);
    bind_elementwise(m);
    bind_executor(m);
    bind_flat(m);
    bind_float(m);
    bind_fork_gate(m);
    bind_grouped(m);
    bind_volumes(m);
    bind_half_table(m);
    bind_int8(m);
    bind_layout(m);
    bind_memory(m);
    bind_ordered_products(m);
    bind_ordered_windows(m);
    bind_places(m);
    bind_pooling(m);
    bind_products(m);
    bind_random(m);
    bind_recurrent(m);
    bind_resize(m);
    bind_strided(m);
    bind_taken_windows(m);
    bind_tiled_conv(m);
    bind_training(m);
    bind_transposed(m);
    bind_update(m);
    bind_winograd(m);
}

}  // namespace mge
