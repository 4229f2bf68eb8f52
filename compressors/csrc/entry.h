// For the files with entry points.
//
// Each takes one record, which Python packs with `struct`: ctypes would convert as many arguments far more slowly.
// compressors/kernels/library.py has their formats, which must match the structs here field by field.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "threads.h"

#define GW_API extern "C" __attribute__((visibility("default")))

namespace gw {

// What an encoder is fed with; see Input.
struct Feed {
    const void* x;
    const float* residual;
    float* rest;
    int64_t n;
    float decay;
    int32_t dtype;

    Input input() const {
        // a rest that is x itself is in the cache, where x was read
        return {x, residual, rest, decay, dtype, rest && rest != x && n >= LONG};
    }
};

// What a decoder adds to: out += weight * payload; or, where it is fresh, out = weight * payload.
struct Target {
    float* out;
    int64_t n;
    float weight;
    int16_t threads, fresh;
};

inline Status judge(uint32_t peak) { return peak < INFINITE ? DONE : NOT_FINITE; }

}  // namespace gw
