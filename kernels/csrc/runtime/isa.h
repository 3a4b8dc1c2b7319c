// Instruction set levels, in the order in which they are preferred. A level includes every lower one.
#pragma once
namespace mge {

enum class Isa : int { kBase = 0, kSse41 = 1, kAvx2 = 2, kAvx512 = 3, kVnni = 4, kBf16 = 5, kAmx = 6 };

Isa detected_isa();         // of this machine, as far as the operating system permits
Isa active_isa();           // min(detected, cap)
void set_isa_cap(Isa cap);  // tests lower the level with it; MEGENGINE_MAX_ISA sets the first value

}  // namespace mge
