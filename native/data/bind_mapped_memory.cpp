#include "bindings.hpp"
#include "data/mapped_memory.hpp"

namespace dismec::bind {

void mapped_memory(nb::module_& m) {
  // The array is not kept alive: the owner of the memory also owns the watch, and stops it first.
  nb::class_<data::Watch>(m, "Watch")
      .def(
          "__init__",
          [](data::Watch* self, const Vector<std::uint8_t>& memory) {
            new (self) data::Watch(memory.data(), memory.size());
          },
          "memory"_a)
      .def_prop_ro("lost", &data::Watch::lost)
      .def("stop", &data::Watch::stop);
}

}  // namespace dismec::bind
