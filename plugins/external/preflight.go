package external

import (
	"errors"
	"os"
	"strings"
)

// Preflight looks at what a start needs of this machine and runs nothing: the program is there, may be executed, and all
// digests are right; the run directory, if it exists, is private. Each error begins with the key that it is about. mooncake
// config check asks for it; c must be valid.
func (c *Config) Preflight() error {
	return errors.Join(c.checkFiles(), c.checkRunDir())
}

func (c *Config) checkFiles() error {
	p, err := openProgram(c)
	if err != nil {
		return errors.New(strings.TrimSuffix(err.Error(), ": "+ErrRefused.Error()))
	}
	p.close()
	return nil
}

func (c *Config) checkRunDir() error {
	base := runDirOf(c.RunDir)
	if err := checkName(base); err != nil {
		return err
	}
	if _, err := os.Lstat(base); errors.Is(err, os.ErrNotExist) {
		return nil // the start makes it
	}
	return checkFolder(base)
}
