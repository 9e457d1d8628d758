package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/core/master/admin"
	"github.com/mooncake-agent/mooncake/core/master/policies"
)

func (c *policyClient) setCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set NAME|FILE.wasm[:KEY=VALUE,...]",
		Short: "Change a policy while the store works",
		Long: `Change the eviction policy of a domain. The new policy is told what is resident, oldest first, and takes over what
the old one has learned if it can; then it takes over in one step. No object and no lease is lost. The old one is
kept for a minute: mooncake policy rollback. If the new one cannot start, the old one stays.

Keys are those of the policy (mooncake config schema lists them) and of the host: admission=on|off,
refused=no_space|evict, guard=fallback|alarm|off. native is the master's own tail-first LRU. After a restart the
master's configuration counts again.

FILE.wasm is a policy as a WebAssembly module. The master takes it from the folder that its configuration names
(eviction_module_dir; of a node eviction.module_dir) and from nowhere else, and nothing is uploaded: copy it there. A
name without a folder is one in there. If the file that you name can be read here, its SHA-256 goes along, and the
master refuses another one. Settings: params.NAME=VALUE for the policy, fuel_per_event, memory_limit, reserve,
sha256.`,
		Example: `  mooncake policy set adaptive
  mooncake policy set s3fifo:small=0.2,guard=alarm --tenant team-a
  mooncake policy set mypolicy.wasm:params.small=0.2,fuel_per_event=2000`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := withDigest(args[0])
			if err != nil {
				return err
			}
			return c.change(cmd, http.MethodPost, "", admin.PolicyChange{Domain: c.domain(), Policy: text})
		},
	}
	c.tenantFlag(cmd)
	return cmd
}

// digestLimit is more than any master takes.
const digestLimit = 64 << 20

// withDigest makes the name of a module one that the master understands, which has another working folder, and adds
// the digest of the file that is meant. Other texts stay as they are.
func withDigest(text string) (string, error) {
	if !policies.IsFile(text) {
		return text, nil
	}
	name, settings, some := strings.Cut(text, ":")
	path, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	out := name // in the master's folder
	if strings.Contains(name, "/") {
		out = path
	}
	sum, err := digestOf(path)
	switch {
	case err == nil && !strings.Contains(","+settings, ",sha256="):
		if some {
			settings += ","
		}
		settings, some = settings+"sha256="+sum, true
	case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission): // the master may read it
		return "", err
	}
	if some {
		out += ":" + settings
	}
	return out, nil
}

func digestOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() || st.Size() > digestLimit {
		return "", errors.Join(fmt.Errorf("%s: not a file of at most %d bytes", path, digestLimit), err)
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
