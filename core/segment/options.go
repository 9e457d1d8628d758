package segment

import (
	"fmt"
	"math"
)

// Options is the config section "segment": how the memory of the node's segments is obtained.
type Options struct {
	HugePages string `koanf:"huge_pages" doc:"page size of segment memory; 2MB and 1GB come from the kernel's reserved pool (vm.nr_hugepages)" enum:"off|2MB|1GB"`
	NUMANode  int    `koanf:"numa_node" doc:"NUMA node that holds segment memory; -1 = any" range:"-1..1023"`
	Prefault  bool   `koanf:"prefault" doc:"map every page at start, so that the first transfer into a page is not slower than the next"`
}

// DefaultOptions returns the defaults of the section.
func DefaultOptions() Options { return Options{HugePages: "off", NUMANode: -1} }

// Validate checks what the tags cannot express.
func (o *Options) Validate() error {
	if _, err := o.pageSize(); err != nil {
		return err
	}
	if o.NUMANode < -1 || o.NUMANode >= maxNodes {
		return fmt.Errorf("numa_node: %d is not a node number; use 0 to %d, or -1 for any", o.NUMANode, maxNodes-1)
	}
	return nil
}

const (
	basePage = 4096 // of every Linux port the node is built for; larger base pages only round up more
	page2MB  = 2 << 20
	page1GB  = 1 << 30
	maxNodes = 1024
)

// pageSize returns the unit in which memory is taken.
func (o *Options) pageSize() (uint64, error) {
	switch o.HugePages {
	case "off", "":
		return basePage, nil
	case "2MB":
		return page2MB, nil
	case "1GB":
		return page1GB, nil
	}
	return 0, fmt.Errorf("huge_pages: %q is unknown; use off, 2MB or 1GB", o.HugePages)
}

// roundUp returns n rounded up to a multiple of page, or false when that does not fit into an int64.
func roundUp(n, page uint64) (uint64, bool) {
	if n > math.MaxInt64-page {
		return 0, false
	}
	return (n + page - 1) / page * page, true
}
