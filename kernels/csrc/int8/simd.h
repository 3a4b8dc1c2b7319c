// The vector operations the 8-bit kernels are written with, for the instruction set this file is compiled
// for. `add_product` is t + a * b for products that are exact, where a fused multiply-add changes nothing.
// Included inside the unnamed namespace of one translation unit per instruction set.
#if defined(__AVX512BW__)
using vi = __m512i;
using vf = __m512;
constexpr int kLanes = 16;
inline vi zero() { return _mm512_setzero_si512(); }
inline vi set1(std::int32_t v) { return _mm512_set1_epi32(v); }
inline vf setf(float v) { return _mm512_set1_ps(v); }
inline vi load(const void* p) { return _mm512_loadu_si512(p); }
inline vf loadf(const float* p) { return _mm512_loadu_ps(p); }
inline void storef(float* p, vf v) { _mm512_storeu_ps(p, v); }
inline vi addi(vi a, vi b) { return _mm512_add_epi32(a, b); }
inline vi subi(vi a, vi b) { return _mm512_sub_epi32(a, b); }
inline vi xori(vi a, vi b) { return _mm512_xor_si512(a, b); }
inline vi ori(vi a, vi b) { return _mm512_or_si512(a, b); }
inline vi andi(vi a, vi b) { return _mm512_and_si512(a, b); }
inline vi high(vi a) { return _mm512_slli_epi32(a, 16); }
inline vi upper(vi a) { return _mm512_srli_epi32(a, 16); }
inline vi muli(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
inline vi madd(vi a, vi b) { return _mm512_madd_epi16(a, b); }
inline vf cvt(vi a) { return _mm512_cvtepi32_ps(a); }
inline vi round_even(vf a) { return _mm512_cvtps_epi32(a); }
inline vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
inline vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
inline vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
inline vi maxi(vi a, vi b) { return _mm512_max_epi32(a, b); }
inline vi mini(vi a, vi b) { return _mm512_min_epi32(a, b); }
inline vf add_product(vf t, vf a, vf b) { return _mm512_fmadd_ps(a, b, t); }
inline vf maxf(vf a, vf b) { return _mm512_max_ps(a, b); }  // the second operand where the first is NaN
inline vf minf(vf a, vf b) { return _mm512_min_ps(a, b); }
inline vi widen(const std::uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void narrow(std::uint8_t* p, vi v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
}
inline vi widen(const std::int16_t* p) {
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void narrow(std::int16_t* p, vi v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(v));
}
inline vi widen_n(const std::int16_t* p, int n) {
    return _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1), p));
}
inline void narrow_n(std::int16_t* p, vi v, int n) {
    _mm256_mask_storeu_epi16(p, static_cast<__mmask16>((1u << n) - 1), _mm512_cvtepi32_epi16(v));
}
inline vi widen_n(const std::uint8_t* p, int n) {
    return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << n) - 1), p));
}
inline void narrow_n(std::uint8_t* p, vi v, int n) {
    _mm_mask_storeu_epi8(p, static_cast<__mmask16>((1u << n) - 1), _mm512_cvtepi32_epi8(v));
}
inline void storef_n(float* p, vf v, int n) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v);
}
inline vf loadf_n(const float* p, int n) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
}
#else
#if defined(__AVX2__)
using vi = __m256i;
using vf = __m256;
constexpr int kLanes = 8;
inline vi zero() { return _mm256_setzero_si256(); }
inline vi set1(std::int32_t v) { return _mm256_set1_epi32(v); }
inline vf setf(float v) { return _mm256_set1_ps(v); }
inline vi load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline vf loadf(const float* p) { return _mm256_loadu_ps(p); }
inline void storef(float* p, vf v) { _mm256_storeu_ps(p, v); }
inline vi addi(vi a, vi b) { return _mm256_add_epi32(a, b); }
inline vi subi(vi a, vi b) { return _mm256_sub_epi32(a, b); }
inline vi xori(vi a, vi b) { return _mm256_xor_si256(a, b); }
inline vi ori(vi a, vi b) { return _mm256_or_si256(a, b); }
inline vi andi(vi a, vi b) { return _mm256_and_si256(a, b); }
inline vi high(vi a) { return _mm256_slli_epi32(a, 16); }
inline vi upper(vi a) { return _mm256_srli_epi32(a, 16); }
inline vi muli(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
inline vi madd(vi a, vi b) { return _mm256_madd_epi16(a, b); }
inline vf cvt(vi a) { return _mm256_cvtepi32_ps(a); }
inline vi round_even(vf a) { return _mm256_cvtps_epi32(a); }
inline vf mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
inline vf add(vf a, vf b) { return _mm256_add_ps(a, b); }
inline vf div(vf a, vf b) { return _mm256_div_ps(a, b); }
inline vi maxi(vi a, vi b) { return _mm256_max_epi32(a, b); }
inline vi mini(vi a, vi b) { return _mm256_min_epi32(a, b); }
inline vf add_product(vf t, vf a, vf b) { return _mm256_fmadd_ps(a, b, t); }
inline vf maxf(vf a, vf b) { return _mm256_max_ps(a, b); }
inline vf minf(vf a, vf b) { return _mm256_min_ps(a, b); }
inline vi widen(const std::uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline void narrow(std::uint8_t* p, vi v) {
    const __m256i low = _mm256_and_si256(v, _mm256_set1_epi32(255));
    const __m128i both = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(both, both));
}
inline vi widen(const std::int16_t* p) {
    return _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void narrow(std::int16_t* p, vi v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
}
// Pairs: the sums of two neighbouring products of u8 and s8, as saturated s16.
#define MGE_INT8_PAIRS
inline vi pair_products(vi a, vi w) { return _mm256_maddubs_epi16(a, w); }
// Words: twice kLanes s16 in a vector.
#define MGE_INT8_WORDS
inline vi words(const std::uint8_t* p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline vi set_words(std::int32_t v) { return _mm256_set1_epi16(static_cast<std::int16_t>(v)); }
inline vi pair_low(vi a, vi b) { return _mm256_unpacklo_epi16(a, b); }
inline vi pair_high(vi a, vi b) { return _mm256_unpackhi_epi16(a, b); }
inline vi pack_words(vi a, vi b) { return _mm256_packs_epi32(a, b); }
inline vi add_words(vi a, vi b) { return _mm256_adds_epi16(a, b); }
// The words of two neighbouring vectors that pack_words packed, in their order.
inline vi neighbours(vi words) { return _mm256_permute4x64_epi64(words, 0xd8); }
inline void store_low(std::uint8_t* p, vi bytes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_castsi256_si128(_mm256_permute4x64_epi64(bytes, 8)));
}
inline void store_unsigned(std::uint8_t* p, vi v) { store_low(p, _mm256_packus_epi16(v, v)); }
inline void store_signed(std::uint8_t* p, vi v) { store_low(p, _mm256_packs_epi16(v, v)); }
inline void store_low_bytes(std::uint8_t* p, vi v) {
    store_unsigned(p, _mm256_and_si256(v, _mm256_set1_epi16(255)));
}
// What pair_low and pair_high took apart.
inline void in_order(vf& a, vf& b) {
    const vf first = _mm256_permute2f128_ps(a, b, 0x20);
    b = _mm256_permute2f128_ps(a, b, 0x31), a = first;
}
#elif defined(__SSE4_1__)
using vi = __m128i;
using vf = __m128;
constexpr int kLanes = 4;
inline vi zero() { return _mm_setzero_si128(); }
inline vi set1(std::int32_t v) { return _mm_set1_epi32(v); }
inline vf setf(float v) { return _mm_set1_ps(v); }
inline vi load(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline vf loadf(const float* p) { return _mm_loadu_ps(p); }
inline void storef(float* p, vf v) { _mm_storeu_ps(p, v); }
inline vi addi(vi a, vi b) { return _mm_add_epi32(a, b); }
inline vi subi(vi a, vi b) { return _mm_sub_epi32(a, b); }
inline vi xori(vi a, vi b) { return _mm_xor_si128(a, b); }
inline vi ori(vi a, vi b) { return _mm_or_si128(a, b); }
inline vi andi(vi a, vi b) { return _mm_and_si128(a, b); }
inline vi high(vi a) { return _mm_slli_epi32(a, 16); }
inline vi upper(vi a) { return _mm_srli_epi32(a, 16); }
inline vi muli(vi a, vi b) { return _mm_mullo_epi32(a, b); }
inline vi madd(vi a, vi b) { return _mm_madd_epi16(a, b); }
inline vf cvt(vi a) { return _mm_cvtepi32_ps(a); }
inline vi round_even(vf a) { return _mm_cvtps_epi32(a); }
inline vf mul(vf a, vf b) { return _mm_mul_ps(a, b); }
inline vf add(vf a, vf b) { return _mm_add_ps(a, b); }
inline vf div(vf a, vf b) { return _mm_div_ps(a, b); }
inline vi maxi(vi a, vi b) { return _mm_max_epi32(a, b); }
inline vi mini(vi a, vi b) { return _mm_min_epi32(a, b); }
inline vf add_product(vf t, vf a, vf b) { return add(t, mul(a, b)); }
inline vf maxf(vf a, vf b) { return _mm_max_ps(a, b); }
inline vf minf(vf a, vf b) { return _mm_min_ps(a, b); }
inline vi widen(const std::uint8_t* p) {
    std::int32_t four;
    std::memcpy(&four, p, 4);
    return _mm_cvtepu8_epi32(_mm_cvtsi32_si128(four));
}
inline void narrow(std::uint8_t* p, vi v) {
    const __m128i low = _mm_and_si128(v, _mm_set1_epi32(255));
    const __m128i both = _mm_packus_epi32(low, low);
    const std::int32_t four = _mm_cvtsi128_si32(_mm_packus_epi16(both, both));
    std::memcpy(p, &four, 4);
}
inline vi widen(const std::int16_t* p) {
    return _mm_cvtepi16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline void narrow(std::int16_t* p, vi v) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(v, v));
}
#define MGE_INT8_PAIRS
inline vi pair_products(vi a, vi w) { return _mm_maddubs_epi16(a, w); }
#define MGE_INT8_WORDS
inline vi words(const std::uint8_t* p) {
    return _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline vi set_words(std::int32_t v) { return _mm_set1_epi16(static_cast<std::int16_t>(v)); }
inline vi pair_low(vi a, vi b) { return _mm_unpacklo_epi16(a, b); }
inline vi pair_high(vi a, vi b) { return _mm_unpackhi_epi16(a, b); }
inline vi pack_words(vi a, vi b) { return _mm_packs_epi32(a, b); }
inline vi add_words(vi a, vi b) { return _mm_adds_epi16(a, b); }
inline vi neighbours(vi words) { return words; }
inline void store_low(std::uint8_t* p, vi bytes) { _mm_storel_epi64(reinterpret_cast<__m128i*>(p), bytes); }
inline void store_unsigned(std::uint8_t* p, vi v) { store_low(p, _mm_packus_epi16(v, v)); }
inline void store_signed(std::uint8_t* p, vi v) { store_low(p, _mm_packs_epi16(v, v)); }
inline void store_low_bytes(std::uint8_t* p, vi v) {
    store_unsigned(p, _mm_and_si128(v, _mm_set1_epi16(255)));
}
inline void in_order(vf&, vf&) {}
#else
constexpr int kLanes = 4;
struct vi {
    std::int32_t v[kLanes];
};
struct vf {
    float v[kLanes];
};
template <class R, class F>
inline R lanes(F f) {
    R out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = f(i);
    return out;
}
inline vi set1(std::int32_t v) {
    return lanes<vi>([=](int) { return v; });
}
inline vi zero() { return set1(0); }
inline vf setf(float v) {
    return lanes<vf>([=](int) { return v; });
}
inline vi load(const void* p) {
    vi out;
    std::memcpy(&out, p, sizeof out);
    return out;
}
inline vf loadf(const float* p) {
    vf out;
    std::memcpy(&out, p, sizeof out);
    return out;
}
inline void storef(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
inline vi addi(vi a, vi b) {
    return lanes<vi>([&](int i) {
        return static_cast<std::int32_t>(static_cast<std::uint32_t>(a.v[i]) +
                                         static_cast<std::uint32_t>(b.v[i]));
    });
}
inline vi subi(vi a, vi b) {
    return lanes<vi>([&](int i) { return a.v[i] - b.v[i]; });
}
inline vi xori(vi a, vi b) {
    return lanes<vi>([&](int i) { return a.v[i] ^ b.v[i]; });
}
inline vi ori(vi a, vi b) {
    return lanes<vi>([&](int i) { return a.v[i] | b.v[i]; });
}
inline vi andi(vi a, vi b) {
    return lanes<vi>([&](int i) { return a.v[i] & b.v[i]; });
}
inline vi high(vi a) {
    return lanes<vi>(
        [&](int i) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(a.v[i]) << 16); });
}
inline vi upper(vi a) {
    return lanes<vi>(
        [&](int i) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(a.v[i]) >> 16); });
}
inline vi muli(vi a, vi b) {
    return lanes<vi>([&](int i) { return a.v[i] * b.v[i]; });
}
inline vi madd(vi a, vi b) {
    const auto product = [](std::int32_t x, std::int32_t y) { return static_cast<std::uint32_t>(x * y); };
    return lanes<vi>([&](int i) {
        const auto low = product(static_cast<std::int16_t>(a.v[i]), static_cast<std::int16_t>(b.v[i]));
        return static_cast<std::int32_t>(low + product(a.v[i] >> 16, b.v[i] >> 16));
    });
}
inline vf cvt(vi a) {
    return lanes<vf>([&](int i) { return static_cast<float>(a.v[i]); });
}
inline vi round_even(vf a) {
    return lanes<vi>([&](int i) { return static_cast<std::int32_t>(std::nearbyintf(a.v[i])); });
}
inline vf mul(vf a, vf b) {
    return lanes<vf>([&](int i) { return a.v[i] * b.v[i]; });
}
inline vf add(vf a, vf b) {
    return lanes<vf>([&](int i) { return a.v[i] + b.v[i]; });
}
inline vf div(vf a, vf b) {
    return lanes<vf>([&](int i) { return a.v[i] / b.v[i]; });
}
inline vf maxf(vf a, vf b) {
    return lanes<vf>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline vf minf(vf a, vf b) {
    return lanes<vf>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline vi maxi(vi a, vi b) {
    return lanes<vi>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline vi mini(vi a, vi b) {
    return lanes<vi>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline vf add_product(vf t, vf a, vf b) { return add(t, mul(a, b)); }
inline vi widen(const std::uint8_t* p) {
    return lanes<vi>([=](int i) { return static_cast<std::int32_t>(p[i]); });
}
inline void narrow(std::uint8_t* p, vi v) {
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::uint8_t>(v.v[i]);
}
inline vi widen(const std::int16_t* p) {
    return lanes<vi>([=](int i) { return static_cast<std::int32_t>(p[i]); });
}
inline void narrow(std::int16_t* p, vi v) {
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::int16_t>(v.v[i]);
}
#endif
template <class T>
inline vi widen_n(const T* p, int n) {
    T part[kLanes] = {};
    std::memcpy(part, p, static_cast<std::size_t>(n) * sizeof(T));
    return widen(part);
}
template <class T>
inline void narrow_n(T* p, vi v, int n) {
    T part[kLanes];
    narrow(part, v);
    std::memcpy(p, part, static_cast<std::size_t>(n) * sizeof(T));
}
inline void storef_n(float* p, vf v, int n) {
    float part[kLanes];
    storef(part, v);
    std::memcpy(p, part, static_cast<std::size_t>(n) * sizeof(float));
}
inline vf loadf_n(const float* p, int n) {
    float part[kLanes] = {};
    std::memcpy(part, p, static_cast<std::size_t>(n) * sizeof(float));
    return loadf(part);
}
#endif

// Adds the products of the elements of each lane. Products and sums of two s16 fit int32: nothing saturates.
inline vi dot(vi acc, vi a, vi w, std::int16_t) {
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(acc, a, w);
#else
    return addi(acc, madd(a, w));
#endif
}
#if defined(__AVX512VNNI__)
inline vi dot(vi acc, vi a, vi w, std::uint8_t) { return _mm512_dpbusd_epi32(acc, a, w); }
using Element = std::uint8_t;
#else
using Element = std::int16_t;
#endif
#if defined(MGE_INT8_PAIRS)
// For weights with which no sum of two neighbouring products leaves s16.
inline vi dot(vi acc, vi a, vi w, std::uint8_t) { return addi(acc, madd(pair_products(a, w), set_words(1))); }
#endif
constexpr int kUnit = 4 / sizeof(Element);  // elements in a lane

// The clamp: max first, so that NaN becomes lo.
inline vi finish(vf t, vf lo, vf hi, vi zero_point) {
    return addi(round_even(minf(maxf(t, lo), hi)), zero_point);
}

// A vector of bytes or words as they are stored, `left` of which are there.
template <class T>
inline vi read(const T* p, int left) {
    return left >= kLanes ? widen(p) : widen_n(p, left);
}
template <class T>
inline void write(T* p, int left, vi v) {
    left >= kLanes ? narrow(p, v) : narrow_n(p, v, left);
}
