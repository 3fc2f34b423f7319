// The attention of one query per request over few slots, with what a layer does ahead of it, in one launch of clusters:
// PARTS blocks share a request's slots for up to 4 query heads of one key head, and add up in each other's memory.
//
// A warp has a key of 256 columns at a time, 8 columns a thread, and the keys and values of its first 8 slots are under
// way before the inputs are there: earlier steps stored them. The newest slot is not among them: whoever has it takes
// what it has just made, or reads it behind the wait. Sums are in an order that depends on the number of slots alone.
// clustered.py says what is defined:
//   PARTS            blocks of a cluster
//   HEADS            query heads of a block: 1, 2 or 4
//   GROUP            query heads of a key head
//   OWN_KEYS         1: new keys and values are made and stored here; 0: another layer has
//   LONG_...         1: int64, 0: int32, of each of the lists
//   TABLE_FP32       1: the table of angles is fp32; 0: bf16
//   EARLY            1: may start before the kernel ahead has ended

#include "numbers.cuh"

constexpr int WIDTH = 256, HALF = WIDTH / 2;
constexpr int WARPS = 8, AT_A_TIME = 8;  // of a block, and a warp's slots
constexpr int SCORES = AT_A_TIME * HEADS, APART = 32 / SCORES;
constexpr float LOG2_E = 1.4426950408889634f, NOTHING = -3.402823466e38f;

// clustered.py has the same.
struct Arguments {
  const u16* q;
  u16 *keys, *values, *out;
  const void *starts, *slots, *positions, *places;
  const u16 *q_weight, *k_weight, *new_keys, *new_values;
  const void* table;
  long long q_stride, q_head_stride, key_stride, key_head_stride, value_stride, value_head_stride;
  long long out_stride, out_head_stride, new_key_stride, new_value_stride;
  int kv_heads;
  float scaling, eps;
};

template <int LONG> __device__ __forceinline__ long long listed(const void* list, long long number) {
  return LONG ? ((const long long*)list)[number] : (long long)((const int*)list)[number];
}

__device__ __forceinline__ void widen(float (&to)[8], const uint4& v) {
#pragma unroll
  for (int number = 0; number < 4; number++) {
    to[2 * number] = low(word(v, number));
    to[2 * number + 1] = high(word(v, number));
  }
}

__device__ __forceinline__ uint4 narrow(const float (&v)[8]) {
  return {packed(v[0], v[1]), packed(v[2], v[3]), packed(v[4], v[5]), packed(v[6], v[7])};
}

// Of a head that a warp holds, 8 columns a thread: times 1 / rms, times weight, and turned.
struct Front {
  float cos[8], sin[8];

  __device__ __forceinline__ void read(const Arguments& a, long long position, int lane) {
    const long long at = position * WIDTH + lane % 16 * 8;
    if (TABLE_FP32) {
      const float4* table = (const float4*)((const float*)a.table + at);
      const float4* sines = (const float4*)((const float*)a.table + at + HALF);
#pragma unroll
      for (int number = 0; number < 2; number++) {
        const float4 c = table[number], s = sines[number];
        cos[4 * number] = c.x, cos[4 * number + 1] = c.y, cos[4 * number + 2] = c.z, cos[4 * number + 3] = c.w;
        sin[4 * number] = s.x, sin[4 * number + 1] = s.y, sin[4 * number + 2] = s.z, sin[4 * number + 3] = s.w;
      }
    } else {
      widen(cos, load_weight((const u16*)a.table + at));
      widen(sin, load_weight((const u16*)a.table + at + HALF));
    }
    if (lane < 16)
#pragma unroll
      for (int number = 0; number < 8; number++) sin[number] = -sin[number];
  }

  __device__ __forceinline__ void turn(float (&x)[8]) const {
#pragma unroll
    for (int number = 0; number < 8; number++) {
      const float partner = __shfl_xor_sync(0xffffffffu, x[number], 16);
      x[number] = x[number] * cos[number] + partner * sin[number];
    }
  }
};

