package bench

import (
	"testing"
	"time"
)

func TestKVOptions(t *testing.T) {
	good := KVOptions{Op: "get", Size: 1, Batch: 1, Objects: 1, Duration: time.Second}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*KVOptions){
		"op":       func(o *KVOptions) { o.Op = "gett" },
		"size":     func(o *KVOptions) { o.Size = 0 },
		"batch":    func(o *KVOptions) { o.Batch = 0 },
		"objects":  func(o *KVOptions) { o.Objects = 0 },
		"duration": func(o *KVOptions) { o.Duration = 0 },
		"buffers":  func(o *KVOptions) { o.Op, o.Batch = "get-buffer", 2 },
	} {
		o := good
		if change(&o); o.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
