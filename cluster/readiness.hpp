#pragma once
/// How a node tells the process that started it that it is ready, or why it will never be: one
/// line, "ready" or "error: SENTENCE", on a descriptor that it inherited.

#include <string>
#include <string_view>

namespace eldr::cluster {

/// The descriptor that a supervised child finds open: `eldr node --ready-fd 3`.
constexpr int readiness_fd = 3;

/// Node's side; both close `fd`. A negative `fd` means that nobody supervises: nothing happens.
/// Never throws; if the supervisor is gone, the report is lost with it.
void report_ready(int fd) noexcept;
void report_failure(int fd, std::string_view sentence) noexcept;

/// Supervisor's side.
struct readiness_report {
  bool ready = false;
  std::string failure;  ///< Why not.
};
/// Understands a line without its newline; any other line is a failure that quotes it.
readiness_report parse_readiness(std::string_view line);

}  // namespace eldr::cluster
