;; policy_events calls itself without end. A frame costs so many instructions that fuel is used up before the stack.
(module
  (memory (export "memory") 4)
  (func (export "mooncake_eviction_v1") (result i32) (i32.const 0))
  (func (export "policy_buffer") (param $kind i32) (param $size i32) (result i32)
    (i32.add (i32.const 1024) (i32.mul (local.get $kind) (i32.const 32768))))
  (func (export "policy_init") (result i32) (i32.const 0))
  (func $down (export "policy_events") (param $n i32) (result i32)
    nop nop nop nop nop nop nop nop nop nop nop nop nop nop nop nop nop nop nop nop
    (i32.add (call $down (i32.add (local.get $n) (i32.const 1))) (i32.const 1)))
  (func (export "policy_victims") (param $bytes i64) (param $max i32) (param $tenant i32) (param $segment i32) (param $flags i32) (result i32)
    (i32.const 0)))
