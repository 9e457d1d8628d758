//! What eviction policies in Rust have in common. Copy this file and abi.rs beside yours:
//!
//!     mod mooncake;
//!     use mooncake::*;
//!     struct Mine { .. }
//!     impl Policy for Mine { .. }
//!     policy!(Mine);
//!
//! Allocate in `new` and not later: the host charges growth dearly. What is optional in the ABI (policy_admit,
//! policy_save, policy_load, policy_stats) a policy exports itself, using `records` and `buffer`.
#![allow(dead_code)]

include!("abi.rs");

/// A policy ranks the objects of one domain. The host calls it from one thread.
pub trait Policy: Sized {
    /// Makes an instance; an error code refuses.
    fn new(config: &Config) -> Result<Self, i32>;
    /// Is told what happened. Err is a fault: the host discards the instance.
    fn apply(&mut self, e: &Event) -> Result<(), ()>;
    /// Names victims, best first, until `out` is full. It changes nothing.
    fn victims(&self, need: &Need, out: &mut Victims);
}

/// The question for victims.
pub struct Need {
    pub bytes: i64,   // missing; 0 if the number of handles is what counts
    pub tenant: u32,  // only these, unless it is ANY_TENANT
    pub segment: u32, // only objects there, unless it is ANY_SEGMENT
    pub flags: u32,   // NEED_SOFT_PINS, NEED_EMERGENCY
}

impl Need {
    /// Whether an object of that tenant and segment may be named.
    pub fn wants(&self, tenant: u32, segment: u32) -> bool {
        (self.tenant == ANY_TENANT || self.tenant == tenant)
            && (self.segment == ANY_SEGMENT || segment == 0 || self.segment == segment)
    }
}

/// The answer.
pub struct Victims {
    to: *mut u32,
    n: usize,
    max: usize,
}

impl Victims {
    pub fn full(&self) -> bool {
        self.n >= self.max
    }

    /// Names the next best victim. Nothing is added when it is full.
    pub fn push(&mut self, handle: u32) {
        if self.n < self.max {
            unsafe { *self.to.add(self.n) = handle };
            self.n += 1;
        }
    }
}

impl Config {
    /// The parameters from the configuration, a JSON object or nothing.
    pub fn params(&self) -> &str {
        let at = (self as *const Config as *const u8).wrapping_add(self.params_off as usize);
        let text = unsafe { core::slice::from_raw_parts(at, self.params_len as usize) };
        core::str::from_utf8(text).unwrap_or("")
    }

    /// The number that the params, a flat JSON object, have under key, or otherwise.
    pub fn param(&self, key: &str, otherwise: f64) -> f64 {
        let mut parts = self.params().split('"');
        while let Some(part) = parts.next() {
            if part == key {
                let rest = parts.clone().next().unwrap_or("").trim_start();
                if let Some(value) = rest.strip_prefix(':') {
                    let value = value.split(|c| c == ',' || c == '}').next().unwrap_or("");
                    return value.trim().parse().unwrap_or(otherwise);
                }
            }
        }
        otherwise
    }
}

/// Doubly linked lists over the handles 1..=max: 8 bytes a handle. A handle is on at most one; the caller knows on
/// which. Front is the newest end by custom.
pub struct Lists {
    n: Vec<[u32; 2]>, // neighbours towards the front and the back; ends of lists are nodes behind the last handle
    max: u32,
}

impl Lists {
    /// Empty lists 0..lists.
    pub fn new(max: u32, lists: u32) -> Lists {
        let mut n = vec![[0; 2]; (max + 1 + lists) as usize];
        for end in max + 1..=max + lists {
            n[end as usize] = [end, end];
        }
        Lists { n, max }
    }

    /// Puts h, which is on no list, at the front.
    pub fn push_front(&mut self, list: u32, h: u32) {
        let end = self.max + 1 + list;
        let first = self.n[end as usize][1];
        self.n[h as usize] = [end, first];
        self.n[end as usize][1] = h;
        self.n[first as usize][0] = h;
    }

    /// Takes h off its list.
    pub fn remove(&mut self, h: u32) {
        let [prev, next] = self.n[h as usize];
        self.n[prev as usize][1] = next;
        self.n[next as usize][0] = prev;
    }

