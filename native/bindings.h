// Parts of the module takt._native that have files of their own.
#pragma once
#include <nanobind/nanobind.h>

namespace takt {

void bind_links(nanobind::module_& m);

}  // namespace takt
