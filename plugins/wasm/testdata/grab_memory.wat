;; Each policy_events takes all the memory there is and writes to its end; the answer tells nothing of it.
(module
  (memory (export "memory") 4)
  (func (export "mooncake_eviction_v1") (result i32) (i32.const 0))
  (func (export "policy_buffer") (param $kind i32) (param $size i32) (result i32)
    (i32.add (i32.const 1024) (i32.mul (local.get $kind) (i32.const 32768))))
  (func (export "policy_init") (result i32) (i32.const 0))
  (func (export "policy_events") (param $n i32) (result i32)
    (block $full
      (loop $more
        (br_if $full (i32.eq (memory.grow (i32.const 1)) (i32.const -1)))
        (i32.store (i32.sub (i32.mul (memory.size) (i32.const 65536)) (i32.const 4)) (i32.const 1))
        (br $more)))
    (i32.const 0))
  (func (export "policy_victims") (param $bytes i64) (param $max i32) (param $tenant i32) (param $segment i32) (param $flags i32) (result i32)
    (i32.const 0)))
