package config

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// watched runs Watch on the file and returns the channel of its calls.
func watched(t *testing.T, path string) <-chan struct{} {
	t.Helper()
	l, err := Load(Options{Schema: testSchema(), Path: path})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	calls, done := make(chan struct{}, 100), make(chan error, 1)
	go func() { done <- l.Watch(ctx, func() { calls <- struct{}{} }) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Watch did not end")
		}
	})
	return calls
}

func expectCall(t *testing.T, calls <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-calls:
	case <-time.After(10 * time.Second):
		t.Fatalf("no call after %s", what)
	}
}

func expectNone(t *testing.T, calls <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-calls:
		t.Fatalf("a call after %s", what)
	case <-time.After(3 * watchQuiet):
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatchSeesWhatEditorsDo(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "mooncake.json")
	write(t, path, `{}`)
	calls := watched(t, path)
	write(t, path, `{"tenant_id": "a"}`)
	expectCall(t, calls, "a write in place")
	for _, text := range []string{`{"tenant_id": "b"}`, `{"tenant_id": "c"}`} { // twice: the watch must survive the first
		tmp := filepath.Join(dir, ".mooncake.json.swp")
		write(t, tmp, text)
		must(t, os.Rename(tmp, path))
		expectCall(t, calls, "a rename over the file")
	}
	must(t, os.Rename(path, path+"~"))
	expectNone(t, calls, "moving the file away")
	write(t, path, `{"tenant_id": "d"}`)
	expectCall(t, calls, "a new file in its place")
	write(t, filepath.Join(dir, "other.json"), `{}`)
	write(t, path, `{"tenant_id": "d"}`)
	expectNone(t, calls, "another file, and the same content again")
	write(t, path, `{"tenant`)
	expectCall(t, calls, "a broken file: the load says what is wrong")
}

func TestWatchIsDebounced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mooncake.json")
	write(t, path, `{}`)
	calls := watched(t, path)
	for i := range 50 {
		write(t, path, `{"tenant_id": "`+string(rune('a'+i%26))+`"}`)
	}
	write(t, path, `{"tenant_id": "last"}`)
	expectCall(t, calls, "many writes")
	expectNone(t, calls, "the first call: the writes were one change")
}

// The kubelet mounts config maps as file -> ..data/file, ..data -> a folder with a time in its name, and
// updates them by renaming a new ..data over the old one.
func TestWatchFollowsKubernetesVolumes(t *testing.T) {
	dir := t.TempDir()
	version := func(name, text string) {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		write(t, filepath.Join(dir, name, "mooncake.json"), text)
		must(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	version("..2026_01", `{}`)
	path := filepath.Join(dir, "mooncake.json")
	must(t, os.Symlink(filepath.Join("..data", "mooncake.json"), path))
	calls := watched(t, path)
	version("..2026_02", `{"tenant_id": "a"}`)
	must(t, os.RemoveAll(filepath.Join(dir, "..2026_01")))
	expectCall(t, calls, "the first swap")
	version("..2026_03", `{"tenant_id": "b"}`)
	must(t, os.RemoveAll(filepath.Join(dir, "..2026_02")))
	expectCall(t, calls, "the second swap")
	version("..2026_04", `{"tenant_id": "b"}`)
	expectNone(t, calls, "a swap without a change")
}

func TestWatchFollowsASymlinkToAnotherFolder(t *testing.T) {
	real, links := t.TempDir(), t.TempDir()
	write(t, filepath.Join(real, "a.json"), `{}`)
	path := filepath.Join(links, "mooncake.json")
	must(t, os.Symlink(filepath.Join(real, "a.json"), path))
	calls := watched(t, path)
	write(t, filepath.Join(real, "a.json"), `{"tenant_id": "a"}`)
	expectCall(t, calls, "a write to the target")
}

// Nothing is lost between Load and Watch.
func TestWatchComparesWithWhatWasLoaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mooncake.json")
	write(t, path, `{}`)
	l, err := Load(Options{Schema: testSchema(), Path: path})
	must(t, err)
	write(t, path, `{"tenant_id": "a"}`)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	called := false
	must(t, l.Watch(ctx, func() { called = true; cancel() }))
	if !called {
		t.Error("the change before Watch was lost")
	}
}

func TestWatchWithoutAFile(t *testing.T) {
	l, err := Load(Options{Schema: testSchema()})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	must(t, l.Watch(ctx, func() { t.Error("called") }))
}

func TestWatchOfAFolderThatIsGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	must(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, "mooncake.json")
	write(t, path, `{}`)
	l, err := Load(Options{Schema: testSchema(), Path: path})
	must(t, err)
	must(t, os.RemoveAll(dir))
	if err := l.Watch(context.Background(), func() {}); err == nil || err.Error() != "config: watch "+path+": its folder cannot be watched" {
		t.Error(err)
	}
}
