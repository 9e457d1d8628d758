package main

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// The binary without RDMA needs nothing of the host: it runs in an empty folder.
func TestStaticBinaryNeedsNothing(t *testing.T) {
	root := t.TempDir()
	bin := filepath.Join(root, "mooncake-static")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-tags", "noverbs", "-o", bin, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	if interp, libs := needs(t, bin); interp != "" || len(libs) > 0 {
		t.Errorf("it needs %q and %q", interp, libs)
	}
	checkVerbs(t, root, "/mooncake-static", "not in this build")
}

// The binary with RDMA starts where there is nothing but glibc, and says what is missing.
func TestDynamicBinaryStartsWithoutVerbs(t *testing.T) {
	bin := testenv.Mooncake(t)
	interp, libs := needs(t, bin)
	if interp == "" {
		t.Fatal("the binary is static: it cannot load libibverbs")
	}
	root := t.TempDir()
	copyTo(t, bin, filepath.Join(root, "mooncake"))
	copyTo(t, interp, filepath.Join(root, interp))
	for _, lib := range append(libs, "libc.so.6") {
		copyTo(t, libraryPath(t, bin, lib), filepath.Join(root, "lib", lib))
	}
	checkVerbs(t, root, "/mooncake", "libibverbs.so.1 not found")
}

// checkVerbs runs "plugins ls" with root as the root of the file system.
func checkVerbs(t *testing.T, root, bin, want string) {
	t.Helper()
	cmd := exec.Command(bin, "plugins", "ls")
	cmd.Dir = "/"
	cmd.Env = []string{"LD_LIBRARY_PATH=/lib"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	if os.Geteuid() != 0 { // as root of a user namespace
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v in an empty root: %v\n%s", cmd.Args, err, errOut.Bytes())
	}
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "verbs") {
			if !strings.Contains(line, want) {
				t.Errorf("plugins ls: %q, want %q", line, want)
			}
			return
		}
	}
	t.Errorf("plugins ls does not list verbs:\n%s", out.String())
}

// needs returns a program's loader and libraries.
func needs(t *testing.T, bin string) (interp string, libs []string) {
	t.Helper()
	f, err := elf.Open(bin)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b := make([]byte, p.Filesz)
			if _, err := p.ReadAt(b, 0); err != nil {
				t.Fatal(err)
			}
			interp = strings.TrimRight(string(b), "\x00")
		}
	}
	libs, err = f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	return interp, libs
}

// libraryPath is where the loader finds a library for bin.
func libraryPath(t *testing.T, bin, lib string) string {
	t.Helper()
	out, err := exec.Command("ldd", bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) { // libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x...)
		if f := strings.Fields(line); len(f) > 2 && f[0] == lib {
			return f[2]
		}
	}
	t.Fatalf("ldd %s does not name %s:\n%s", bin, lib, out)
	return ""
}

func copyTo(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}
