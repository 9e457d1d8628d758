package external

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrRefused is wrapped by the errors for a program that is not what the configuration says: missing, not executable,
// another digest, another kind, another version of the protocol.
var ErrRefused = errors.New("plugin refused")

// program is what one start executes: descriptors of files that were opened once, checked, and are executed or read
// through these descriptors, so that it does not matter what becomes of their names.
type program struct {
	argv  []string
	files []*os.File // argv[0]'s first, then arguments with a digest
}

// firstFile is the number of files[0] in the new process: 0 to 2 are standard, 3 is the side socket.
const firstFile = 4

// inChild is how the new process names files[i].
func inChild(i int) string { return fmt.Sprintf("/proc/self/fd/%d", firstFile+i) }

func (p *program) close() {
	for _, f := range p.files {
		f.Close()
	}
}

// openProgram opens and checks the program and its files. The caller closes it after the start.
func openProgram(c *Config) (_ *program, err error) {
	path, err := exec.LookPath(c.Command[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return nil, fmt.Errorf("command: %s: %w: %w", c.Command[0], whyNot(err), ErrRefused)
	}
	path = absolute(path)
	sums := map[string]string{}
	for file, sum := range c.SHA256 {
		if file == c.Command[0] { // found through PATH, perhaps
			file = path
		}
		sums[absolute(file)] = strings.ToLower(sum)
	}
	p := &program{argv: slices.Clone(c.Command)}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	take := func(path string) error {
		sum, pinned := sums[path]
		if !pinned && len(c.SHA256) > 0 {
			return fmt.Errorf("sha256: %s has no digest; add one for the program and for each argument that is a file: %w", path, ErrRefused)
		}
		f, err := openChecked("command", path, sum)
		if err == nil {
			p.files = append(p.files, f)
		}
		return err
	}
	if err := take(path); err != nil {
		return nil, err
	}
	for i, arg := range c.Command[1:] {
		full := absolute(arg)
		if st, err := os.Stat(full); len(c.SHA256) == 0 || err != nil || !st.Mode().IsRegular() {
			continue
		}
		if err := take(full); err != nil {
			return nil, err
		}
		p.argv[i+1] = inChild(len(p.files) - 1)
	}
	for _, other := range slices.Sorted(maps.Keys(sums)) { // also what the program loads by name
		f, err := openChecked("sha256", other, sums[other])
		if err != nil {
			return nil, err
		}
		f.Close()
	}
	return p, nil
}

// whyNot is what exec.LookPath says, without the name of the file.
func whyNot(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return errors.New("it is not executable (chmod +x)")
	}
	if at := (*os.PathError)(nil); errors.As(err, &at) {
		return at.Err
	}
	return errors.Unwrap(err)
}

// absolute is the file's name from the root.
func absolute(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return path
}

// openChecked opens a regular file and compares its digest, if there is one. key is the key of the section that names
// the file.
func openChecked(key, path, sum string) (_ *os.File, err error) {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%s: %s: %s: %w", key, path, fmt.Sprintf(format, args...), ErrRefused)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, refuse("%v", errors.Unwrap(err))
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, refuse("%v", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, refuse("not a regular file")
	}
	if sum == "" {
		return f, nil
	}
	key = "sha256"
	if st.Mode&0o002 != 0 {
		return nil, refuse("everybody may write to it, so a digest says nothing (chmod o-w)")
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, refuse("%v", err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != sum {
		return nil, refuse("its SHA-256 is %s, the config wants %s", got, sum)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, refuse("%v", err)
	}
	return f, nil
}