__device__ __forceinline__ void norm(float (&x)[8], float eps) {
  float total = 0;
#pragma unroll
  for (int number = 0; number < 8; number++) total += x[number] * x[number];
#pragma unroll
  for (int apart = 16; apart; apart /= 2) total += __shfl_xor_sync(0xffffffffu, total, apart);
  const float inverse = rsqrtf(total * (1.0f / WIDTH) + eps);
#pragma unroll
  for (int number = 0; number < 8; number++) x[number] *= inverse;
}

__device__ __forceinline__ void times(float (&x)[8], const uint4& weight) {
  float w[8];
  widen(w, weight);
#pragma unroll
  for (int number = 0; number < 8; number++) x[number] *= w[number];
}

// The sums over all threads of a warp of v[0..SCORES - 1]: thread t returns that of t / APART.
template <int COUNT = SCORES / 2> __device__ __forceinline__ float summed(float (&v)[SCORES], int lane) {
  constexpr int FURTHER = 32 * COUNT / SCORES;
  const bool upper = lane & FURTHER;
#pragma unroll
  for (int number = 0; number < COUNT; number++) {
    const float sent = upper ? v[number] : v[number + COUNT], kept = upper ? v[number + COUNT] : v[number];
    v[number] = kept + __shfl_xor_sync(0xffffffffu, sent, FURTHER);
  }
  if constexpr (COUNT > 1) return summed<COUNT / 2>(v, lane);
#pragma unroll
  for (int further = APART / 2; further; further /= 2) v[0] += __shfl_xor_sync(0xffffffffu, v[0], further);
  return v[0];
}

__device__ __forceinline__ void all_of_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ u32 of_block(u32 address, int block) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}

__device__ __forceinline__ float2 load_two(u32 address) {
  float2 v;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}

struct Slots {
  uint4 k[AT_A_TIME], v[AT_A_TIME];
};

