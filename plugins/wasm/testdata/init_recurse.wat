;; policy_init calls itself without end: with the fuel of a start the stack is used up first.
(module
  (memory (export "memory") 4)
  (func (export "mooncake_eviction_v1") (result i32) (i32.const 0))
  (func (export "policy_buffer") (param $kind i32) (param $size i32) (result i32)
    (i32.add (i32.const 1024) (i32.mul (local.get $kind) (i32.const 32768))))
  (func $down (export "policy_init") (result i32)
    (i32.add (call $down) (i32.const 1)))
  (func (export "policy_events") (param $n i32) (result i32) (i32.const 0))
  (func (export "policy_victims") (param $bytes i64) (param $max i32) (param $tenant i32) (param $segment i32) (param $flags i32) (result i32)
    (i32.const 0)))