    /// Takes h off its list and puts it at the front of list.
    pub fn move_front(&mut self, list: u32, h: u32) {
        self.remove(h);
        self.push_front(list, h);
    }

    /// A list's handles, oldest first.
    pub fn oldest_first(&self, list: u32) -> impl Iterator<Item = u32> + '_ {
        let mut h = self.max + 1 + list;
        core::iter::from_fn(move || {
            h = self.n[h as usize][0];
            if h > self.max { None } else { Some(h) }
        })
    }
}

#[link(wasm_import_module = "env")]
extern "C" {
    #[link_name = "log"]
    fn host_log(level: i32, text: *const u8, len: i32);
}

/// Writes a line to the agent's log at LOG_DEBUG, LOG_INFO, LOG_WARN or LOG_ERROR. The host limits how many.
pub fn log(level: u32, text: &str) {
    unsafe { host_log(level as i32, text.as_ptr(), text.len() as i32) }
}

static mut BUFFERS: [(*mut u64, usize); 6] = [(core::ptr::null_mut(), 0); 6];

/// What lies in a buffer, BUFFER_STATE and so on; never freed.
pub fn buffer(kind: u32, size: usize) -> *mut u8 {
    if kind > BUFFER_ADMIT {
        return core::ptr::null_mut();
    }
    unsafe {
        let b = core::ptr::addr_of_mut!(BUFFERS[kind as usize]);
        if (*b).0.is_null() {
            *b = (vec![0u64; size / 8 + 1].leak().as_mut_ptr(), size);
        }
        (*b).0 as *mut u8
    }
}

pub fn config() -> &'static Config {
    unsafe { &*(buffer(BUFFER_CONFIG, 0) as *const Config) }
}

/// The n records in BUFFER_EVENTS. A newer host's are longer.
pub fn records(n: i32) -> impl Iterator<Item = &'static Event> {
    let (at, step) = (buffer(BUFFER_EVENTS, 0), config().record_size as usize);
    (0..n as usize).map(move |i| unsafe { &*(at.add(i * step) as *const Event) })
}

/// Room for max victims, for `policy!`.
pub fn answer(max: i32) -> Victims {
    Victims { to: buffer(BUFFER_VICTIMS, 0) as *mut u32, n: 0, max: max as usize }
}

pub fn named(v: &Victims) -> i32 {
    v.n as i32
}

/// Exports a type as the policy of the module.
#[macro_export]
macro_rules! policy {
    ($t:ty) => {
        static mut POLICY: Option<$t> = None;

        #[no_mangle]
        pub extern "C" fn mooncake_eviction_v1() -> i32 {
            0
        }

        #[no_mangle]
        pub extern "C" fn policy_buffer(kind: i32, size: i32) -> *mut u8 {
            $crate::mooncake::buffer(kind as u32, size as usize)
        }

        #[no_mangle]
        pub extern "C" fn policy_init() -> i32 {
            match <$t as $crate::mooncake::Policy>::new($crate::mooncake::config()) {
                Ok(p) => unsafe {
                    *core::ptr::addr_of_mut!(POLICY) = Some(p);
                    0
                },
                Err(code) => code,
            }
        }

        #[no_mangle]
        pub extern "C" fn policy_events(n: i32) -> i32 {
            if let Some(p) = unsafe { &mut *core::ptr::addr_of_mut!(POLICY) } {
                for e in $crate::mooncake::records(n) {
                    if $crate::mooncake::Policy::apply(p, e).is_err() {
                        return -1;
                    }
                }
            }
            0
        }

        #[no_mangle]
        pub extern "C" fn policy_victims(bytes: i64, max: i32, tenant: i32, segment: i32, flags: i32) -> i32 {
            let mut out = $crate::mooncake::answer(max);
            let (tenant, segment, flags) = (tenant as u32, segment as u32, flags as u32);
            if let Some(p) = unsafe { &*core::ptr::addr_of!(POLICY) } {
                let need = $crate::mooncake::Need { bytes, tenant, segment, flags };
                $crate::mooncake::Policy::victims(p, &need, &mut out);
            }
            $crate::mooncake::named(&out)
        }
    };
}
