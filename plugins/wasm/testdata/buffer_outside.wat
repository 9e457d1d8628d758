;; The events buffer is outside of memory.
(module
  (memory (export "memory") 4)
  (func (export "mooncake_eviction_v1") (result i32) (i32.const 0))
  (func (export "policy_buffer") (param $kind i32) (param $size i32) (result i32)
    (if (result i32) (i32.eq (local.get $kind) (i32.const 1)) (then (i32.const 0x7ffffff0)) (else (i32.const 1024))))
  (func (export "policy_init") (result i32) (i32.const 0))
  (func (export "policy_events") (param $n i32) (result i32) (i32.const 0))
  (func (export "policy_victims") (param $bytes i64) (param $max i32) (param $tenant i32) (param $segment i32) (param $flags i32) (result i32)
    (i32.const 0)))
