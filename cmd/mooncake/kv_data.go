package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/core/client"
)

func newKVPutCommand() *cobra.Command {
	var f kvFlags
	var replicas int
	var prefer []string
	var pin, wait time.Duration
	var hardPin, upsert, existsOK bool
	var group string
	cmd := &cobra.Command{
		Use:   "put KEY [FILE]",
		Short: "Store stdin, or a file, under a key",
		Long: `Store stdin, or a file, under a key. The value is read into memory first, because the master must know its size.
An existing key is an error (exit code 4), unless --upsert replaces it or --exists-ok lets it be.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, func(ctx context.Context, c *client.Client) error {
				parts, size, err := readValue(cmd, args[1:])
				if err != nil {
					return err
				}
				bar := newKVBar(cmd, size*int64(max(replicas, 1)), "put")
				defer bar.finish()
				opts := []client.PutOption{client.Replicas(replicas), client.Prefer(prefer...), client.WaitForSpace(wait),
					client.Progress(func(moved, _ uint64) { bar.set(int64(moved)) })}
				if pin > 0 {
					opts = append(opts, client.SoftPin(pin))
				}
				if hardPin {
					opts = append(opts, client.HardPin())
				}
				if group != "" {
					opts = append(opts, client.Group(group))
				}
				if existsOK {
					opts = append(opts, client.ExistsOK())
				}
				put := c.PutParts
				if upsert {
					put = c.UpsertParts
				}
				begin := time.Now()
				if err := put(ctx, args[0], parts, opts...); err != nil {
					return err
				}
				if !f.json {
					return nil
				}
				return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"key": args[0], "bytes": size, "seconds": time.Since(begin).Seconds()})
			})
		},
	}
	f.add(cmd)
	fs := cmd.Flags()
	fs.IntVar(&replicas, "replicas", 1, "copies in different segments")
	fs.StringSliceVar(&prefer, "prefer", nil, "segments to try first")
	fs.DurationVar(&pin, "pin", 0, "protect from eviction for so long, if there is anything else to evict")
	fs.BoolVar(&hardPin, "hard-pin", false, "protect from eviction until removed")
	fs.StringVar(&group, "group", "", "group that is read and evicted together")
	fs.BoolVar(&upsert, "upsert", false, "replace an existing object")
	fs.BoolVar(&existsOK, "exists-ok", false, "an existing key is no error; nothing is written")
	fs.DurationVar(&wait, "wait", 0, "wait for space for so long")
	return cmd
}

// valuePart is how a value is read and written: in pieces that show progress.
const valuePart = 16 << 20

// readValue reads stdin or a file.
func readValue(cmd *cobra.Command, file []string) (parts [][]byte, size int64, err error) {
	in, total := cmd.InOrStdin(), int64(-1)
	if len(file) > 0 && file[0] != "-" {
		f, err := os.Open(file[0])
		if err != nil {
			return nil, 0, err
		}
		defer f.Close()
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			total = st.Size()
		}
		in = f
	}
	bar := newKVBar(cmd, total, "read")
	defer bar.finish()
	for next := int64(64 << 10); ; next = min(4*next, valuePart) {
		if total >= 0 {
			next = min(max(total-size, 1), valuePart)
		}
		b := make([]byte, next)
		n, err := io.ReadFull(in, b)
		if n > 0 {
			parts = append(parts, b[:n])
		}
		size += int64(n)
		bar.add(n)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return parts, size, nil
		case err != nil:
			return nil, 0, err
		}
	}
}

func newKVGetCommand() *cobra.Command {
	var f kvFlags
	cmd := &cobra.Command{
		Use:   "get KEY [FILE]",
		Short: "Write an object to stdout, or to a file",
		Long: `Write an object to stdout, or to a file, piece by piece. A file appears under its name only when it is complete.
With --json what was read is described on stdout instead; then FILE is needed for the value.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			toFile := len(args) > 1 && args[1] != "-"
			if f.json && !toFile {
				return errors.New("kv get --json: stdout is for the JSON; name a FILE for the value")
			}
			return f.run(cmd, func(ctx context.Context, c *client.Client) error {
				begin := time.Now()
				r, err := c.Open(ctx, args[0])
				if err != nil {
					return err
				}
				bar := newKVBar(cmd, r.Size(), "get")
				defer bar.finish()
				if !toFile {
					_, err = r.WriteTo(&counted{cmd.OutOrStdout(), bar})
					return err
				}
				if err := writeWhole(args[1], func(w io.Writer) error {
					_, err := r.WriteTo(&counted{w, bar})
					return err
				}); err != nil || !f.json {
					return err
				}
				return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"key": args[0], "bytes": r.Size(), "file": args[1], "seconds": time.Since(begin).Seconds()})
			})
		},
	}
	f.add(cmd)
	return cmd
}

// writeWhole writes a file that is there completely or not at all.
func writeWhole(path string, write func(io.Writer) error) (err error) {
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() { // a pipe, /dev/null
		out, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(out), out.Close())
	}
	tmp := fmt.Sprintf("%s.part-%d", path, os.Getpid())
	out, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if err := errors.Join(write(out), out.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return os.Rename(tmp, path)
}
