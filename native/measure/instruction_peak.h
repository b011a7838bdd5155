// How many operations per second an instruction does from registers alone.
#pragma once
#include <string>
#include <vector>

namespace takt {

struct MultiplyInstruction {
  std::string name;        // of the assembler, with the registers it is used on
  std::string arithmetic;  // int8, bf16 or f32
};

// Those that this CPU and its kernel let a process use, the widest first.
std::vector<MultiplyInstruction> multiply_instructions();

// Operations per second (two for a multiply-add) of all threads together. Throws
// std::invalid_argument for a name that multiply_instructions() does not have.
double instruction_peak(const std::string& name, int num_threads, double seconds);

}  // namespace takt
