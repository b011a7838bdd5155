// Parts of the module takt._native that have files of their own.
#pragma once
#include <nanobind/nanobind.h>

#include "program/step_input.h"

namespace takt {

void bind_links(nanobind::module_& m);
void bind_steps(nanobind::module_& m);

// From the fields of takt.types.step.StepLimits by name.
StepLimits step_limits(const nanobind::dict& fields);

// Of the sources that the module is built from; source_stamp.cmake defines it.
const char* source_stamp();

}  // namespace takt
