//! Least recently used, the end of a chain first: the same decisions as the built-in policy lru.
mod mooncake;
use mooncake::*;

// States of a handle. IN_ORDER and SOFT are lists too, newest in front.
const ABSENT: u8 = 0;
const IN_ORDER: u8 = 1;
const SOFT: u8 = 2;
const HARD: u8 = 3;

/// A question for one tenant or segment stops after so many others: the host helps itself, and a call has a budget.
const MAX_SKIPS: usize = 200;

struct Lru {
    lists: Lists,
    state: Vec<u8>, // by handle
    place: Vec<(u32, u32)>, // tenant and segment by handle
}

impl Lru {
    /// Gives h another state and the place in front that goes with it. Not inlined because a loop pays, at each pass, for
    /// all the code in it.
    #[inline(never)]
    fn enter(&mut self, h: u32, to: u8) {
        let from = core::mem::replace(&mut self.state[h as usize], to);
        if from == IN_ORDER || from == SOFT {
            self.lists.remove(h);
        }
        if to == IN_ORDER || to == SOFT {
            self.lists.push_front(to as u32, h);
        }
    }

    fn name(&self, list: u32, need: &Need, out: &mut Victims) {
        let mut skips = 0;
        for h in self.lists.oldest_first(list) {
            if out.full() || skips >= MAX_SKIPS {
                return;
            }
            let (tenant, segment) = self.place[h as usize];
            if need.wants(tenant, segment) {
                out.push(h);
            } else {
                skips += 1;
            }
        }
    }
}

impl Policy for Lru {
    fn new(c: &Config) -> Result<Lru, i32> {
        let n = c.max_handles as usize + 1;
        Ok(Lru { lists: Lists::new(c.max_handles, SOFT as u32 + 1), state: vec![ABSENT; n], place: vec![(0, 0); n] })
    }

    fn apply(&mut self, e: &Event) -> Result<(), ()> {
        let h = e.handle;
        let s = *self.state.get(h as usize).ok_or(())?;
        let pinned = match e.flags as u32 {
            f if f & FLAG_HARD_PIN != 0 => HARD,
            f if f & FLAG_SOFT_PIN != 0 => SOFT,
            _ => ABSENT,
        };
        match e.kind as u32 {
            ACCESS if s != ABSENT => self.enter(h, s),
            INSERT | RESTORE => {
                if h == 0 || s != ABSENT {
                    return Err(());
                }
                self.place[h as usize] = (e.tenant, e.segment);
                self.enter(h, pinned.max(IN_ORDER));
            }
            REMOVE => self.enter(h, ABSENT),
            REJECT if s == IN_ORDER => self.enter(h, IN_ORDER), // it is in use: others first
            PIN if s != ABSENT && pinned != ABSENT => self.enter(h, pinned),
            UNPIN if s == SOFT || s == HARD => self.enter(h, IN_ORDER),
            MOVED => self.place[h as usize] = (e.tenant, e.segment),
            _ => {} // kinds that do not matter here, or are newer than this file
        }
        Ok(())
    }

    fn victims(&self, need: &Need, out: &mut Victims) {
        self.name(IN_ORDER as u32, need, out);
        if need.flags & NEED_SOFT_PINS != 0 {
            self.name(SOFT as u32, need, out);
        }
    }
}

policy!(Lru);
