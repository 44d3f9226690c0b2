// Integers to the last bit: wide products, division, shifts, counting, bytes, carries, conversions at the edges; vectors,
// unions and large parameters.

extern "C" __global__ void wide(const unsigned long long *x, const unsigned long long *y, unsigned long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long a = x[i], b = y[i];
    long long s = a, t = b;
    out[i] = a * b, out[n + i] = __umul64hi(a, b), out[2 * n + i] = __mul64hi(s, t);
    out[3 * n + i] = a / b, out[4 * n + i] = a % b, out[5 * n + i] = s / (t | 1), out[6 * n + i] = s % (t | 1);
    unsigned __int128 p = (unsigned __int128)a * b + ((unsigned __int128)b << 64) - a;
    out[7 * n + i] = (unsigned long long)(p >> 64), out[8 * n + i] = (unsigned long long)p;
    out[9 * n + i] = __popcll(a) | __clzll(b) << 8 | __ffsll(a) << 16;
    out[10 * n + i] = __brevll(a), out[11 * n + i] = s >> (b & 63), out[12 * n + i] = a >> (b & 63) | a << (-b & 63);
    out[13 * n + i] = (unsigned long long)(p / 1000003);
}

extern "C" __global__ void narrow(const unsigned *x, const unsigned *y, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned a = x[i], b = y[i];
    int s = a, t = b;
    out[i] = __umulhi(a, b), out[n + i] = __mulhi(s, t), out[2 * n + i] = __byte_perm(a, b, b >> 7 & 0x7777);
    out[3 * n + i] = __funnelshift_l(a, b, b), out[4 * n + i] = __funnelshift_rc(a, b, a & 63);
    out[5 * n + i] = __brev(a) ^ __popc(b) ^ __clz(a) << 7 ^ __ffs(b) << 14;
    out[6 * n + i] = s / (t | 1), out[7 * n + i] = s % (t | 1), out[8 * n + i] = a / (b | 1), out[9 * n + i] = a % 12345u;
    out[10 * n + i] = __sad(s >> 2, t >> 2, a), out[11 * n + i] = __usad(a, b, 7), out[12 * n + i] = __hadd(s, t) ^ __urhadd(a, b);
    out[13 * n + i] = __mul24(s, t) + __umul24(a, b), out[14 * n + i] = min(s, t) ^ max(a, b), out[15 * n + i] = abs(s >> 1);
    out[16 * n + i] = __dp4a(s, t, 5), out[17 * n + i] = __dp2a_lo(s, t, 9), out[18 * n + i] = __dp4a(a, b, 3u);
    out[19 * n + i] = (signed char)a * (short)b + (unsigned char)(a >> 8) - (unsigned short)(b >> 16);
    unsigned low, high;
    asm("add.cc.u32 %0, %2, %3; addc.u32 %1, %2, 0;" : "=r"(low), "=r"(high) : "r"(a), "r"(b));
    out[20 * n + i] = low ^ high;
    unsigned field;
    asm("bfe.u32 %0, %1, 5, 11;" : "=r"(field) : "r"(a));
    asm("bfi.b32 %0, %1, %2, 7, 9;" : "=r"(low) : "r"(b), "r"(field));
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(high) : "r"(a), "r"(b), "r"(low));
    out[21 * n + i] = low, out[22 * n + i] = high, out[23 * n + i] = s >> (b & 31);
}

// numbers that do not fit: to the nearest that does, and not-a-number to 0
extern "C" __global__ void saturations(const float *x, int *i32, unsigned *u32, long long *i64, unsigned char *u8, float *f, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    i32[i] = __float2int_rz(v), u32[i] = __float2uint_rz(v), i64[i] = __float2ll_rz(v);
    unsigned byte;
    asm("cvt.rni.sat.u8.f32 %0, %1;" : "=r"(byte) : "f"(v));
    u8[i] = byte;
    f[i] = fminf(v, 1.0f), f[n + i] = fmaxf(v, -1.0f), f[2 * n + i] = __saturatef(v), f[3 * n + i] = __fadd_rn(v, -v);
    f[4 * n + i] = isnan(v) + 2 * isinf(v) + 4 * signbit(v) + 8 * isfinite(v);
}

struct Mixed {
    signed char c;
    unsigned char also;
    short s;
    int i;
    double d;
    float4 f;
    unsigned char bytes[5];
    unsigned bits : 5, more : 11;
};

extern "C" __global__ void structs(Mixed m, const Mixed *x, Mixed *out, longlong2 *pair, uchar4 *bytes, double2 *reals, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Mixed v = x[i];
    v.c += m.c, v.also ^= m.also, v.s -= m.s, v.i ^= m.i, v.d += m.d, v.f.z += m.f.w, v.bytes[i % 5] = m.bytes[(i + 1) % 5];
    v.bits += m.bits, v.more = m.more - i;
    out[i] = v;
    longlong2 p = pair[i];
    pair[i] = make_longlong2(p.y, p.x + 1);
    uchar4 b = bytes[i];
    bytes[i] = make_uchar4(b.w, b.z + 1, b.y, b.x);
    union {
        double2 d;
        uint4 u;
    } u;
    u.d = reals[i];
    u.u.y ^= 0x80000000u;
    reals[i] = make_double2(u.d.y, u.d.x);
}

struct Big {
    unsigned table[1000];
};

// the parameters' limit is 4 KB; each thread reads another place
extern "C" __global__ void parameters(const __grid_constant__ Big big, unsigned *out, unsigned short k, unsigned char b, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = big.table[i * 7 % 1000] + big.table[k] * b;
}
