#include "cluster/supervisor.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "cluster/local_address.hpp"
#include "tests/unit/cluster/scratch_folder.hpp"

namespace eldr::cluster {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Long enough for any machine: no test waits for it unless it has failed.
constexpr milliseconds forever{30'000};

const std::string ready_line = "echo ready >&3; ";
const std::string until_term = "trap 'exit 0' TERM; echo ready >&3; while :; do sleep 0.02; done";

child_spec shell(const std::string& name, const std::string& script) {
  return {name, {"/bin/sh", "-c", script}};
}

/// A supervisor whose output can be read back.
struct supervised {
  unique_fd output{memfd_create("output", MFD_CLOEXEC)};
  supervisor nodes;

  explicit supervised(std::vector<child_spec> specs, std::uint32_t drain_ms = 30'000,
                      std::uint32_t grace_ms = 2000)
      : nodes({drain_ms, grace_ms, output.get(), false}) {
    nodes.start(specs);
  }

  std::string text() const {
    std::string bytes(1 << 20, '\0');
    const ssize_t length = pread(output.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
    return bytes;
  }
  std::string fault_of_start() {
    try {
      nodes.wait_ready(forever);
      return {};
    } catch (const supervisor_error& e) {
      return e.what();
    }
  }
};

TEST(supervisor, waits_for_all_and_stops_them) {
  supervised s({shell("a", until_term), shell("b", "echo hello; echo world >&2; " + until_term)});
  EXPECT_TRUE(s.nodes.wait_ready(forever));
  EXPECT_EQ(s.nodes.running(), 2u);
  s.nodes.stop();
  EXPECT_EQ(s.nodes.running(), 0u);
  EXPECT_THAT(s.nodes.losses(), ElementsAre());
  EXPECT_THAT(s.text(), AllOf(HasSubstr("hello\nworld\n"), HasSubstr("a is ready ("),
                              HasSubstr("b is ready (")));
}

TEST(supervisor, says_which_node_cannot_start_and_why) {
  supervised s(
      {shell("good", until_term), shell("bad", "echo 'error: port 7400 is in use' >&3; exit 1")});
  EXPECT_EQ(s.fault_of_start(), "node 'bad' cannot start: port 7400 is in use");
  s.nodes.abort();
  EXPECT_EQ(s.nodes.running(), 0u);
}

TEST(supervisor, quotes_the_last_words_of_a_node_that_just_died) {
  supervised s({shell("mute", "echo first; echo 'out of memory' >&2; exit 3")});
  EXPECT_EQ(s.fault_of_start(),
            "node 'mute' cannot start: it exited with code 3 before it was ready; its last line "
            "was: out of memory");
}

TEST(supervisor, names_the_signal_that_killed_a_starting_node) {
  supervised s({shell("crashed", "kill -SEGV $$")});
  EXPECT_THAT(s.fault_of_start(), HasSubstr("was killed by signal 11 (Segmentation fault)"));
}

TEST(supervisor, says_when_there_is_no_such_program) {
  supervised s({child_spec{"lost", {"/no/such/program"}}});
  EXPECT_EQ(s.fault_of_start(), "node 'lost' cannot start: No such file or directory");
}

TEST(supervisor, takes_a_node_that_was_ready_and_ended_for_failed) {
  supervised s({shell("brief", ready_line + "exit 0"), shell("slow", "exec sleep 1000")});
  EXPECT_EQ(s.fault_of_start(), "node 'brief' cannot start: it exited with code 0");
}

TEST(supervisor, gives_up_on_nodes_that_are_never_ready) {
  supervised s({shell("quick", until_term), shell("slow", "exec sleep 1000")});
  try {
    s.nodes.wait_ready(milliseconds(300));
    FAIL();
  } catch (const supervisor_error& e) {
    EXPECT_THAT(e.what(), HasSubstr("slow; their log lines"));
  }
}

TEST(supervisor, can_be_interrupted_while_nodes_start) {
  supervised s({shell("slow", "exec sleep 1000")});
  kill(getpid(), SIGINT);
  EXPECT_FALSE(s.nodes.wait_ready(forever));
  s.nodes.abort();
  EXPECT_EQ(s.nodes.running(), 0u);
  EXPECT_THAT(s.nodes.losses(), ElementsAre());
}

TEST(supervisor, drains_on_a_signal) {
  supervised s({shell(
      "a", "trap 'echo drained; exit 0' TERM; " + ready_line + "while :; do sleep 0.02; done")});
  ASSERT_TRUE(s.nodes.wait_ready(forever));
  kill(getpid(), SIGTERM);
  EXPECT_EQ(s.nodes.run_until_signal(), supervisor::cause::signal);
  s.nodes.stop();
  EXPECT_THAT(s.text(), HasSubstr("drained\n"));
  EXPECT_THAT(s.nodes.losses(), ElementsAre());
}

TEST(supervisor, goes_on_when_a_node_is_lost) {
  supervised s(
      {shell("dies", ready_line + "sleep 0.2; kill -KILL $$"), shell("lives", until_term)});
  ASSERT_TRUE(s.nodes.wait_ready(forever));
  // The signal comes only when the loss has been seen.
  const pid_t killer = fork();
  if (killer == 0) {
    for (int tries = 0; tries < 3000 && s.text().find("was killed") == std::string::npos; ++tries) {
      usleep(10'000);
    }
    kill(getppid(), SIGTERM);
    _exit(0);
  }
  EXPECT_EQ(s.nodes.run_until_signal(), supervisor::cause::signal);
  EXPECT_EQ(s.nodes.running(), 1u);
  s.nodes.stop();
  waitpid(killer, nullptr, 0);
  EXPECT_THAT(s.nodes.losses(), ElementsAre("node 'dies' was killed by signal 9 (Killed)"));
}

TEST(supervisor, returns_when_all_nodes_have_ended) {
  supervised s(
      {shell("a", ready_line + "sleep 0.2"), shell("b", ready_line + "sleep 0.2; exit 4")});
  ASSERT_TRUE(s.nodes.wait_ready(forever));
  EXPECT_EQ(s.nodes.run_until_signal(), supervisor::cause::all_ended);
  EXPECT_THAT(s.nodes.losses(), ElementsAre("node 'b' exited with code 4"));
}

TEST(supervisor, kills_what_does_not_drain) {
  supervised s({shell("deaf", "trap '' TERM; " + ready_line + "while :; do sleep 0.02; done")}, 50,
               50);
  ASSERT_TRUE(s.nodes.wait_ready(forever));
  s.nodes.stop();
  EXPECT_EQ(s.nodes.running(), 0u);
  EXPECT_THAT(s.text(), HasSubstr("killing deaf: not stopped within 100 ms"));
  EXPECT_THAT(s.nodes.losses(), ElementsAre("node 'deaf' was killed by signal 9 (Killed)"));
}

TEST(supervisor, kills_at_the_second_signal) {
  supervised s({shell("deaf", "trap '' TERM; " + ready_line + "while :; do sleep 0.02; done")},
               3'600'000);
  ASSERT_TRUE(s.nodes.wait_ready(forever));
  kill(getpid(), SIGINT);
  s.nodes.run_until_signal();
  kill(getpid(), SIGINT);
  s.nodes.stop();
  EXPECT_THAT(s.text(), HasSubstr("killing deaf: a second signal"));
}

TEST(supervisor, is_not_held_up_by_output_that_nobody_reads) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(pipe2(pipe.data(), O_CLOEXEC), 0);
  const unique_fd read_end(pipe[0]);
  const unique_fd write_end(pipe[1]);
  supervisor nodes({1000, 1000, write_end.get(), false});
  const std::vector<child_spec> specs{
      shell("loud", "yes 'a line of output' | head -n 100000; " + until_term)};
  nodes.start(specs);
  EXPECT_TRUE(nodes.wait_ready(forever));
}

/// A pipe in the file system whose far ends are held by the processes under test.
class witness {
 public:
  witness() {
    mkfifo(path().c_str(), 0600);
    fd_.reset(open(path().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  }
  std::filesystem::path path() const { return folder_ / "witness"; }
  /// Waits until a first line has been written to it.
  bool heard() const { return wait_for(POLLIN); }
  /// Waits until no process holds it any more.
  bool released() const {
    char byte = 0;
    while (wait_for(POLLIN | POLLHUP)) {
      if (::read(fd_.get(), &byte, 1) == 0) {
        return true;
      }
    }
    return false;
  }

 private:
  bool wait_for(short events) const {
    pollfd entry{fd_.get(), events, 0};
    return ::poll(&entry, 1, static_cast<int>(forever.count())) == 1;
  }

  scratch_folder folder_;
  unique_fd fd_;
};

TEST(supervisor, leaves_no_grandchildren) {
  const witness w;
  {
    supervised s({shell("parent", "sleep 1000 > '" + w.path().string() + "' & echo up >> '" +
                                      w.path().string() + "'; " + until_term)});
    ASSERT_TRUE(s.nodes.wait_ready(forever));
    ASSERT_TRUE(w.heard());
  }
  EXPECT_TRUE(w.released());
}

TEST(supervisor, takes_its_children_with_it_when_it_is_killed) {
  const witness w;
  const pid_t starter = fork();
  if (starter == 0) {
    supervised s({shell("orphan", "exec > '" + w.path().string() + "'; echo up; exec sleep 1000")});
    s.nodes.wait_ready(forever);
    _exit(0);
  }
  ASSERT_TRUE(w.heard());
  kill(starter, SIGKILL);
  waitpid(starter, nullptr, 0);
  EXPECT_TRUE(w.released());
}

TEST(supervisor, gives_children_a_clean_start) {
  // Nothing but the four descriptors, no blocked or ignored signals, a group of its own.
  supervised s({shell("child",
                      "test $(ls /proc/$$/fd | grep -c '^[0-9]$') = 4 && "
                      "grep -q 'SigBlk:.0*$' /proc/$$/status && "
                      "test $(cut -d' ' -f5 /proc/$$/stat) = $$ && "
                      "! read line && " +
                          until_term)});
  EXPECT_TRUE(s.nodes.wait_ready(forever));
}

TEST(supervisor, hears_of_ends_even_where_they_were_ignored) {
  signal(SIGCHLD, SIG_IGN);
  supervised s({shell("a", ready_line + "sleep 0.2; exit 5")});
  ASSERT_TRUE(s.nodes.wait_ready(forever));
  EXPECT_EQ(s.nodes.run_until_signal(), supervisor::cause::all_ended);
  EXPECT_THAT(s.nodes.losses(), ElementsAre("node 'a' exited with code 5"));
}

TEST(local_address, tells_this_machine_from_others) {
  EXPECT_TRUE(is_local_host("127.0.0.1"));
  EXPECT_TRUE(is_local_host("localhost"));
  EXPECT_FALSE(is_local_host("203.0.113.7"));  // Reserved for documentation.
  EXPECT_FALSE(is_local_host("no-such-host.invalid"));
}

TEST(supervisor, restores_the_signal_mask) {
  sigset_t before;
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  {
    supervised s({shell("a", until_term)});
    s.nodes.wait_ready(forever);
    kill(getpid(), SIGTERM);  // Not taken: must not kill the test afterwards.
  }
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

}  // namespace
}  // namespace eldr::cluster
