// How vector masks are loaded from bools and stored as bools. torch's own code does both lane by lane.
// Specializes members of torch's VecMask, before a kernel instantiates them. A compiler that refuses this is no harm: the
// kernels are then compiled one by one, without it.

#if defined(CPU_CAPABILITY_AVX512) || (defined(CPU_CAPABILITY_AVX2) && defined(__BMI2__))
#include <cstring>
#include <immintrin.h>

namespace aotgrad_masks {

using at::vec::Vectorized;
using at::vec::VectorizedN;

#if defined(CPU_CAPABILITY_AVX512)
using Lanes = __m512i;
#else
using Lanes = __m256i;
#endif

template <typename T> static inline Vectorized<T> mask_of(Lanes lanes) {
    Vectorized<T> mask;
    std::memcpy(static_cast<void*>(&mask), &lanes, sizeof(lanes));
    return mask;
}

template <typename T> static inline Lanes lanes_in(const Vectorized<T>& mask) {
    Lanes lanes;
    std::memcpy(&lanes, static_cast<const void*>(&mask), sizeof(lanes));
    return lanes;
}

#if defined(CPU_CAPABILITY_AVX512)

template <typename T> static inline Lanes lanes_of(unsigned bits) {
    return sizeof(T) == 4 ? _mm512_movm_epi32(__mmask16(bits)) : _mm512_movm_epi64(__mmask8(bits));
}

template <typename T> static inline unsigned bits_of(Lanes lanes) {
    return sizeof(T) == 4 ? unsigned(_mm512_movepi32_mask(lanes)) : unsigned(_mm512_movepi64_mask(lanes));
}

static inline unsigned load(const bool* from, int count) {
    const __m128i bytes = _mm_maskz_loadu_epi8(__mmask16((1u << count) - 1), from);
    return _mm_test_epi8_mask(bytes, bytes);
}

static inline void store(bool* to, unsigned bits, int count) {
    _mm_mask_storeu_epi8(to, __mmask16((1u << count) - 1), _mm_maskz_set1_epi8(__mmask16(bits), 1));
}

#else

template <typename T> static inline Lanes lanes_of(unsigned bits) {
    const Lanes each = sizeof(T) == 4 ? _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128) : _mm256_setr_epi64x(1, 2, 4, 8);
    const Lanes all = sizeof(T) == 4 ? _mm256_set1_epi32(int(bits)) : _mm256_set1_epi64x(int64_t(bits));
    const Lanes chosen = _mm256_and_si256(all, each);
    return sizeof(T) == 4 ? _mm256_cmpeq_epi32(chosen, each) : _mm256_cmpeq_epi64(chosen, each);
}

template <typename T> static inline unsigned bits_of(Lanes lanes) {
    const int bits = sizeof(T) == 4 ? _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) : _mm256_movemask_pd(_mm256_castsi256_pd(lanes));
    return unsigned(bits);
}

static inline unsigned load(const bool* from, int count) {
    int64_t bytes = 0;
    std::memcpy(&bytes, from, size_t(count));
    const __m128i zeros = _mm_cmpeq_epi8(_mm_cvtsi64_si128(bytes), _mm_setzero_si128());
    return ~unsigned(_mm_movemask_epi8(zeros)) & 0xFF;
}

static inline void store(bool* to, unsigned bits, int count) {
    const uint64_t bytes = _pdep_u64(bits, 0x0101010101010101);
    std::memcpy(to, &bytes, size_t(count));
}

#endif

template <typename T, int N> static inline VectorizedN<T, N> from(const bool* bools, int count) {
    constexpr int width = Vectorized<T>::size();
    VectorizedN<T, N> mask(static_cast<T>(0));
    for (int k = 0; k < N && count > k * width; ++k) {
        mask[k] = mask_of<T>(lanes_of<T>(load(bools + k * width, std::min(width, count - k * width))));
    }
    return mask;
}

template <typename T, int N> static inline void store(const VectorizedN<T, N>& mask, bool* bools, int count) {
    constexpr int width = Vectorized<T>::size();
    for (int k = 0; k < N && count > k * width; ++k) {
        store(bools + k * width, bits_of<T>(lanes_in<T>(mask[k])), std::min(width, count - k * width));
    }
}

}  // namespace aotgrad_masks

#define AOTGRAD_MASK(T, N)                                                                                              \
    template <> template <> inline VecMask<T, N> VecMask<T, N>::from<const bool>(const bool* b) {                       \
        return aotgrad_masks::from<T, N>(b, size());                                                                    \
    }                                                                                                                   \
    template <> template <> inline VecMask<T, N> VecMask<T, N>::from<const bool>(const bool* b, int count) {            \
        return aotgrad_masks::from<T, N>(b, count);                                                                     \
    }                                                                                                                   \
    template <> template <> inline VecMask<T, N> VecMask<T, N>::from<bool>(bool* b) {                                   \
        return aotgrad_masks::from<T, N>(b, size());                                                                    \
    }                                                                                                                   \
    template <> template <> inline VecMask<T, N> VecMask<T, N>::from<bool>(bool* b, int count) {                        \
        return aotgrad_masks::from<T, N>(b, count);                                                                     \
    }                                                                                                                   \
    template <> inline void VecMask<T, N>::store(bool* b, int count) { aotgrad_masks::store<T, N>(mask_, b, count); }

namespace at::vec {
inline namespace CPU_CAPABILITY {
AOTGRAD_MASK(float, 1)
AOTGRAD_MASK(float, 2)
AOTGRAD_MASK(float, 4)
AOTGRAD_MASK(int, 1)
AOTGRAD_MASK(int, 2)
AOTGRAD_MASK(int, 4)
AOTGRAD_MASK(double, 1)
AOTGRAD_MASK(double, 2)
AOTGRAD_MASK(int64_t, 1)
AOTGRAD_MASK(int64_t, 2)
AOTGRAD_MASK(int64_t, 4)
}  // namespace CPU_CAPABILITY
}  // namespace at::vec
#endif
