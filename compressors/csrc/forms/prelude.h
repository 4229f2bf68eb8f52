// What each form's file includes before it names its instruction set: these headers must not be compiled for it.
#pragma once

#include <cstdint>
#include <cstring>

#include "../kernels.h"

#define GW_INLINE static inline __attribute__((always_inline))
#define GW_METHOD inline __attribute__((always_inline))
