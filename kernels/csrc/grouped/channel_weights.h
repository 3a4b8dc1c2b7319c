// Weights of channels by themselves, or of small groups, as kernels read them: [row][column][channel of the
// group that is read][channel], in float32.
#pragma once
#include <algorithm>
#include <cstdint>

#include "products/panels.h"

namespace mge {

struct ChannelWeights {
    Floats weights, bias;

    // weights [channels, group, taps]; behind the last channel are zeros, `room` numbers in all. `halved`:
    // the odd channels come behind the even ones, in the second half of the room.
    void pack(const float* from, const float* from_bias, std::int64_t channels, std::int64_t group,
              std::int64_t taps, std::int64_t room, bool halved = false) {
        weights = floats(taps * group * room);
        bias = floats(room);
        std::fill_n(weights.get(), taps * group * room, 0.f);
        std::fill_n(bias.get(), room, 0.f);
        for (std::int64_t c = 0; c < channels; ++c) {
            const std::int64_t place = halved ? c / 2 + c % 2 * (room / 2) : c;
            bias[place] = from_bias[c];
            for (std::int64_t g = 0; g < group; ++g)
                for (std::int64_t t = 0; t < taps; ++t)
                    weights[(t * group + g) * room + place] = from[(c * group + g) * taps + t];
        }
    }
};

}  // namespace mge