extern "C" __global__ void __cluster_dims__(PARTS, 1, 1) __launch_bounds__(32 * WARPS, 1)
clustered_attention_kernel(const __grid_constant__ Arguments a) {
  __shared__ __align__(16) float queries[HEADS][WIDTH];
  __shared__ __align__(16) float sums[WARPS][HEADS][WIDTH];
  __shared__ float2 extremes[WARPS][HEADS];
  __shared__ __align__(8) float2 ends[HEADS];  // the highest score times log2(e), and the sum of powers
  __shared__ __align__(16) uint4 fresh[2][32];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int part = blockIdx.x % PARTS, pair = blockIdx.x / PARTS;
  constexpr int SHARES = GROUP / HEADS;
  const int kv_head = pair / SHARES % a.kv_heads;
  const long long request = pair / SHARES / a.kv_heads;
  const int first_head = kv_head * GROUP + pair % SHARES * HEADS;
#if EARLY
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif

  // Lists and positions are made before a step's first kernel, weights and angles before any.
  const long long start = listed<LONG_STARTS>(a.starts, request);
  const int length = (int)(listed<LONG_STARTS>(a.starts, request + 1) - start);
  const int share = (length + PARTS - 1) / PARTS;
  const int first = part * share, last = min(first + share, length), newest = length - 1;
  // Whose part ends with the newest slot; the first block where there is no slot.
  const bool makes = OWN_KEYS && (length ? first <= newest && newest < last : part == 0);
  const bool makes_key = makes && warp == HEADS, makes_value = makes && warp == HEADS + 1;
  Slots held;
  const u16* keys = a.keys + kv_head * a.key_head_stride + lane * 8;
  const u16* values = a.values + kv_head * a.value_head_stride + lane * 8;

  auto load = [&](int at, int end) {
    long long slot = 0;
    const int mine = at + warp * AT_A_TIME + lane;
    if (lane < AT_A_TIME && mine < end) slot = listed<LONG_SLOTS>(a.slots, start + mine);
#pragma unroll
    for (int number = 0; number < AT_A_TIME; number++) {
      const long long row = __shfl_sync(0xffffffffu, slot, number);
      held.k[number] = held.v[number] = {0, 0, 0, 0};
      if (at + warp * AT_A_TIME + number < end) {
        held.k[number] = load_row(keys + row * a.key_stride);
        held.v[number] = load_row(values + row * a.value_stride);
      }
    }
  };

  load(first, min(last, newest));
  Front front;
  uint4 weight = {0, 0, 0, 0};
  if (warp < HEADS || makes_key) {
    front.read(a, listed<LONG_POSITIONS>(a.positions, request), lane);
    weight = load_weight((makes_key ? a.k_weight : a.q_weight) + lane * 8);
  }
#if EARLY
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (warp < HEADS || makes_key || makes_value) {
    const u16* from = makes_key     ? a.new_keys + request * a.new_key_stride + kv_head * WIDTH
                      : makes_value ? a.new_values + request * a.new_value_stride + kv_head * WIDTH
                                    : a.q + request * a.q_stride + (first_head + warp) * a.q_head_stride;
    float x[8];
    widen(x, load_row(from + lane * 8));
    norm(x, a.eps);
    if (!makes_value) {
      times(x, weight);
      front.turn(x);
    }
    const uint4 rounded = narrow(x);
    if (makes_key || makes_value) {
      fresh[makes_value][lane] = rounded;
      if (pair % SHARES == 0) {
        const long long place = listed<LONG_PLACES>(a.places, request);
        u16* to = makes_key ? a.keys + kv_head * a.key_head_stride + place * a.key_stride
                            : a.values + kv_head * a.value_head_stride + place * a.value_stride;
        *(uint4*)(to + lane * 8) = rounded;
      }
    } else {
      widen(x, rounded);
#pragma unroll
      for (int number = 0; number < 8; number++) queries[warp][lane * 8 + number] = x[number] * (a.scaling * LOG2_E);
    }
  }
  __syncthreads();
  if (length && first <= newest && newest < last) {
    // In the first round of a warp: a later one reads what other blocks have not stored.
    const int own = newest - first - warp * AT_A_TIME;
#pragma unroll
    for (int number = 0; number < AT_A_TIME; number++)
      if (own == number) {
        if (OWN_KEYS) {
          held.k[number] = fresh[0][lane];
          held.v[number] = fresh[1][lane];
        } else {
          const long long row = listed<LONG_SLOTS>(a.slots, start + newest);
          held.k[number] = load_row(keys + row * a.key_stride);
          held.v[number] = load_row(values + row * a.value_stride);
        }
      }
  }

  float q[HEADS][8], whole[HEADS][8] = {}, highest[HEADS], total[HEADS];
#pragma unroll
  for (int head = 0; head < HEADS; head++) {
    highest[head] = NOTHING, total[head] = 0;
#pragma unroll
    for (int number = 0; number < 8; number++) q[head][number] = queries[head][lane * 8 + number];
  }
  for (int at = first; at < last; at += WARPS * AT_A_TIME) {
    if (at != first) {
      load(at, OWN_KEYS ? min(last, newest) : last);
      const int own = newest - at - warp * AT_A_TIME;
      if (OWN_KEYS)
#pragma unroll
        for (int number = 0; number < AT_A_TIME; number++)
          if (own == number && newest < last) held.k[number] = fresh[0][lane], held.v[number] = fresh[1][lane];
    }
    float scores[SCORES];
#pragma unroll
    for (int number = 0; number < AT_A_TIME; number++) {
      float k[8];
      widen(k, held.k[number]);
#pragma unroll
      for (int head = 0; head < HEADS; head++) {
        float& score = scores[head * AT_A_TIME + number];
        score = 0;
#pragma unroll
        for (int column = 0; column < 8; column++) score += q[head][column] * k[column];
      }
    }
    float mine = summed(scores, lane);
    if (at + warp * AT_A_TIME + lane / APART % AT_A_TIME >= last) mine = NOTHING;
    float top = mine;
#pragma unroll
    for (int apart = APART; apart < 8 * APART; apart *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, apart));
#pragma unroll
    for (int head = 0; head < HEADS; head++) {
      const float higher = fmaxf(highest[head], __shfl_sync(0xffffffffu, top, head * AT_A_TIME * APART));
      const float shrink = highest[head] == NOTHING ? 0.0f : exp2f(highest[head] - higher);
      total[head] *= shrink;
#pragma unroll
      for (int column = 0; column < 8; column++) whole[head][column] *= shrink;
      highest[head] = higher;
      if (lane / APART / AT_A_TIME == head) mine = mine == NOTHING ? 0.0f : exp2f(mine - higher);
    }
#pragma unroll
    for (int number = 0; number < AT_A_TIME; number++) {
      float v[8];
      widen(v, held.v[number]);
#pragma unroll
      for (int head = 0; head < HEADS; head++) {
        const float power = __shfl_sync(0xffffffffu, mine, (head * AT_A_TIME + number) * APART);
        total[head] += power;
#pragma unroll
        for (int column = 0; column < 8; column++) whole[head][column] += power * v[column];
      }
    }
  }

