@0xd1b2f0a6c35e4e07;

# The protocol between ELDR nodes. Every frame on a session holds one `Message`.
#
# Rules that hold for all messages (docs/protocol.md tells why):
#  - Frames of one session arrive in order within their traffic class and at most once. Messages
#    marked [reserved] travel in a class of their own that bulk traffic cannot hold up, so they may
#    overtake bulk messages that were sent earlier.
#  - A request is named by `RequestId`; each try at it by an `attempt` number that only grows. Every
#    message about a request carries both. Within an attempt nothing is sent twice.
#  - Schemas evolve by appending ordinals; unknown union members are ignored by the receiver.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("eldr::wire");

struct RequestId {
  gateway @0 :UInt64;   # Incarnation of the gateway that owns the request.
  counter @1 :UInt64;   # Counts that gateway's requests from 1.
}

struct Attempt {
  request @0 :RequestId;
  number  @1 :UInt32;   # 1 for the first; a higher number ends every lower one.
}

enum ActorKind {
  node           @0;
  gateway        @1;   # Finds the `request` actor by its RequestId.
  router         @2;
  prefill        @3;
  decoder        @4;
  client         @5;   # A command attached to the cluster.
}

enum Phase {
  route   @0;   # At the router, before a worker was chosen.
  prefill @1;
  decode  @2;
}

enum FinishReason {
  none       @0;
  eos        @1;   # The model produced an end token.
  length     @2;   # maxTokens were produced.
  cancelled  @3;
  error      @4;
}

enum FailReason {
  none          @0;
  overloaded    @1;   # A bound was reached; try later (`retryAfterMs`).
  noWorker      @2;   # No live worker fits.
  tooLarge      @3;   # Needs more blocks than the pool has, or is longer than the context.
  invalid       @4;   # The request can never succeed.
  peerLost      @5;   # A session that the attempt depended on ended.
  pullFailed    @6;   # The KV blocks could not be read.
  leaseExpired  @7;   # `Released{ok = false}`.
  engine        @8;   # The engine failed in a step.
  deadline      @9;
  cancelled     @10;
  draining      @11;
  gap           @12;  # Tokens were missing in the stream.
  fingerprint   @13;  # No worker with the numerics of the earlier attempts.
}

struct Sampling {
  maxTokens   @0 :UInt32;    # Tokens still to generate in this attempt, the first one included.
  temperature @1 :Float32;   # 0: greedy.
  topK        @2 :UInt32;    # 0: off.
  topP        @3 :Float32;   # 1: off.
  seed        @4 :UInt64;
}

struct KvRef {
  # Names leased KV blocks. Never addresses or keys: the puller resolves it against the region
  # descriptor of its current session with that node.
  node        @0 :Text;
  incarnation @1 :UInt64;
  lease       @2 :UInt64;
  region      @3 :UInt32;
  blocks      @4 :List(UInt32);
  tokens      @5 :UInt32;     # KV entries that are valid, from position 0.
  checksums   @6 :List(UInt64);  # One per block, or empty.
}

# --- client <-> gateway -------------------------------------------------------------------------

struct Generate {
  # A client asks for a completion. Give text or ids, not both.
  clientRequest @0 :UInt64;   # Chosen by the client, echoed in `Generated`.
  text          @1 :Text;
  ids           @2 :List(UInt32);
  sampling      @3 :Sampling;
  hasSeed       @4 :Bool;     # Without a seed the gateway draws one, once.
  label         @5 :Text;     # Domain of the prompt, if known.
  record        @6 :Bool;     # Return the experts that every token chose. The prompt is then run
                              # whole, without the prefix cache.
}

struct Generated {
  # A piece of the answer. The last one has `finish` set.
  clientRequest @0 :UInt64;
  position      @1 :UInt32;         # Of ids[0] among the generated tokens.
  ids           @2 :List(UInt32);
  text          @3 :Text;           # Whole UTF-8 characters only.
  finish        @4 :FinishReason;
  failReason    @5 :FailReason;
  error         @6 :Text;           # For people: what happened and what to do.
  retryAfterMs  @7 :UInt32;
  prefillNode   @8 :Text;           # Filled in with `finish`.
  decodeNode    @9 :Text;
  attempts      @10 :UInt32;
  promptTokens  @11 :UInt32;
  ttftUs        @12 :UInt64;        # Arrival at the gateway to the first token.
  totalUs       @13 :UInt64;        # Arrival at the gateway to the last token.
  seed          @14 :UInt64;
  cachedTokens  @15 :UInt32;        # Prompt tokens found in the prefix cache, first attempt.
  choices       @16 :Data;          # If recorded: uint16 little-endian [tokens run][layers][k].
}

