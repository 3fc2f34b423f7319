// Numbers as the sources have them: bf16 in 16 bits, two of them in 32.

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

__device__ __forceinline__ u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

__device__ __forceinline__ u16 narrowed(float v) {
  u16 made;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(made) : "f"(v));
  return made;
}

__device__ __forceinline__ float widened(u16 v) { return __uint_as_float((u32)v << 16); }

__device__ __forceinline__ float low(u32 two) { return __uint_as_float(two << 16); }

__device__ __forceinline__ float high(u32 two) { return __uint_as_float(two & 0xffff0000u); }

__device__ __forceinline__ u32 packed(float low, float high) {
  u32 made;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(made) : "f"(high), "f"(low));
  return made;
}

__device__ __forceinline__ u32& word(uint4& v, int number) {
  return number == 0 ? v.x : number == 1 ? v.y : number == 2 ? v.z : v.w;
}

__device__ __forceinline__ u32 word(const uint4& v, int number) {
  return number == 0 ? v.x : number == 1 ? v.y : number == 2 ? v.z : v.w;
}

// Of what the kernel ahead writes: it stays behind the wait for that one. The compiler moves a load of what it takes for
// never written, such as through `const __restrict__`, ahead of any wait.
__device__ __forceinline__ uint4 load_row(const u16* at) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
  return v;
}

__device__ __forceinline__ uint4 load_weight(const u16* at) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
  return v;
}
