// The functions of CUDA's mathematics library, one kernel for each and each precision.
#define ONE(name) \
  extern "C" __global__ void name##_f32(const float *a, float *out) { \
    int i = blockIdx.x * blockDim.x + threadIdx.x; \
    out[i] = name##f(a[i]); \
  } \
  extern "C" __global__ void name##_f64(const double *a, double *out) { \
    int i = blockIdx.x * blockDim.x + threadIdx.x; \
    out[i] = name(a[i]); \
  }
#define TWO(name) \
  extern "C" __global__ void name##_f32(const float *a, const float *b, float *out) { \
    int i = blockIdx.x * blockDim.x + threadIdx.x; \
    out[i] = name##f(a[i], b[i]); \
  } \
  extern "C" __global__ void name##_f64(const double *a, const double *b, double *out) { \
    int i = blockIdx.x * blockDim.x + threadIdx.x; \
    out[i] = name(a[i], b[i]); \
  }
ONE(sin) ONE(cos) ONE(tan) ONE(asin) ONE(acos) ONE(atan) ONE(sinh) ONE(cosh) ONE(tanh) ONE(asinh) ONE(acosh) ONE(atanh)
ONE(exp) ONE(exp2) ONE(exp10) ONE(expm1) ONE(log) ONE(log2) ONE(log10) ONE(log1p) ONE(sqrt) ONE(rsqrt) ONE(cbrt) ONE(rcbrt)
ONE(erf) ONE(erfc) ONE(erfinv) ONE(erfcinv) ONE(erfcx) ONE(normcdf) ONE(normcdfinv) ONE(lgamma) ONE(tgamma)
ONE(j0) ONE(j1) ONE(y0) ONE(y1) ONE(cyl_bessel_i0) ONE(cyl_bessel_i1) ONE(sinpi) ONE(cospi)
ONE(floor) ONE(ceil) ONE(trunc) ONE(rint) ONE(round) ONE(logb)
TWO(fmod) TWO(remainder) TWO(pow) TWO(atan2) TWO(hypot) TWO(fdim) TWO(nextafter) TWO(fmin) TWO(fmax)
