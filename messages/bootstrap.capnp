@0xc6f0d6a7e1a94b12;

# What two nodes tell each other over the bootstrap TCP connection before a session exists. Each
# message follows the fixed preamble (magic, protocol version, token digest, length) that
# messages/bootstrap.hpp describes; the preamble is checked before a byte of these is parsed.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("eldr::wire");

struct Region {
  # Memory that peers may read one-sided.
  id      @0 :UInt32;
  bytes   @1 :UInt64;
  address @2 :UInt64;   # Used by the transport only; never leaves it.
  key     @3 :Data;     # Packed remote key, likewise.
}

struct Identity {
  node          @0 :Text;
  role          @1 :Text;
  incarnation   @2 :UInt64;
  fingerprint   @3 :UInt64;   # Numerics; 0 for nodes without an engine.
  layout        @4 :UInt64;   # Hash of model geometry, KV layout and block size; 0 likewise.
  address       @5 :Text;     # Where the node listens; empty for clients.
  regions       @6 :List(Region);
  workerAddress @7 :Data;     # UCX worker address.
}

struct Hello {
  # The dialer's first message.
  identity @0 :Identity;
  nonce    @1 :UInt64;        # Dialer's half of the session's nonce.
  frameBytesMax @2 :UInt32;   # The smaller of both ends' holds, here and for credits.
  creditFrames  @3 :UInt32;
}

struct Welcome {
  # The listener's answer.
  identity @0 :Identity;
  nonce    @1 :UInt64;        # Listener's half.
  refused  @2 :Text;          # Not empty: why there will be no session.
  frameBytesMax @3 :UInt32;
  creditFrames  @4 :UInt32;
}
