// The kernels that a sanitizer sees.
#pragma once
#include "kernels/linear.h"

namespace takt::test {

// Under the thread sanitizer the generic ones alone: the others are built without it.
inline void select_instrumented_kernels() {
#if defined(__SANITIZE_THREAD__)
  select_isa("generic");
#endif
}

}  // namespace takt::test
