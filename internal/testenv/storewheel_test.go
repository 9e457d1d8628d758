package testenv

import "testing"

func TestSumMetric(t *testing.T) {
	const text = "# HELP a_total x\n# TYPE a_total counter\na_total 3\na_total_more 9\nb{x=\"1 2\"} 4\nb{x=\"3\"} 0.5 1700000000\n"
	for _, c := range []struct {
		name string
		want float64
		ok   bool
	}{{"a_total", 3, true}, {"b", 4.5, true}, {"a", 0, false}, {"c", 0, false}} {
		got, err := sumMetric(text, c.name)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%s: %v, %v; want %v", c.name, got, err, c.want)
		}
	}
}

func TestStoreVersionOrder(t *testing.T) {
	w := &StoreWheelEnv{Version: "0.3.10.post2"}
	for v, want := range map[string]bool{"0.3.7": true, "0.3.9": true, "0.3.10": true, "0.3.10.post2": true, "0.3.11": false, "0.3.13": false} {
		if w.AtLeast(v) != want {
			t.Errorf("0.3.10.post2 at least %s: %v, want %v", v, !want, want)
		}
	}
}
