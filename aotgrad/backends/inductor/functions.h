// Functions of vectors that take less time than torch's, which are Sleef's. A kernel calls them in place of the members of
// the same names, see `cpp_kernels.FASTER_FUNCTIONS`. Other types and registers use the members.

namespace aotgrad_functions {

template <typename Vector> static inline Vector tanh(const Vector& x) { return x.tanh(); }

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

using at::vec::fmadd;
using at::vec::Vectorized;
using at::vec::VectorizedN;

// `exp` and `tanh` are the coefficients of minimax polynomials, the highest power first: of (exp(x) - 1 - x) / x^2 for
// |x| <= ln(2)/2, and of (tanh(x) / x - 1) / x^2 as a polynomial of x^2 for |x| <= 0.6.
template <typename T> struct Constants;

template <> struct Constants<float> {
    using Bits = int32_t;
    static constexpr int mantissa = 23;
    static constexpr Bits one = 0x3f800000;
    static constexpr float to_integer = 12582912.0f;  // after adding this, the last bit is worth 1
    static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    static constexpr float limit = 10.0f;  // tanh is 1 from here on
    static constexpr float exp[] = {0.00138145592f, 0.0083687352f, 0.041668389f, 0.166665211f, 0.49999994f};
    static constexpr float tanh[] = {-0.00589515548f, 0.0207959693f, -0.0537838303f, 0.133319244f, -0.333332986f};
};

template <> struct Constants<double> {
    using Bits = int64_t;
    static constexpr int mantissa = 52;
    static constexpr Bits one = 0x3ff0000000000000;
    static constexpr double to_integer = 6755399441055744.0;
    static constexpr double ln2_high = 0.693147180369123816490, ln2_low = 1.90821492927058770002e-10;
    static constexpr double limit = 20.0;
    static constexpr double exp[] = {
        2.51003854955103191e-8, 2.76200884454097482e-7, 2.75572684599970648e-6, 0.0000248015212959543751, 0.000198412698630536169,
        0.00138888889172137169, 0.00833333333333006183, 0.0416666666666241279,  0.166666666666666675,     0.500000000000000102};
    static constexpr double tanh[] = {
        -0.0000183359621099999389, 0.0000815473780651789114, -0.000232251040679324445, 0.00058805415484184535,
        -0.00145546480280073724,   0.00359208316634345615,   -0.00886323211354147304,  0.0218694883837809291,
        -0.0539682539647576248,    0.133333333333301962,     -0.333333333333333287};
};

template <typename T, size_t N> static inline Vectorized<T> polynomial(const T (&coefficients)[N], const Vectorized<T>& x) {
    Vectorized<T> sum(coefficients[0]);
    for (size_t k = 1; k < N; ++k) sum = fmadd(sum, x, Vectorized<T>(coefficients[k]));
    return sum;
}

// For x <= 0 whose result is a normal number: 2^n exp(r), where |r| <= ln(2)/2.
template <typename T> static inline Vectorized<T> exp_of_negative(const Vectorized<T>& x) {
    using C = Constants<T>;
    using Bits = typename C::Bits;
    const Vectorized<T> shifted = fmadd(x, Vectorized<T>(T(1.44269504088896340736)), Vectorized<T>(C::to_integer));
    const Vectorized<T> n = shifted - Vectorized<T>(C::to_integer);
    const Vectorized<T> r = fmadd(n, Vectorized<T>(-C::ln2_low), fmadd(n, Vectorized<T>(-C::ln2_high), x));
    const Vectorized<Bits> exponent = at::vec::cast<Bits>(shifted) << Vectorized<Bits>(C::mantissa);
    const Vectorized<T> power = at::vec::cast<T>(exponent + Vectorized<Bits>(C::one));
    return fmadd(power, fmadd(polynomial(C::exp, r), r * r, r), power);
}

// Off by at most 1.5 units in the last place. A polynomial for |x| < 0.6, else 1 - 2 exp(-2x) / (1 + exp(-2x)).
template <typename T> static inline Vectorized<T> tanh_of(const Vectorized<T>& x) {
    using C = Constants<T>;
    const Vectorized<T> one(T(1));
    const Vectorized<T> a = at::vec::clamp_max(x.abs(), Vectorized<T>(C::limit));
    const Vectorized<T> e = exp_of_negative(a * Vectorized<T>(T(-2)));
    const Vectorized<T> large = one - (e + e) / (one + e);
    const Vectorized<T> square = a * a;
    const Vectorized<T> small = fmadd(polynomial(C::tanh, square) * square, a, a);
    return Vectorized<T>::blendv(large, small, a < Vectorized<T>(T(0.6))) | (x & Vectorized<T>(T(-0.0)));
}

static inline Vectorized<float> tanh(const Vectorized<float>& x) { return tanh_of(x); }
static inline Vectorized<double> tanh(const Vectorized<double>& x) { return tanh_of(x); }

template <typename T, int N> static inline VectorizedN<T, N> tanh(const VectorizedN<T, N>& x) {
    VectorizedN<T, N> result;
    for (int k = 0; k < N; ++k) result[k] = tanh(x[k]);
    return result;
}

#endif
}  // namespace aotgrad_functions
