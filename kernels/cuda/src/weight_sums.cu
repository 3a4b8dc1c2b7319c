// Sums of parts, [part, group, channel, factor], become the gradient for w. Macros: those of convolution.cuh.
#include "convolution.cuh"

KERNEL(finish, const ACC* sums, TYPE* w, Window g) {
    const i64 n = (i64)g.groups * g.given * g.sums;
    FOR_EACH(i, n) {
        ACC sum = 0;
        for (int part = 0; part < g.parts; part++) sum = sum + sums[part * n + i];
        const i64 line = i / g.sums;
        const Factor f = factor((int)(i - line * g.sums), g);
        const At3 t = spread(f.tap, g.plane_taps, g.line_taps);
        const int group = (int)(line / g.given), channel = (int)(line % g.given);
        if (f.channel >= g.kept) continue;
        w[group * g.w_group + (i64)channel * g.w_given + f.channel * g.w_taken + t.z * g.w_axis[0] +
          t.y * g.w_axis[1] + t.x * g.w_axis[2]] = narrow<TYPE>(sum);
    }
}
