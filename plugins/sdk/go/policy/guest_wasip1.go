package policy

import "unsafe"

// What lies in the buffers. They are never freed, so the host's addresses stay good.
var (
	buffers  [BufferAdmit + 1][]uint64
	instance Policy
	config   Config // the part that is needed later
)

//go:wasmimport env log
func hostLog(level int32, text unsafe.Pointer, n int32)

// Log writes a line to the agent's log at LogDebug, LogInfo, LogWarn or LogError. The host limits how many.
func Log(level int32, text string) {
	if text != "" {
		hostLog(level, unsafe.Pointer(unsafe.StringData(text)), int32(len(text)))
	}
}

// Buffer is what lies in a buffer, BufferState and so on; nil before the host asked for it.
func Buffer(kind int32) []byte {
	b := buffers[kind]
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(b))), len(b)*8)
}

// Text puts text into BufferState and returns its length, as policy_save and policy_stats have to.
func Text(text []byte) int32 { return int32(copy(Buffer(BufferState), text)) }

// Records are the n records in BufferEvents.
func Records(n int32) []Event {
	if config.RecordSize != RecordSize {
		shorten(n)
	}
	return unsafe.Slice((*Event)(unsafe.Pointer(unsafe.SliceData(buffers[BufferEvents]))), n)
}

// shorten moves the records of a newer host, which are longer, together.
//
//go:noinline
func shorten(n int32) {
	b, size := Buffer(BufferEvents), int32(config.RecordSize)
	for i := int32(1); i < n; i++ {
		copy(b[i*RecordSize:(i+1)*RecordSize], b[i*size:])
	}
}

//go:wasmexport mooncake_eviction_v1
func marker() int32 { return 0 }

//go:wasmexport policy_buffer
func policyBuffer(kind, size int32) unsafe.Pointer {
	if kind < 0 || int(kind) >= len(buffers) || size < 0 {
		return nil
	}
	if buffers[kind] == nil {
		buffers[kind] = make([]uint64, (size+7)/8+1)
	}
	return unsafe.Pointer(&buffers[kind][0])
}

//go:wasmexport policy_init
func policyInit() int32 {
	if makes == nil {
		Log(LogError, "no policy.Register in an init function")
		return 1
	}
	c := (*Config)(unsafe.Pointer(&buffers[BufferConfig][0]))
	config = *c
	p, err := makes(c)
	if err != nil {
		Log(LogError, err.Error())
		return 2
	}
	instance = p
	return 0
}

//go:wasmexport policy_events
func policyEvents(n int32) int32 {
	if err := instance.Apply(Records(n)); err != nil {
		Log(LogError, err.Error())
		return -1
	}
	return 0
}

//go:wasmexport policy_victims
func policyVictims(bytes int64, max, tenant, segment, flags int32) int32 {
	room := unsafe.Slice((*uint32)(unsafe.Pointer(&buffers[BufferVictims][0])), max)
	got := instance.Victims(room[:0], Need{bytes, int(max), uint32(tenant), uint32(segment), uint32(flags)})
	return int32(copy(room, got)) // itself, unless the policy made a slice of its own
}
