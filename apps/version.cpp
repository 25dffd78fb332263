#include "apps/version.hpp"

#include <fmt/format.h>

#include "gpu/kernels.hpp"

namespace eldr::apps {

std::string version_text() {
  return fmt::format("eldr {}\ncompiler: {}\nbackends: host ({})", ELDR_VERSION, ELDR_COMPILER,
                     gpu::select_kernels().name);
}

}  // namespace eldr::apps
