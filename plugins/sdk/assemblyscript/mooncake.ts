// What eviction policies in AssemblyScript have in common. Copy this file and abi.ts beside yours, which begins
// with
//
//   export { mooncake_eviction_v1, policy_buffer } from "./mooncake";
//
// and exports policy_init, policy_events and policy_victims, or policy_score.
import { BUFFER_ADMIT, BUFFER_CONFIG, BUFFER_EVENTS, BUFFER_SCORES, BUFFER_VICTIMS, ANY_SEGMENT, ANY_TENANT, Config, Event } from "./abi";
export * from "./abi";

// alloc gives zeroed memory that is never freed. (Nothing is ever freed with --runtime stub, so all memory is
// fresh, and filling it would only cost time.) Allocate in policy_init: the host charges growth dearly later on.
export function alloc(bytes: usize): usize {
  return heap.alloc(bytes);
}

const buffers = alloc(6 * sizeof<usize>());

export function mooncake_eviction_v1(): i32 {
  return 0;
}

export function policy_buffer(kind: i32, size: i32): usize {
  if (<u32>kind > BUFFER_ADMIT) return 0;
  const at = buffers + <usize>kind * sizeof<usize>();
  if (!load<usize>(at)) store<usize>(at, alloc(<usize>size));
  return load<usize>(at);
}

// The address of what lies in a buffer.
export function buffer(kind: u32): usize {
  return load<usize>(buffers + <usize>kind * sizeof<usize>());
}

// @ts-ignore: decorator
@inline
export function config(): Config {
  return changetype<Config>(buffer(BUFFER_CONFIG));
}

// record is record i. A newer host may send longer ones.
// @ts-ignore: decorator
@inline
export function record(i: i32): Event {
  return changetype<Event>(buffer(BUFFER_EVENTS) + <usize>i * config().record_size);
}

// @ts-ignore: decorator
@inline
export function setVictim(i: i32, handle: u32): void {
  store<u32>(buffer(BUFFER_VICTIMS) + (<usize>i << 2), handle);
}

// @ts-ignore: decorator
@inline
export function setScore(i: i32, score: f64): void {
  store<f64>(buffer(BUFFER_SCORES) + (<usize>i << 3), score);
}

// wants tells whether an object may be named in answer to a question for a tenant and a segment.
// @ts-ignore: decorator
@inline
export function wants(needTenant: u32, needSegment: u32, tenant: u32, segment: u32): bool {
  return (needTenant == ANY_TENANT || needTenant == tenant) && (needSegment == ANY_SEGMENT || segment == 0 || needSegment == segment);
}

// param is the number that the params, a flat JSON object, have under key (ASCII), or otherwise.
export function param(key: string, otherwise: f64): f64 {
  let p = changetype<usize>(config()) + config().params_off;
  const end = p + config().params_len;
  for (; p < end; p++) {
    if (load<u8>(p) != 0x22) continue;
    let q = p + 1;
    let k = 0;
    while (q < end && k < key.length && load<u8>(q) == <u8>key.charCodeAt(k)) {
      q++;
      k++;
    }
    if (k < key.length || q >= end || load<u8>(q) != 0x22) continue;
    for (q++; q < end && (load<u8>(q) == 0x20 || load<u8>(q) == 0x3a); ) q++;
    let text = "";
    for (; q < end && load<u8>(q) != 0x2c && load<u8>(q) != 0x7d; q++) text += String.fromCharCode(load<u8>(q));
    const v = parseFloat(text);
    return isNaN(v) ? otherwise : v;
  }
  return otherwise;
}

// Lists holds doubly linked lists over the handles 1..max: 8 bytes a handle. A handle is on at most one; the caller
// knows on which. Front is the newest end by custom.
@final
export class Lists {
  private n: usize; // prev and next, u32 each; ends of lists are nodes too, behind the last handle

  constructor(private max: u32, lists: u32) {
    this.n = alloc((<usize>max + 1 + lists) << 3);
    for (let end = max + 1; end <= max + lists; end++) this.link(end, end);
  }

  private link(prev: u32, next: u32): void {
    store<u32>(this.n + (<usize>prev << 3), next, 4);
    store<u32>(this.n + (<usize>next << 3), prev);
  }

  // pushFront puts h, which is on no list, at the front.
  pushFront(list: u32, h: u32): void {
    const end = this.max + 1 + list;
    this.link(h, load<u32>(this.n + (<usize>end << 3), 4));
    this.link(end, h);
  }

  // remove takes h off its list.
  remove(h: u32): void {
    const at = this.n + (<usize>h << 3);
    this.link(load<u32>(at), load<u32>(at, 4));
  }

  // moveFront takes h off its list and puts it at the front of list.
  moveFront(list: u32, h: u32): void {
    this.remove(h);
    this.pushFront(list, h);
  }

  // back is the oldest handle, 0 if the list is empty.
  back(list: u32): u32 {
    return this.newer(this.max + 1 + list);
  }

  // newer is the neighbour of h towards the front, 0 at the front.
  newer(h: u32): u32 {
    const prev = load<u32>(this.n + (<usize>h << 3));
    return prev > this.max ? 0 : prev;
  }
}
