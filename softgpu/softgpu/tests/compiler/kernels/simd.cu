// CUDA's functions on the halves and bytes of a word, one kernel for each.
#define ONE(name) \
  extern "C" __global__ void name(const unsigned *a, const unsigned *, unsigned *out) { \
    int i = blockIdx.x * blockDim.x + threadIdx.x; \
    out[i] = __##name(a[i]); \
  }
#define TWO(name) \
  extern "C" __global__ void name(const unsigned *a, const unsigned *b, unsigned *out) { \
    int i = blockIdx.x * blockDim.x + threadIdx.x; \
    out[i] = __##name(a[i], b[i]); \
  }
#define BOTH(kind, name) kind(name##2) kind(name##4)
#define TESTS(name) \
  BOTH(TWO, name##eq) BOTH(TWO, name##ne) BOTH(TWO, name##lts) BOTH(TWO, name##ltu) BOTH(TWO, name##les) \
  BOTH(TWO, name##leu) BOTH(TWO, name##gts) BOTH(TWO, name##gtu) BOTH(TWO, name##ges) BOTH(TWO, name##geu)
BOTH(ONE, vabs) BOTH(ONE, vabsss) BOTH(ONE, vneg) BOTH(ONE, vnegss)
BOTH(TWO, vadd) BOTH(TWO, vaddss) BOTH(TWO, vaddus) BOTH(TWO, vsub) BOTH(TWO, vsubss) BOTH(TWO, vsubus)
BOTH(TWO, vavgs) BOTH(TWO, vavgu) BOTH(TWO, vhaddu) BOTH(TWO, vabsdiffs) BOTH(TWO, vabsdiffu)
BOTH(TWO, vmaxs) BOTH(TWO, vmaxu) BOTH(TWO, vmins) BOTH(TWO, vminu) BOTH(TWO, vsads) BOTH(TWO, vsadu)
TESTS(vcmp) TESTS(vset)