struct Abort {
  # [reserved] The client no longer wants the answer.
  clientRequest @0 :UInt64;
}

# --- request -> router -> workers ---------------------------------------------------------------

struct Submit {
  attempt     @0 :Attempt;
  tokens      @1 :List(UInt32);   # Prompt, and on a retry the tokens delivered so far.
  sampling    @2 :Sampling;
  generated   @3 :UInt32;         # How many of `tokens` are generated ones.
  avoid       @4 :List(Text);     # Nodes under suspicion.
  fingerprint @5 :UInt64;         # 0: any; else only workers with this numerics fingerprint.
  label       @6 :Text;
  record      @7 :Bool;
}

struct Placed {
  # [reserved] Router to request, before the task goes out: what the attempt now depends on.
  attempt     @0 :Attempt;
  phase       @1 :Phase;
  node        @2 :Text;
  incarnation @3 :UInt64;
  fingerprint @4 :UInt64;
}

struct PrefillTask {
  taskNumber     @0 :UInt64;   # Counts the router's tasks to this worker in this session, from 1.
  attempt        @1 :Attempt;
  tokens         @2 :List(UInt32);
  sampling       @3 :Sampling;
  generated      @4 :UInt32;
  label          @5 :Text;
  avoid          @6 :List(Text);   # From Submit, for the choice of the decode worker.
  record         @7 :Bool;
}

struct Handoff {
  # Prefill to the router that sent the task: the prompt is done, decode can be placed. The first
  # token has already gone to the request. Carries all that DecodeTask needs.
  attempt        @0 :Attempt;
  kv             @1 :KvRef;
  signature      @2 :Data;      # uint16 little-endian [layers][experts], block sums.
  firstToken     @3 :UInt32;
  sampling       @4 :Sampling;  # maxTokens counts the first token.
  tokenCount     @5 :UInt32;    # Tokens of the prompt (and of the resumed stream).
  generated      @6 :UInt32;    # Position of firstToken among the generated tokens.
  label          @7 :Text;
  fingerprint    @8 :UInt64;    # Of the prefill worker; the decode worker's must be equal.
  avoid          @9 :List(Text);
  record         @10 :Bool;
}

struct DecodeTask {
  taskNumber     @0 :UInt64;
  attempt        @1 :Attempt;
  kv             @2 :KvRef;
  firstToken     @3 :UInt32;
  sampling       @4 :Sampling;
  generated      @5 :UInt32;    # Position of firstToken among the generated tokens.
  record         @6 :Bool;
}

struct Tokens {
  # Prefill (first token) and decoder (which repeats it) to the request.
  attempt      @0 :Attempt;
  position     @1 :UInt32;
  ids          @2 :List(UInt32);
  finish       @3 :FinishReason;
  cachedTokens @4 :UInt32;      # From prefill: prompt tokens that the prefix cache had.
  choices      @5 :Data;        # If recorded: of the tokens that were run to get these ids.
}

struct Failed {
  # [reserved] A worker or router gives an attempt up.
  attempt      @0 :Attempt;
  phase        @1 :Phase;
  reason       @2 :FailReason;
  detail       @3 :Text;
  suspect      @4 :Text;        # Node to avoid in the next attempt, if any.
  retryAfterMs @5 :UInt32;
}

struct Cancel {
  # [reserved] Ends this attempt and all lower ones. May overtake the task that it cancels.
  attempt @0 :Attempt;
}

struct Release {
  # [reserved] Decoder to prefill: the blocks were read (or will not be: abandon).
  attempt @0 :Attempt;
  lease   @1 :UInt64;
  abandon @2 :Bool;
}

struct Released {
  # [reserved] Answer to Release without abandon. ok only if the lease had not run out.
  attempt @0 :Attempt;
  lease   @1 :UInt64;
  ok      @2 :Bool;
}

