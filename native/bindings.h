// Parts of the module takt._native that have files of their own.
#pragma once
#include <nanobind/nanobind.h>

namespace takt {

void bind_links(nanobind::module_& m);

// Of the sources that the module is built from; source_stamp.cmake defines it.
const char* source_stamp();

}  // namespace takt
