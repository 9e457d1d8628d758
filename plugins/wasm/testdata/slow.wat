;; Makes the most of its fuel: its units take long, because loads that depend on each other
;; miss every cache. policy_stats has five million of them.
(module
  (memory (export "memory") 1000)
  (func (export "mooncake_eviction_v1") (result i32) (i32.const 0))
  (func (export "policy_buffer") (param $kind i32) (param $size i32) (result i32)
    (i32.add (i32.const 1024) (i32.mul (local.get $kind) (i32.const 32768))))
  (func $slow
    (local $at i32)
    (loop $again
      (local.set $at (i32.and (i32.const 0x3e3fff8)
        (i32.add (i32.mul (local.get $at) (i32.const 1103515245))
          (i32.add (i32.const 12345) (i32.load (local.get $at))))))
      (br $again)))
  (func (export "policy_init") (result i32) (i32.const 0))
  (func (export "policy_events") (param $n i32) (result i32) (call $slow) (i32.const 0))
  (func (export "policy_victims") (param $bytes i64) (param $max i32) (param $tenant i32) (param $segment i32) (param $flags i32) (result i32)
    (i32.const 0))
  (func (export "policy_stats") (result i32) (call $slow) (i32.const 0)))
