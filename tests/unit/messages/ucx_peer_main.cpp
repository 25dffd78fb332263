/// A node in a process of its own, for tests that end it: dials, sends one message, then waits to be
/// killed. Usage: messages_test_peer ADDRESS TOKEN shm|tcp

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <random>

#include "messages/ucx_transport.hpp"
#include "tests/unit/messages/world.hpp"

int main(int argc, char** argv) {
  using namespace eldr::messages;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // Never outlives the test.
  if (argc != 4) {
    return 2;
  }
  identity id;
  id.node = "child";
  id.role = "prefill";
  id.incarnation = std::random_device{}() + 1ull;
  ucx_options options;
  options.token = argv[2];
  options.shared_memory = std::string(argv[3]) == "shm";
  const auto net = make_ucx_transport(id, options);
  auto memory = net->allocate_region(64u << 20);
  memory[5] = std::byte{42};
  test::recorder seen;
  net->start(seen);
  net->dial(argv[1]);
  for (;;) {
    if (!seen.opens().empty() && seen.count() == 0) {
      net->send(seen.opens().front().session, test::bulk(1));
      while (seen.count() == 0) {
        ::usleep(1000);
      }
    }
    ::usleep(10'000);
  }
}