struct QueueDepth {
  # Worker to each router: on change (coalesced) and when a session opens.
  waiting        @0 :UInt32;
  running        @1 :UInt32;
  lastProcessed  @2 :UInt64;          # Highest task number of this router dealt with, refusals too.
  ended          @3 :List(Attempt);   # Tasks of this router that ended since the last report.
  freeBlocks     @4 :UInt32;          # Free or evictable.
  totalBlocks    @5 :UInt32;
  draining       @6 :Bool;
  slot           @7 :Int32 = -1;      # Decode: the centroid slot it keeps; -1: none.
  stepUs         @8 :UInt32;          # Last step's time.
  batch          @9 :UInt32;          # Last step's sequences.
  distinctExperts @10 :Float32;       # Last step's mean over layers.
  layers         @11 :UInt32;         # Of the model.
}

# --- nodes --------------------------------------------------------------------------------------

struct Heartbeat {
  # [reserved]
  tick @0 :UInt64;
}

struct ClusterView {
  # Router to gateways, for people and for choosing; ends nothing by itself.
  workers @0 :List(WorkerView);
  ready   @1 :Bool;     # The router has left its settling time.
}

struct WorkerView {
  node        @0 :Text;
  role        @1 :Text;
  incarnation @2 :UInt64;
  fingerprint @3 :UInt64;
  depth       @4 :UInt32;
  totalBlocks @5 :UInt32;
  draining    @6 :Bool;
  slot        @7 :Int32 = -1;
}

struct StatusRequest {
  ticket @0 :UInt64;
}

struct NamedCount {
  name  @0 :Text;
  value @1 :Int64;
}

struct Status {
  # A node's answer to StatusRequest. Counts are instantaneous unless named *_total.
  ticket      @0 :UInt64;
  node        @1 :Text;
  role        @2 :Text;
  incarnation @3 :UInt64;
  ready       @4 :Bool;
  draining    @5 :Bool;
  uptimeMs    @6 :UInt64;
  backend     @7 :Text;
  fingerprint @8 :UInt64;
  peers       @9 :List(Text);
  counts      @10 :List(NamedCount);
  workers     @11 :List(WorkerView);   # Router only: its worker table.
}

struct Shutdown {
  # Finish what runs, take nothing new, then exit.
  drainMs @0 :UInt32;
}

struct SetPolicy {
  # Client to router: change how decode workers are chosen. Absent parts stay as they are.
  ticket        @0 :UInt64;
  policy        @1 :Text;            # Empty: the same policy.
  tau           @2 :Float32 = -1;    # Negative: the same.
  candidatesMin @3 :UInt32 = 0;      # 0: the same.
  artifactPath  @4 :Text;            # A file that the router's process can read. Empty: the same.
}

struct PolicySet {
  # Answer: what is in force now, or why nothing changed.
  ticket        @0 :UInt64;
  error         @1 :Text;
  policy        @2 :Text;
  tau           @3 :Float32;
  candidatesMin @4 :UInt32;
  artifact      @5 :Text;            # For people: where it came from, its slots; empty: none.
}

struct Explain {
  # Client to router: how was a request placed? counter 0: the latest one.
  ticket  @0 :UInt64;
  counter @1 :UInt64;
}

struct Explained {
  ticket     @0 :UInt64;
  found      @1 :Bool;
  attempt    @2 :Attempt;
  policy     @3 :Text;
  why        @4 :Text;
  decisionNs @5 :UInt64;
  chosen     @6 :Text;
  tokens     @7 :UInt32;
  label      @8 :Text;
  candidates @9 :List(Candidate);
  ageMs      @10 :UInt64;

  struct Candidate {
    node       @0 :Text;
    slot       @1 :Int32;
    load       @2 :UInt32;
    similarity @3 :Float32;
    cost       @4 :Float32;
    inBand     @5 :Bool;
  }
}

struct Message {
  to @0 :ActorKind;
  union {
    generate      @1 :Generate;
    generated     @2 :Generated;
    abort         @3 :Abort;
    submit        @4 :Submit;
    placed        @5 :Placed;
    prefillTask   @6 :PrefillTask;
    handoff       @7 :Handoff;
    decodeTask    @8 :DecodeTask;
    tokens        @9 :Tokens;
    failed        @10 :Failed;
    cancel        @11 :Cancel;
    release       @12 :Release;
    released      @13 :Released;
    queueDepth    @14 :QueueDepth;
    heartbeat     @15 :Heartbeat;
    clusterView   @16 :ClusterView;
    statusRequest @17 :StatusRequest;
    status        @18 :Status;
    shutdown      @19 :Shutdown;
    setPolicy     @20 :SetPolicy;
    policySet     @21 :PolicySet;
    explain       @22 :Explain;
    explained     @23 :Explained;
  }
}
