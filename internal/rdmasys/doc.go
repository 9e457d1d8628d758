// Package rdmasys reads what the kernel shows of RDMA devices in /sys, and ranks the GIDs of a port. It opens no
// device and needs no library, so it works in every build and on recorded trees.
//
// [Read] lists devices with ports and GID tables, [Rank] orders the GIDs as Mooncake does, [ParseConfig] reads a
// PCI configuration space, [EthernetMTU] is the MTU that RoCE takes from a network interface.
//
// The formats are those of the kernel: Documentation/ABI/stable/sysfs-class-infiniband and
// Documentation/ABI/testing/sysfs-class-infiniband (gid_attrs), sysfs-bus-pci (config, numa_node, *_link_*).
package rdmasys
