#include "apps/report_file.hpp"

#include <fstream>
#include <stdexcept>

#include "fit/report.hpp"

namespace eldr::apps {

void write_report_page(const fit::artifact& routing, const std::filesystem::path& file) {
  if (file.empty()) {
    return;
  }
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream << fit::report_html(routing);
  stream.close();
  if (!stream) {
    throw std::runtime_error("cannot write the report to " + file.string() +
                             "; is the folder there and writable?");
  }
}

}  // namespace eldr::apps
