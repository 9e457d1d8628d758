// Least recently used, the end of a chain first: the same decisions as the built-in policy lru.
export { mooncake_eviction_v1, policy_buffer } from "./mooncake";
import * as mc from "./mooncake";

// States of a handle. IN_ORDER and SOFT are lists too, newest in front.
const ABSENT: u8 = 0;
const IN_ORDER: u8 = 1;
const SOFT: u8 = 2;
const HARD: u8 = 3;

// A question for one tenant or segment stops after so many others: the host helps itself, and a call has a budget.
const MAX_SKIPS = 200;

let max: u32;
let lists!: mc.Lists;
let state: usize; // a byte a handle
let place: usize; // tenant and segment, u32 each

export function policy_init(): i32 {
  max = mc.config().max_handles;
  lists = new mc.Lists(max, SOFT + 1);
  state = mc.alloc(<usize>max + 1);
  place = mc.alloc((<usize>max + 1) << 3);
  return 0;
}

function setPlace(e: mc.Event): void {
  store<u32>(place + (<usize>e.handle << 3), e.tenant);
  store<u32>(place + (<usize>e.handle << 3), e.segment, 4);
}

// become gives h another state and the place in front that goes with it.
function become(h: u32, to: u8): void {
  const from = load<u8>(state + h);
  if (from == IN_ORDER || from == SOFT) lists.remove(h);
  store<u8>(state + h, to);
  if (to == IN_ORDER || to == SOFT) lists.pushFront(to, h);
}

function apply(e: mc.Event): bool {
  const h = e.handle;
  if (h > max) return false;
  const s = load<u8>(state + h);
  const pinned: u8 = e.flags & <u8>mc.FLAG_HARD_PIN ? HARD : e.flags & <u8>mc.FLAG_SOFT_PIN ? SOFT : ABSENT;
  switch (<u32>e.kind) {
    case mc.ACCESS:
      if (s != ABSENT) become(h, s);
      break;
    case mc.INSERT:
    case mc.RESTORE:
      if (h == 0 || s != ABSENT) return false;
      setPlace(e);
      become(h, pinned ? pinned : IN_ORDER);
      break;
    case mc.REMOVE:
      become(h, ABSENT);
      break;
    case mc.REJECT: // it is in use: others first
      if (s == IN_ORDER) become(h, IN_ORDER);
      break;
    case mc.PIN:
      if (s != ABSENT && pinned) become(h, pinned);
      break;
    case mc.UNPIN:
      if (s == SOFT || s == HARD) become(h, IN_ORDER);
      break;
    case mc.MOVED:
      setPlace(e);
      break;
  }
  return true; // other kinds do not matter here, or are newer than this file
}

export function policy_events(n: i32): i32 {
  for (let i = 0; i < n; i++) if (!apply(mc.record(i))) return -1;
  return 0;
}

// name adds a list's handles, oldest first, to the n victims that there are.
function name(list: u32, n: i32, most: i32, tenant: u32, segment: u32): i32 {
  let skips = 0;
  for (let h = lists.back(list); h && n < most && skips < MAX_SKIPS; h = lists.newer(h)) {
    const at = place + (<usize>h << 3);
    if (mc.wants(tenant, segment, load<u32>(at), load<u32>(at, 4))) mc.setVictim(n++, h);
    else skips++;
  }
  return n;
}

export function policy_victims(bytes: i64, most: i32, tenant: u32, segment: u32, flags: u32): i32 {
  let n = name(IN_ORDER, 0, most, tenant, segment);
  if (flags & mc.NEED_SOFT_PINS) n = name(SOFT, n, most, tenant, segment);
  return n;
}
