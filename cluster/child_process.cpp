#include "cluster/child_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <system_error>

#include "cluster/readiness.hpp"

namespace eldr::cluster {
namespace {

struct pipe_ends {
  unique_fd read;
  unique_fd write;
};

pipe_ends make_pipe() {
  std::array<int, 2> fds{};
  if (pipe2(fds.data(), O_CLOEXEC) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot create a pipe");
  }
  return {unique_fd(fds[0]), unique_fd(fds[1])};
}

// Between fork and exec only async-signal-safe calls are allowed, hence no strings here.

void arrange_descriptors(int output, int readiness) {
  // Out of the way first, in case one of them already has a number that is about to be replaced.
  const int null = fcntl(open("/dev/null", O_RDONLY), F_DUPFD, 10);
  output = fcntl(output, F_DUPFD, 10);
  readiness = fcntl(readiness, F_DUPFD, 10);
  dup2(null, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  dup2(readiness, readiness_fd);
  close_range(readiness_fd + 1, UINT_MAX, 0);
}

void reset_signals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // Ignored signals stay ignored across exec.
  for (const int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP}) {
    signal(number, SIG_DFL);
  }
}

[[noreturn]] void run_child(char* const* argv, int output, int readiness, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    _exit(127);  // The parent died before the line above.
  }
  arrange_descriptors(output, readiness);
  reset_signals();
  execv(argv[0], argv);
  report_failure(readiness_fd, strerrordesc_np(errno));
  _exit(127);
}

}  // namespace

child_process spawn(const child_spec& spec) {
  pipe_ends output = make_pipe();
  pipe_ends readiness = make_pipe();
  std::vector<char*> argv;
  for (const std::string& word : spec.command) {
    argv.push_back(const_cast<char*>(word.c_str()));  // execv() does not write to them.
  }
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    throw std::system_error(errno, std::generic_category(), "cannot create a process");
  }
  if (pid == 0) {
    run_child(argv.data(), output.write.get(), readiness.write.get(), parent);
  }
  setpgid(pid, pid);  // Here too, so that the group exists when either of the two goes on.
  return {pid, line_reader(std::move(output.read)), line_reader(std::move(readiness.read))};
}

bool collect(pid_t pid, int& status) {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != pid) {
    return false;
  }
  // While the leader is uncollected its group's number cannot belong to anybody else.
  signal_group(pid, SIGKILL);
  return waitpid(pid, &status, 0) == pid;
}

void signal_group(pid_t pid, int signal) noexcept {
  ::kill(-pid, signal);
}

std::string describe_exit(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status),
                       sigdescr_np(WTERMSIG(status)));
  }
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

}  // namespace eldr::cluster
