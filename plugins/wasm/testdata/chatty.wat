;; policy_events logs 5 lines with control characters.
(module
  (import "env" "log" (func $log (param i32 i32 i32)))
  (memory (export "memory") 4)
  (data (i32.const 16) "I am \1b[31mred\0aand two lines")
  (func (export "mooncake_eviction_v1") (result i32) (i32.const 0))
  (func (export "policy_buffer") (param $kind i32) (param $size i32) (result i32)
    (i32.add (i32.const 1024) (i32.mul (local.get $kind) (i32.const 32768))))
  (func (export "policy_init") (result i32) (i32.const 0))
  (func (export "policy_events") (param $n i32) (result i32)
    (local $i i32)
    (loop $next
      (call $log (i32.const 1) (i32.const 16) (i32.const 27))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $i) (i32.const 5))))
    (i32.const 0))
  (func (export "policy_victims") (param $bytes i64) (param $max i32) (param $tenant i32) (param $segment i32) (param $flags i32) (result i32)
    (i32.const 0)))
