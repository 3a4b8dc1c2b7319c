// Sums of neighbours in NumPy's order: of up to 128 numbers eight running sums, and those behind one by one; of more, the
// sums of two halves, of which the first has a multiple of eight.
#pragma once
#define LEAF 128

struct Node {
    int start, size;  // 0: there is no such node
};
COC_FN int first_half(int n) { return n / 16 * 8; }
// The halvings of n numbers until no part has more than LEAF.
COC_FN int halvings(int n) {
    int depth = 0;
    for (; n > LEAF; n -= first_half(n)) depth++;
    return depth;
}
// Number `index` of the parts after `depth` halvings.
COC_FN Node node_of(int n, int depth, int index) {
    Node node = {0, n};
    for (int b = depth - 1; b >= 0; b--) {
        if (node.size <= LEAF) return {node.start, index & ((2 << b) - 1) ? 0 : node.size};
        const int half = first_half(node.size);
        if (index >> b & 1)
            node.start += half, node.size -= half;
        else
            node.size = half;
    }
    return node;
}

// The sum of one part by eight neighbouring lanes; all lanes of the warp call it.
template <class A, class Get>
COC_FN A leaf_sum(Node node, Get get) {
    const int lane = threadIdx.x & 7, whole = node.size / 8, rest = node.size - whole * 8;
    A sum = 0;
    if (whole) sum = get(node.start + lane);
#pragma unroll 4
    for (int k = 1; k < whole; k++) sum += get(node.start + k * 8 + lane);
#pragma unroll
    for (int by = 1; by < 8; by *= 2) sum += __shfl_xor_sync(~0u, sum, by);
    if (!whole) sum = (A)-0.f;
    if (__any_sync(~0u, rest)) {
        const A mine = lane < rest ? get(node.start + whole * 8 + lane) : (A)0;
#pragma unroll
        for (int j = 0; j < 7; j++) {
            const A other = __shfl_sync(~0u, mine, (threadIdx.x & 24) + j);
            if (j < rest) sum += other;
        }
    }
    return sum;
}

// The sum of get(0) to get(n - 1) by a block of whole warps, known to all threads: up to 512 parts.
template <class A, class Get>
COC_FN A pairwise(int n, Get get) {
    SHARED(A, parts, 512);
    if (n == 0) return 0;
    const int depth = halvings(n), leaves = 1 << depth, groups = blockDim.x / 8;
    for (int first = 0; first < leaves; first += groups) {
        const int leaf = first + threadIdx.x / 8;
        const Node node = leaf < leaves ? node_of(n, depth, leaf) : Node{0, 0};
        const A sum = leaf_sum<A>(node, get);
        if ((threadIdx.x & 7) == 0 && node.size) parts[leaf] = sum;
    }
    __syncthreads();
    for (int level = depth - 1; level >= 0; level--) {
        const int step = 1 << (depth - level - 1);
        for (int i = threadIdx.x; i < 1 << level; i += blockDim.x)
            if (node_of(n, level + 1, 2 * i + 1).size) parts[2 * i * step] = (A)parts[2 * i * step] + (A)parts[(2 * i + 1) * step];
        __syncthreads();
    }
    const A total = parts[0];
    __syncthreads();  // the next call writes
    return total;
}
