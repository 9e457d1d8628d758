package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// Module is the module path.
const Module = "github.com/mooncake-agent/mooncake"

// kinds are the extension points: a folder each with the contract, its conformance suite, its
// implementations and "all", which links them into a binary.
var kinds = []string{"transports", "metadata", "eviction"}

// leaves may be imported by every package and import nothing of this module themselves. So may what
// lies in internal/, but for the helpers of tests and scripts.
var (
	leaves      = []string{"core/units", "core/logx", "core/guard", "eviction/trace"}
	testHelpers = []string{"internal/testenv", "internal/archtest"}
	// scriptHelpers is for scripts; it imports leaves.
	scriptHelpers = []string{"internal/sidebyside"}
	// scriptClients are for scripts that ask a running master what the command line does not.
	scriptClients = []string{"core/rpc", "core/rpc/wire"}
)

// shared are folders inside a kind that its implementations may import: they register nothing. So
// are those below KIND/internal/. Commands and conformance suites may use tools.
var (
	shared = []string{"eviction/order", "metadata/internal/remote", "transports/verbs/device"}
	tools  = []string{"eviction/conformance", "eviction/replay", "metadata/conformance", "transports/conformance"}
)

// layer is the role of a package, by its place in the tree.
type layer int

const (
	leaf     layer = iota
	registry       // core/module
	contract       // transports, metadata, eviction
	implementation
	suite // transports/transporttest, ...
	all   // transports/all, ...
	core
	node   // core/node, the composition
	plugin // plugins/...
	command
	helper // internal/..., only for tests and scripts
	script // scripts/..., programs of the build
	checks // test/..., only tests
	unknown
)

// layerOf classifies a path relative to the module.
func layerOf(path string) layer {
	if slices.Contains(leaves, path) {
		return leaf
	}
	for _, k := range kinds {
		rest, inside := strings.CutPrefix(path, k+"/")
		switch {
		case path == k:
			return contract
		case !inside:
		case rest == "all":
			return all
		case isSuite(path):
			return suite
		default:
			return implementation
		}
	}
	switch first, _, _ := strings.Cut(path, "/"); {
	case path == "core/module":
		return registry
	case path == "core/node":
		return node
	case first == "core" && strings.HasSuffix(path, "test"):
		return suite
	case first == "core":
		return core
	case first == "plugins":
		return plugin
	case first == "cmd":
		return command
	case slices.ContainsFunc(testHelpers, func(h string) bool { return path == h || strings.HasPrefix(path, h+"/") }):
		return helper
	case slices.Contains(scriptHelpers, path):
		return helper
	case first == "internal":
		return leaf
	case first == "scripts":
		return script
	case first == "test":
		return checks
	}
	return unknown
}

// isSuite tells whether a package holds tests for others to run: transports/transporttest.
func isSuite(path string) bool {
	last := path[strings.LastIndexByte(path, '/')+1:]
	return strings.HasSuffix(last, "test") && last != "test"
}

// kindOf is the extension point a path belongs to, or "".
func kindOf(path string) string {
	first, _, _ := strings.Cut(path, "/")
	if slices.Contains(kinds, first) {
		return first
	}
	return ""
}

// wrongArrow explains why the package from must not import to outside of its tests, or returns "".
// Both are relative to the module.
func wrongArrow(from, to string) string {
	f, t := layerOf(from), layerOf(to)
	if f == unknown {
		return fmt.Sprintf("%s: no layer is known for this folder (internal/archtest/rules.go)", from)
	}
	no := func(why string) string { return fmt.Sprintf("%s imports %s: %s", from, to, why) }
	sameFolder := strings.HasPrefix(to, from+"/") || strings.HasPrefix(from, to+"/")
	switch t {
	case leaf:
		if f == leaf {
			return no("leaves import nothing of this module")
		}
		return ""
	case helper:
		forScripts := f == script && slices.Contains(scriptHelpers, to)
		if f != helper && f != suite && f != checks && !forScripts {
			return no("it is for tests only")
		}
		return ""
	case suite:
		if f != suite {
			return no("conformance suites are for tests only")
		}
		return ""
	case command, script, checks:
		return no("programs and tests are not libraries")
	}
	switch f {
	case script:
		if !slices.Contains(scriptClients, to) {
			return no("scripts import leaves, what scripts share and the master's wire only")
		}
	case leaf, helper:
		return no("this layer imports leaves only")
	case registry:
		return no("core/module imports leaves only")
	case contract:
		if t != registry {
			return no("a contract imports core/module and leaves only")
		}
	case implementation:
		own := t == contract && kindOf(to) == kindOf(from)
		part := t == implementation && (sameFolder || slices.Contains(shared, to) || strings.HasPrefix(to, kindOf(to)+"/internal/"))
		if !own && !part && t != registry {
			return no("an implementation imports its own contract, core/module and leaves only")
		}
	case all:
		if kindOf(to) != kindOf(from) {
			return no("all links the implementations of its own kind")
		}
	case suite:
		if t == implementation && !slices.Contains(tools, to) || t == all || t == node {
			return no("a suite knows contracts, never implementations")
		}
	case core:
		if t != contract && t != registry && t != core {
			return no("core imports contracts and core, never implementations or the composition")
		}
	case node:
		if t != contract && t != registry && t != core {
			return no("core/node imports contracts and core, never implementations")
		}
	case plugin:
		if t != contract && t != registry && t != plugin {
			return no("plugins import contracts, core/module and leaves only")
		}
	case command:
		if t == implementation && !slices.Contains(tools, to) {
			return no("a command links implementations through all")
		}
	}
	return ""
}
