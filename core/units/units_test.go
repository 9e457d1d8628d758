package units

import (
	"os"
	"path/filepath"
	"testing"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]Size{
		"0": 0, "3355443200": 3355443200, "4GB": 4 * GiB, "4gb": 4 * GiB, "16 MB": 16 * MiB, "1.5gb": 3 * GiB / 2,
		"1TB": TiB, "512MiB": 512 * MiB, " 7k ": 7 * KiB, "12b": 12,
	} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "-5", "4XB", "GB", "1e30", "0x10", "true", "1..5GB", ".", "1.5", "9999999999TB", "101%", "-1%", "4 G B"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", in, got)
		}
	}
}

func TestSizeTextRoundTrip(t *testing.T) {
	for _, s := range []Size{0, 1, 1023, KiB, 1536 * MiB, 3355443200, 4 * GiB, 2 * TiB} {
		b, _ := s.MarshalText()
		var back Size
		if err := back.UnmarshalText(b); err != nil || back != s {
			t.Errorf("%d -> %s -> %d, %v", s, b, back, err)
		}
	}
}

func TestMemoryHonoursCgroups(t *testing.T) {
	for _, c := range []struct {
		name      string
		files     map[string]string
		limit     uint64
		available uint64
	}{
		{"no cgroup", nil, 1000 << 10, 500 << 10},
		{"v2 max", map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 1000 << 10, 500 << 10},
		{"v2 parent is tighter", map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "4096\n", "sys/fs/cgroup/a/b/memory.max": "8192\n"}, 4096, 4096},
		{"v1", map[string]string{"proc/self/cgroup": "3:cpu:/x\n4:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "12288\n"}, 12288, 12288},
		{"v2 partly used", map[string]string{
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "100000\n", "sys/fs/cgroup/a/memory.current": "70000\n",
			"sys/fs/cgroup/a/memory.stat": "anon 30000\nfile 40000\nshmem 20000\ninactive_file 15000\nactive_file 5000\n"}, 100000, 50000},
		{"v1 used up", map[string]string{
			"proc/self/cgroup": "4:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "12288\n",
			"sys/fs/cgroup/memory/x/memory.usage_in_bytes": "16384\n", "sys/fs/cgroup/memory/x/memory.stat": "total_inactive_file 0\n"}, 12288, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			c.files = merge(c.files, map[string]string{"proc/meminfo": "MemTotal:  1000 kB\nMemAvailable: 500 kB\n"})
			for p, s := range c.files {
				p = filepath.Join(root, p)
				if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(p, []byte(s), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := memoryLimit(root); err != nil || got != c.limit {
				t.Errorf("limit %d, %v; want %d", got, err, c.limit)
			}
			if got, err := availableMemory(root); err != nil || got != c.available {
				t.Errorf("available %d, %v; want %d", got, err, c.available)
			}
		})
	}
}

func merge(a, b map[string]string) map[string]string {
	if a == nil {
		a = map[string]string{}
	}
	for k, v := range b {
		a[k] = v
	}
	return a
}

func TestPercentIsAShareOfTheLimit(t *testing.T) {
	limit, err := MemoryLimit()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseSize("50%")
	if err != nil || uint64(got) > limit/2 || uint64(got) < limit/2-8192 {
		t.Fatalf("50%% of %d = %d, %v", limit, got, err)
	}
}

func TestPortRangeText(t *testing.T) {
	for in, want := range map[string]PortRange{"15000-17000": {15000, 17000}, "16001": {16001, 16001}, " 61000 - 65535 ": {61000, 65535}, "": {}} {
		var r PortRange
		if err := r.UnmarshalText([]byte(in)); err != nil || r != want {
			t.Errorf("%q = %v, %v; want %v", in, r, err, want)
		}
		b, _ := r.MarshalText()
		var back PortRange
		if err := back.UnmarshalText(b); err != nil || back != want {
			t.Errorf("%q -> %q -> %v, %v", in, b, back, err)
		}
	}
	for _, in := range []string{"80", "17000-15000", "40000-41000", "a-b", "15000-", "15000-70000", "1-2-3"} {
		if err := new(PortRange).UnmarshalText([]byte(in)); err == nil {
			t.Errorf("%q was accepted", in)
		}
	}
}
