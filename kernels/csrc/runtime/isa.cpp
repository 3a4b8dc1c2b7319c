#include "runtime/isa.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#if defined(MGE_X86) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace mge {
namespace {

Isa detect() {
#if defined(MGE_X86)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.1") || !__builtin_cpu_supports("ssse3")) return Isa::kBase;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::kSse41;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return Isa::kAvx2;
    if (!__builtin_cpu_supports("avx512vnni")) return Isa::kAvx512;
    if (!__builtin_cpu_supports("avx512bf16")) return Isa::kVnni;
#if defined(__linux__)
    unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
    __asm__ __volatile__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    const bool amx = (edx >> 22 & 1) && (edx >> 24 & 1) && (edx >> 25 & 1);  // AMX-BF16, AMX-TILE, AMX-INT8
    constexpr long kReqXcompPerm = 0x1023, kTileData = 18;
    if (amx && syscall(SYS_arch_prctl, kReqXcompPerm, kTileData) == 0) return Isa::kAmx;
#endif
    return Isa::kBf16;
#else
    return Isa::kBase;
#endif
}

Isa cap_from_environment() {
    const char* text = std::getenv("MEGENGINE_MAX_ISA");
    if (!text) return Isa::kAmx;
    const char* names[] = {"base", "sse41", "avx2", "avx512", "vnni", "bf16", "amx"};
    for (int i = 0; i < 7; ++i)
        if (std::strcmp(text, names[i]) == 0) return static_cast<Isa>(i);
    return Isa::kAmx;  // unknown names are refused in Python, with a message
}

std::atomic<int>& cap() {
    static std::atomic<int> value{static_cast<int>(cap_from_environment())};
    return value;
}

}  // namespace

Isa detected_isa() {
    static const Isa isa = detect();
    return isa;
}

Isa active_isa() { return std::min(detected_isa(), static_cast<Isa>(cap().load())); }

void set_isa_cap(Isa value) { cap().store(static_cast<int>(value)); }

}  // namespace mge
