// The loops of one form. Included inside its namespace, after its vec_*.h.

#include "source.h"

#include "dense.h"
#include "gather.h"
#include "largest.h"
#include "quantizers.h"

constexpr Form make_table() {
    return {peak,   settle, copy,      sum,  sign_pack, quantize, cast,    gather,
            sample, survey, count,     histogram, emit,      sign_add, int8_add, cast_add};
}
