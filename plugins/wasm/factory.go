package wasm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/plugins/wasm/meter"
)

func init() {
	module.Define(eviction.Kind, "wasm", "a WebAssembly module from a file, metered and sandboxed", DefaultConfig(),
		func(ctx context.Context, env module.Env, c Config) (eviction.Factory, error) {
			f, err := Open(ctx, c, env.Log)
			if err != nil {
				return nil, err // not a *Factory that is nil
			}
			return f, nil
		}, module.Probe(supported))
}

// supported tells whether the compiler knows this machine. Interpreting guests would be too slow to be of use.
func supported() error {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return fmt.Errorf("modules are compiled for amd64 and arm64 only, this is %s: %w", runtime.GOARCH, module.ErrSkip)
	}
	return nil
}

// Factory makes instances of one compiled module. It may be used from several goroutines.
type Factory struct {
	cfg         Config
	params      []byte
	log         *slog.Logger
	info        Info
	rt          wazero.Runtime
	compiled    wazero.CompiledModule
	metered     bool
	startExport string
}

// Info describes a module that was accepted.
type Info struct {
	Name      string   `json:"name"` // of the file
	SHA256    string   `json:"sha256"`
	Bytes     int      `json:"bytes"`
	Exports   []string `json:"exports"` // the functions of the ABI
	Imports   []string `json:"imports"`
	Score     bool     `json:"score"` // score mode
	Admit     bool     `json:"admit"`
	State     bool     `json:"state"` // policy_save and policy_load
	Stats     bool     `json:"stats"`
	MemoryMin uint32   `json:"memory_min_pages"`
	MemoryMax uint32   `json:"memory_max_pages"` // what the module says; 65536 if it says nothing
	CodeBytes uint64   `json:"code_bytes"`       // machine code, about
	// Compiled tells that the machine code was not in the cache; Load is how long it all took.
	Compiled bool          `json:"compiled"`
	Load     time.Duration `json:"load_ns"`
}

// Info describes the module.
func (f *Factory) Info() Info { return f.info }

// DomainSettings implements eviction.DomainConfig.
func (f *Factory) DomainSettings() eviction.Settings {
	return eviction.Settings{Reserve: f.cfg.Reserve, Admission: f.cfg.Admission == "on", Aside: true}
}

// ErrRefused is wrapped by the errors for a module that is not what a policy may be: too large, another digest,
// not valid, with imports that are not offered, without the exports of the ABI.
var ErrRefused = errors.New("module refused")

// Open reads, checks and compiles a module; no code of it runs. An error names the file. c must be valid.
func Open(ctx context.Context, c Config, log *slog.Logger) (*Factory, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if err := supported(); err != nil {
		return nil, err
	}
	start := time.Now()
	f := &Factory{cfg: c, log: log}
	if err := f.load(ctx, defaultLimits); err != nil {
		var refused *refusedError
		if errors.As(err, &refused) {
			err = fmt.Errorf("%w: %w", ErrRefused, err)
		}
		return nil, fmt.Errorf("%s: %w", c.Module, err)
	}
	f.info.Load = time.Since(start)
	return f, nil
}

// load fills the factory.
func (f *Factory) load(ctx context.Context, l limits) (err error) {
	if f.params, err = f.cfg.params(); err != nil {
		return err
	}
	module, sum, err := f.read()
	if err != nil {
		return err
	}
	c, err := openCache(f.cfg.CacheDir)
	if err != nil {
		return err
	}
	key := c.key(sum)
	for try := 0; ; try++ {
		e, ok := c.find(key)
		if !ok {
			f.info.Compiled = true
			if e, err = c.fill(ctx, module, key, l); err != nil {
				return err
			}
		}
		if err = f.link(ctx, module, c.path(key), e); err == nil || !ok || try > 0 {
			break
		}
		// The entry is damaged or was made by other code: once more from the start.
		f.log.Warn("compiled code of an eviction policy was not usable and is made again", "module", f.info.Name, "error", err)
		if err := os.RemoveAll(c.path(key)); err != nil {
			return fmt.Errorf("cache_dir: %w", err)
		}
	}
	return err
}

// read returns the file's bytes if it is as large and as known as the config says.
func (f *Factory) read() (module []byte, sum [32]byte, err error) {
	file, err := os.Open(f.cfg.Module)
	if err != nil {
		return nil, sum, errors.Unwrap(err) // the caller names the file
	}
	defer file.Close()
	if st, err := file.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, sum, errors.Join(errors.New("not a regular file"), err)
	}
	most := int64(f.cfg.MaxModuleBytes)
	module, err = io.ReadAll(io.LimitReader(file, most+1))
	if err != nil {
		return nil, sum, err
	}
	if int64(len(module)) > most {
		return nil, sum, &refusedError{fmt.Sprintf("larger than %d bytes (max_module_bytes)", most)}
	}
	sum = sha256.Sum256(module)
	f.info.Name, f.info.Bytes, f.info.SHA256 = filepath.Base(f.cfg.Module), len(module), hex.EncodeToString(sum[:])
	if want := strings.ToLower(f.cfg.SHA256); want != "" && want != f.info.SHA256 {
		return nil, sum, &refusedError{fmt.Sprintf("its SHA-256 is %s, not %s as wanted (sha256)", f.info.SHA256, want)}
	}
	return module, sum, nil
}

