// Weights of channels by themselves, or of small groups, as kernels read them: [row][column][channel of the
// group that is read][channel], in float32.
#pragma once
#include <algorithm>
#include <cstdint>

#include "products/panels.h"

namespace mge {

struct ChannelWeights {
    Floats weights, bias;

    // weights [channels, group, taps]; behind the last channel are zeros, `room` numbers in all.
    void pack(const float* from, const float* from_bias, std::int64_t channels, std::int64_t group,
              std::int64_t taps, std::int64_t room) {
        weights = floats(taps * group * room);
        bias = floats(room);
        std::fill_n(weights.get(), taps * group * room, 0.f);
        std::fill_n(bias.get(), room, 0.f);
        std::copy_n(from_bias, channels, bias.get());
        for (std::int64_t c = 0; c < channels; ++c)
            for (std::int64_t g = 0; g < group; ++g)
                for (std::int64_t t = 0; t < taps; ++t)
                    weights[(t * group + g) * room + c] = from[(c * group + g) * taps + t];
    }
};

}  // namespace mge
