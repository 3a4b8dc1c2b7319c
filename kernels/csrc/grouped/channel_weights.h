// Weights of channels by themselves, as kernels read them: [row][column][channel], in float32.
#pragma once
#include <algorithm>
#include <cstdint>

#include "products/panels.h"

namespace mge {

struct ChannelWeights {
    Floats weights, bias;

    // weights [channels, taps]; behind the last channel are zeros, `room` numbers in all.
    void pack(const float* from, const float* from_bias, std::int64_t channels, std::int64_t taps,
              std::int64_t room) {
        weights = floats(taps * room);
        bias = floats(room);
        std::fill_n(weights.get(), taps * room, 0.f);
        std::fill_n(bias.get(), room, 0.f);
        std::copy_n(from_bias, channels, bias.get());
        for (std::int64_t c = 0; c < channels; ++c)
            for (std::int64_t t = 0; t < taps; ++t) weights[t * room + c] = from[c * taps + t];
    }
};

}  // namespace mge
