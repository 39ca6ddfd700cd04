// The extension module. Each bind_*.cpp checks what Python hands in, releases the GIL and calls the
// plain headers of its folder.

#include "bindings.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "cpu.hpp"

namespace {

/// Instruction sets that this CPU runs, best first; each is the suffix of an extension module.
std::vector<std::string> cpu_isas() {
  std::vector<std::string> isas;
#if defined(DISMEC_X86_64)
  const auto [avx2, avx512] = dismec::cpu_features();
  if (avx512) isas.emplace_back("avx512");
  if (avx2) isas.emplace_back("avx2");
#elif defined(__aarch64__)
  isas.emplace_back("neon");  // every such CPU has it
#endif
  isas.emplace_back("base");
  return isas;
}

}  // namespace

NB_MODULE(DISMEC_MODULE, m) {
  m.attr("isa") = DISMEC_ISA;
  m.def("cpu_isas", &cpu_isas);
  dismec::bind::aims(m);
  dismec::bind::mapped_memory(m);
  dismec::bind::packing(m);
  dismec::bind::rows(m);
  dismec::bind::shards(m);
  dismec::bind::solver(m);
  dismec::bind::transform(m);
  dismec::bind::vocabulary(m);
  dismec::bind::xmc_text(m);
}
