// Small arrays whose bytes are an argument of the launch.
struct Bytes {
    u8 of[256];
};
KERNEL(put_bytes, void* out, Bytes bytes, int n) {
    if ((int)threadIdx.x < n) ((u8*)out)[threadIdx.x] = bytes.of[threadIdx.x];
}