#pragma unroll
  for (int head = 0; head < HEADS; head++) {
    float4* to = (float4*)&sums[warp][head][lane * 8];
    to[0] = {whole[head][0], whole[head][1], whole[head][2], whole[head][3]};
    to[1] = {whole[head][4], whole[head][5], whole[head][6], whole[head][7]};
    if (lane == 0) extremes[warp][head] = {highest[head], total[head]};
  }
  __syncthreads();
  // The warps' sums into those of the first.
#pragma unroll
  for (int head = 0; head < HEADS; head++) {
    float top = NOTHING, all = 0, one = 0;
#pragma unroll
    for (int other = 0; other < WARPS; other++) top = fmaxf(top, extremes[other][head].x);
#pragma unroll
    for (int other = 0; other < WARPS; other++) {
      const float2 end = extremes[other][head];
      const float factor = end.x == NOTHING ? 0.0f : exp2f(end.x - top);
      all += end.y * factor;
      one += sums[other][head][thread] * factor;
    }
    sums[0][head][thread] = one;
    if (thread == 0) ends[head] = {top, all};
  }
  all_of_cluster();
  // Each block has some columns of what all have.
  constexpr int COLUMNS = HEADS * WIDTH / PARTS;
  for (int place = part * COLUMNS + thread * 2; place < (part + 1) * COLUMNS; place += 64 * WARPS) {
    const int head = place / WIDTH, column = place % WIDTH;
    float2 end[PARTS], sum[PARTS], made = {0, 0};
    float top = NOTHING, all = 0;
#pragma unroll
    for (int block = 0; block < PARTS; block++) {
      end[block] = load_two(of_block(shared_address(&ends[head]), block));
      sum[block] = load_two(of_block(shared_address(&sums[0][head][column]), block));
    }
#pragma unroll
    for (int block = 0; block < PARTS; block++) top = fmaxf(top, end[block].x);
#pragma unroll
    for (int block = 0; block < PARTS; block++) {
      const float factor = end[block].x == NOTHING ? 0.0f : exp2f(end[block].x - top);
      all += end[block].y * factor;
      made.x += sum[block].x * factor;
      made.y += sum[block].y * factor;
    }
    const float inverse = all > 0 ? 1.0f / all : 0.0f;
    *(u32*)(a.out + request * a.out_stride + (first_head + head) * a.out_head_stride + column) =
        packed(made.x * inverse, made.y * inverse);
  }
  // What others read of this block's memory stays until all have.
  all_of_cluster();
}
