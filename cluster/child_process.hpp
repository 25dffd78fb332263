#pragma once
/// A process that cannot outlive the one that started it.

#include <sys/types.h>

#include <string>
#include <vector>

#include "cluster/line_reader.hpp"

namespace eldr::cluster {

struct child_spec {
  std::string name;                  ///< For people.
  std::vector<std::string> command;  ///< Absolute path of the program, then its arguments.
  int stop_stage = 0;                ///< Told to stop once all children of lower stages have ended.
};

/// A running child: leader of its own process group, standard input empty, standard output and
/// error joined in `output`, descriptor readiness_fd in `readiness`. The kernel kills it when the
/// thread that started it ends.
struct child_process {
  pid_t pid = 0;
  line_reader output;
  line_reader readiness;
};

/// Throws std::system_error if there are no descriptors or processes left. A program that cannot
/// be executed is reported like a node's own failure, through `readiness`.
child_process spawn(const child_spec& spec);

/// If the child has ended: kills what is left of its group, collects it, sets `status` as
/// waitpid() does and returns true.
bool collect(pid_t pid, int& status);

/// Sends a signal to the child's group.
void signal_group(pid_t pid, int signal) noexcept;

/// "exited with code 3", "was killed by signal 9 (Killed)".
std::string describe_exit(int status);

}  // namespace eldr::cluster
