#include "cluster/signal_inbox.hpp"

#include <sys/signalfd.h>

#include <cerrno>
#include <system_error>

namespace eldr::cluster {
namespace {

bool ignored(int number) {
  struct sigaction action {};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

signal_inbox::signal_inbox() {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGCHLD);
  sigaddset(&wanted, SIGTERM);
  // A blocked signal would be queued even though it is ignored.
  for (const int number : {SIGINT, SIGHUP}) {
    if (!ignored(number)) {
      sigaddset(&wanted, number);
    }
  }
  fd_.reset(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) {
    throw std::system_error(errno, std::generic_category(), "cannot receive signals");
  }
  // Were it ignored, the kernel would throw the children's exit codes away.
  signal(SIGCHLD, SIG_DFL);
  pthread_sigmask(SIG_BLOCK, &wanted, &previous_);
}

signal_inbox::~signal_inbox() {
  while (take() != 0) {
  }
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

int signal_inbox::take() noexcept {
  signalfd_siginfo info{};
  return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                              : 0;
}

}  // namespace eldr::cluster
