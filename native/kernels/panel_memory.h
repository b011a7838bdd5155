// Memory of packed weights.
#pragma once
#include <cstddef>
#include <memory>

namespace takt {

using PanelMemory = std::shared_ptr<std::byte>;

// `bytes` bytes, 64-byte aligned and uninitialised, on huge pages where the system has them. Weights
// that are made one after the other lie one after the other: a model's small matrices fill huge pages
// together, and what is read across them stays a stream. Throws std::bad_alloc.
PanelMemory allocate_panels(size_t bytes);

}  // namespace takt
