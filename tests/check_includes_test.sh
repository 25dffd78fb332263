#!/bin/sh
# Feeds check_includes.sh what it must refuse and what it must accept.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
for folder in messages gpu fit actors cluster apps; do mkdir "$tree/$folder"; done
failures=0

# expect accepted|refused FOLDER LINE...: a file of these lines.
expect() {
  wanted=$1 folder=$2
  shift 2
  printf '%s\n' "$@" > "$tree/$folder/sample.hpp"
  if "$here/check_includes.sh" "$tree" 2> "$tree/said"; then got=accepted; else got=refused; fi
  if [ $got = refused ] && ! grep -q "^$folder/sample.hpp:[0-9]*: " "$tree/said"; then got=broken; fi
  if [ $got != "$wanted" ]; then
    echo "$got, but must be $wanted: $folder: $*"
    cat "$tree/said"
    failures=$((failures + 1))
  fi
  rm "$tree/$folder/sample.hpp"
}

expect accepted apps '#include "cluster/node.hpp"' '#include "gpu/engine.hpp"' '#include <map>'
expect accepted cluster '#include "actors/common/core.hpp"'
expect accepted actors '#include "gpu/engine.hpp"' '#include "fit/artifact.hpp"'
expect accepted fit '  #  include "messages/frame.hpp"'
expect refused messages '#include "gpu/engine.hpp"'
expect refused messages '#include "fit/artifact.hpp"'
expect refused gpu '#include "messages/frame.hpp"'
expect refused gpu '#include "actors/common/core.hpp"'
expect refused fit '#include "gpu/engine.hpp"'
expect refused actors '' '  # include "cluster/node.hpp"'
expect refused cluster '#include "apps/commands.hpp"'
expect refused cluster '#include "node.hpp"'
expect refused cluster '#include "../gpu/engine.hpp"'
expect refused cluster '#include <gpu/engine.hpp>'

expect accepted cluster 'auto now = std::chrono::steady_clock::now();'
expect refused actors 'auto now = std::chrono::steady_clock::now();'
expect refused actors '  auto now = time(nullptr);'
expect refused actors '  gettimeofday(&now, nullptr);'
expect refused actors '  ::clock_gettime(CLOCK_MONOTONIC, &now);'
expect refused actors '  std::random_device seed;'
expect refused actors '  return rand() % 6;'
expect refused actors '  return ::random();'
expect refused actors '  auto used = std::clock();'
expect refused actors '  std::thread worker;'
expect refused actors '  system.spawn<caf::detached>(run);'
expect refused actors '  std::this_thread::sleep_for(pause);'
expect refused actors '  std::unordered_map<int, int> counts;'
expect refused actors '  std::set<const peer*> peers;'
expect refused actors '  std::map<caf::actor, int> load;'
expect refused actors '  static int calls = 0;'
expect refused actors '  static std::map<int, int> cache;'
expect refused actors 'int counter = 0;'
expect refused actors 'std::vector<int> log_lines;'
expect refused actors 'inline std::atomic<int> total{0};'
expect refused actors '  thread_local int depth = 0;'

expect accepted actors 'static int twice(int x) { return 2 * x; }'
expect accepted actors '  static bool alive(state s);'
expect accepted actors '  static constexpr int limit = 5;' 'constexpr int other = 6;' \
  'const std::string name = "x";' 'inline constexpr int third{7};'
expect accepted actors 'namespace eldr {' 'struct a;' 'using b = int;' 'enum class c : int { d };' \
  'struct e {' '  int f = 0;' '};' '}  // namespace eldr'
expect accepted actors '// Not a steady_clock, and no std::thread.' 'throw fault("rand() failed");'
expect accepted actors '/* a std::thread' 'and a steady_clock' '*/'
expect accepted actors '  virtual std::uint64_t random() = 0;' '  return env_.random();'
expect accepted actors '  env.time(now);' '  operand(x);' '  start_clock(x);' '  std::map<int, char*> m;'
expect accepted actors '  std::unordered_set<int> seen;  // allowed: only asked for membership'
expect refused actors '  std::unordered_set<int> seen;  // allowed:'

[ "$failures" -eq 0 ] || exit 1
echo "all samples were judged as they should be"