// fill makes an entry by a child process.
func (c *cache) fill(ctx context.Context, module []byte, key string, l limits) (*entry, error) {
	part, err := c.begin()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(part) // when it did not become an entry
	metered, err := compileAside(ctx, module, part, l)
	if err != nil {
		return nil, err
	}
	e := entry{Metered: metered}
	if err := c.finish(part, key, e); err != nil {
		return nil, err
	}
	found, ok := c.find(key)
	if !ok {
		return nil, fmt.Errorf("cache_dir: the entry %s is gone after it was made", c.path(key))
	}
	return found, nil
}

// link rewrites the module again, which is quick, and takes its machine code from the entry.
func (f *Factory) link(ctx context.Context, module []byte, dir string, e *entry) error {
	m, err := rewrite(module, nil)
	if err != nil {
		return err
	}
	if sum := digest(m.code); sum != e.Metered {
		return fmt.Errorf("the entry is of the rewritten module %.12s, this program makes %.12s", e.Metered, sum)
	}
	files, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return err
	}
	rt := wazero.NewRuntimeWithConfig(ctx, compilerConfig().WithCompilationCache(files))
	c, err := rt.CompileModule(ctx, m.code)
	if err != nil {
		return errors.Join(fmt.Errorf("%s", firstLine(err)), rt.Close(ctx))
	}
	f.info.CodeBytes = e.CodeBytes
	if err := f.inspect(c); err != nil {
		return errors.Join(err, rt.Close(ctx))
	}
	if err := offer(ctx, rt, c); err != nil {
		return errors.Join(err, rt.Close(ctx))
	}
	f.rt, f.compiled, f.metered, f.startExport = rt, c, true, m.start
	return nil
}

// compileInto is what the child does: validate the module as it came, check imports and exports, rewrite, and
// compile with machine code going to dir.
func compileInto(ctx context.Context, module []byte, dir string) (metered string, err error) {
	m, err := rewrite(module, func(b []byte) error {
		rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter().WithCoreFeatures(api.CoreFeaturesV2).WithDebugInfoEnabled(false))
		defer rt.Close(ctx) // the process ends soon
		c, err := rt.CompileModule(ctx, b)
		if err != nil {
			return &refusedError{"not a valid module: " + clean(firstLine(err), 300)}
		}
		return new(Factory).inspect(c)
	})
	if err != nil {
		return "", err
	}
	files, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return "", err
	}
	rt := wazero.NewRuntimeWithConfig(ctx, compilerConfig().WithCompilationCache(files))
	defer rt.Close(ctx) // as above
	if _, err := rt.CompileModule(experimental.WithCompilationWorkers(ctx, childThreads), m.code); err != nil {
		return "", fmt.Errorf("the metered module: %s", clean(firstLine(err), 300))
	}
	return digest(m.code), nil
}

// metered is a module that pays for what it does.
type metered struct {
	code  []byte
	start string // export of the start function, if there is one
}

// rewrite meters a module. validate is the engine's check; without it the bytes must have passed it before.
func rewrite(module []byte, validate func([]byte) error) (*metered, error) {
	if validate == nil {
		validate = func([]byte) error { return nil }
	}
	m, err := meter.Rewrite(module, meter.Options{Validate: validate, Budget: meter.InitBudget, Limits: meter.Limits{Module: math.MaxInt32}})
	var refused *refusedError
	if errors.As(err, &refused) { // by validate: it says what is wrong itself
		return nil, refused
	}
	if err != nil {
		return nil, &refusedError{strings.TrimPrefix(clean(err.Error(), 400), "meter: ")}
	}
	for _, i := range m.Facts.Imports {
		if i.Kind != meter.Function {
			return nil, &refusedError{importError("the "+i.Kind.String(), i.Module, i.Name).Error()}
		}
	}
	out := &metered{code: m.Code}
	if m.Facts.Start {
		out.start = meter.StartExport
	}
	return out, nil
}

func compilerConfig() wazero.RuntimeConfig {
	return wazero.NewRuntimeConfigCompiler().WithCoreFeatures(api.CoreFeaturesV2).WithMemoryCapacityFromMax(true).WithDebugInfoEnabled(false)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Close frees the compiled module. Instances must be closed before. It is not needed for correctness: the
// machine code goes with the last reference to the factory and its instances.
func (f *Factory) Close() error { return f.rt.Close(context.Background()) }
