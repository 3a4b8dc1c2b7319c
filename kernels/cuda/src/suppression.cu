// Boxes that overlap no better one. TYPE: that of corners, float or double.
#include "dividing.cuh"

typedef unsigned long long Word;  // a bit for each of 64 boxes

COC_FN TYPE least(TYPE a, TYPE b) { return a != a || a < b ? a : b; }  // a NaN stays
COC_FN TYPE most(TYPE a, TYPE b) { return a != a || a > b ? a : b; }

struct Box {
    TYPE x0, y0, x1, y1;
};
COC_FN TYPE area_of(const Box& b) { return (b.x1 - b.x0) * (b.y1 - b.y0); }
COC_FN TYPE shared_by(const Box& a, const Box& b) {
    const TYPE width = least(a.x1, b.x1) - most(a.x0, b.x0), height = least(a.y1, b.y1) - most(a.y0, b.y0);
    return most(width, (TYPE)0) * most(height, (TYPE)0);
}
COC_FN Box box_at(const TYPE* boxes, i64 at) { return {boxes[4 * at], boxes[4 * at + 1], boxes[4 * at + 2], boxes[4 * at + 3]}; }

// masks [n, words]: which later boxes in the order each one excludes. A block: 64 boxes beside 64 others.
KERNEL_BOUNDS(exclusions, 64, Word* masks, const TYPE* boxes, const int* order, TYPE threshold, int n, int words) {
    SHARED(TYPE, others, 4 * 64);
    const int t = threadIdx.x, i = blockIdx.y * 64 + t, first = blockIdx.x * 64, count = min(64, n - first);
    if (t < count)
        for (int k = 0; k < 4; k++) others[4 * t + k] = boxes[4 * (i64)order[first + t] + k];
    __syncthreads();
    if (i < n) {
        const Box a = box_at(boxes, order[i]);
        const TYPE area = area_of(a);
        Word mask = 0;
        for (int k = 0; k < count; k++) {
            if (first + k <= i) continue;
            const Box b = {others[4 * k], others[4 * k + 1], others[4 * k + 2], others[4 * k + 3]};
            const TYPE overlap = shared_by(a, b);
            if (!(overlap <= threshold * (area + area_of(b) - overlap))) mask |= (Word)1 << k;
        }
        masks[(i64)i * words + blockIdx.x] = mask;
    }
}

// kept: at most `limit` boxes in their order, and in *found how many. One block; removed [words] begins at 0.
KERNEL_BOUNDS(keep, 256, int* kept, int* found, Word* removed, const Word* masks, const int* order, int limit, int n,
              int words) {
    SHARED(Word, own, 64);
    SHARED(Word, chosen, 1);
    SHARED(int, total, 1);
    const int t = threadIdx.x;
    if (t == 0) total[0] = 0;
    __syncthreads();
    for (int c = 0; c < words; c++) {
        if (t < 64) own[t] = c * 64 + t < n ? masks[(i64)(c * 64 + t) * words + c] : 0;
        __syncthreads();
        const int before = total[0];
        if (before >= limit) break;
        if (t == 0) {
            Word alive = ~removed[c], bits = 0;
            for (int k = 0; k < 64 && c * 64 + k < n; k++)
                if (alive >> k & 1) {
                    bits |= (Word)1 << k;
                    alive &= ~(Word)own[k];
                }
            chosen[0] = bits;
        }
        __syncthreads();
        const Word bits = chosen[0];
        if (t < 64 && bits >> t & 1) {
            const int at = before + __popcll(bits & (((Word)1 << t) - 1));
            if (at < limit) kept[at] = order[c * 64 + t];
        }
        for (int w = c + 1 + t; w < words; w += 256) {
            Word gone = removed[w];
            for (int k = 0; k < 64; k++)
                if (bits >> k & 1) gone |= masks[(i64)(c * 64 + k) * words + w];
            removed[w] = gone;
        }
        if (t == 0) total[0] = min(before + __popcll(bits), limit);
        __syncthreads();
    }
    if (t == 0) *found = total[0];
}

COC_FN Box corners(const TYPE* boxes, i64 at, int center) {
    const Box b = box_at(boxes, at);
    if (center) {
        const TYPE half_width = b.x1 / (TYPE)2, half_height = b.y1 / (TYPE)2;
        return {b.x0 - half_width, b.y0 - half_height, b.x0 + half_width, b.y0 + half_height};
    }
    return {least(b.y0, b.y1), least(b.x0, b.x1), most(b.y0, b.y1), most(b.x0, b.x1)};
}

// For each row of scores [rows, n] the places of its best boxes, which stand at boxes [rows / classes, n, 4]; a block a
// row. order: by score. dead [rows, n] begins at 0. counts: how many of each row.
KERNEL_BOUNDS(keep_rows, 256, int* kept, int* counts, u8* dead, const TYPE* boxes, const TYPE* scores, const int* order,
              int classes, int n, int limit, double bound, double least_score, int center) {
    const i64 row = blockIdx.x, start = row * n;
    const TYPE* own = boxes + row / classes * n * 4;
    int count = 0;
    for (int k = 0; k < n && count < limit; k++) {
        const int best = order[start + k];
        if (!((double)scores[start + best] > least_score)) break;
        if (dead[start + k]) continue;
        if (threadIdx.x == 0) kept[row * limit + count] = best;
        if (++count == limit) break;
        const Box a = corners(own, best, center);
        const TYPE area = area_of(a);
        for (int j = k + 1 + threadIdx.x; j < n; j += blockDim.x) {
            const Box b = corners(own, order[start + j], center);
            const TYPE overlap = shared_by(a, b), other = area_of(b);
            if (overlap > 0 && area > 0 && other > 0 && (double)(overlap / (area + other - overlap)) > bound) dead[start + j] = 1;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) counts[row] = count;
}

// out [total, 3]: batch, class and box of every kept one; sums: the running count of the rows.
KERNEL(write_kept, i64* out, const int* kept, const int* sums, int classes, int limit, i64 n) {
    FOR_EACH(i, n) {
        i64 row = i;
        const i64 at = split_off(row, limit), first = row ? sums[row - 1] : 0;
        if (first + at >= sums[row]) continue;
        i64* line = out + (first + at) * 3;
        line[0] = row / classes, line[1] = row % classes, line[2] = kept[i];
    }
}
