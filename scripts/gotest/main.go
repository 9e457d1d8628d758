// Command gotest runs "go test" and ends with what a reader of a long log looks for: the failures,
// the slowest tests, every skipped test with its reason, and the counts.
//
//	gotest [go test arguments] [-- go test arguments]...
//
// Each group after "--" is one more go test run; all are run even when an earlier one failed. Lines
// of packages are passed on as go test prints them, the output of a test only when it fails.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: gotest [go test arguments] [-- go test arguments]...")
		os.Exit(2)
	}
	// go test hears the terminal's interrupt itself; this process stays to print the summary.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM)
	r := newReport(os.Stdout)
	code := 0
	for _, args := range groups(os.Args[1:]) {
		if err := run(r, args); err != nil {
			fmt.Fprintln(os.Stderr, "gotest:", err)
			code = 1
		}
	}
	r.summary()
	if code == 0 && r.failures() > 0 {
		code = 1
	}
	os.Exit(code)
}

func groups(args []string) [][]string {
	var out [][]string
	for {
		i := slices.Index(args, "--")
		if i < 0 {
			return append(out, args)
		}
		out, args = append(out, args[:i]), args[i+1:]
	}
}

func run(r *report, args []string) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := readLines(out, r.line); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("go test %v: %w", args, err)
	}
	return nil
}

// readLines calls f with each line, however long, without its newline.
func readLines(in io.Reader, f func([]byte)) error {
	b := bufio.NewReaderSize(in, 1<<16)
	for {
		line, err := b.ReadBytes('\n')
		if line = bytes.TrimRight(line, "\n"); len(line) > 0 {
			f(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
