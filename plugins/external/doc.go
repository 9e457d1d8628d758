// Package external runs parts of a node that are programs of their own, over hashicorp/go-plugin: it starts them, looks
// after them and starts them again. What they are is the work of the adapters beside it: external/transport,
// external/backend (metadata) and external/policy (eviction), which register type "external" in their kinds:
//
//	"metadata": {"type": "external", "command": ["/opt/p/sqlite-backend"], "sha256": {"/opt/p/sqlite-backend": "9f86..."},
//	             "config": {"file": "/var/lib/mooncake/meta.db"}}
//
// The protocol is plugins/proto/v1; docs/external-plugins.md is the guide for authors.
//
// # From a section to a process
//
// [Open] opens the program and the arguments that are files, checks their digests, and runs the program once to hear of
// its kind, name and features; the process is ended again. [Program.Plugin] makes a supervised plugin of it, and
// [Plugin.Run] starts it. Each start opens and checks the files anew and executes what was opened, by descriptor.
// A process gets an environment of its own, a private folder for its socket, one end of the side socket, limits
// on memory and files, and a certificate for this process only.
//
// # States
//
//	starting → ready → back-off → starting → ... ; any → stopped
//	                 → tripped → starting
//
// A process has failed when it exits, does not answer Health in time, or when an adapter reports a [Process.Fault]. It is
// killed and the next one started after a pause: 1 s, doubled each time up to 60 s, give or take a fifth, and back to
// 1 s once a process was ready for 60 s. After eight failures in a row the breaker trips: an error in the log, the
// metric mooncake_plugin_tripped, and one attempt in ten minutes until it works or an operator restarts it.
// Each process has a generation number, and a fault counts for its own generation only: a hundred callers that
// fail together cause one restart. While no process is ready calls fail at once with [ErrUnavailable].
//
// # Ends
//
// A process is killed by its pid descriptor, with its process group, before it is waited for, so that no number that
// was given to somebody else is ever used. It dies with the host however that ends: its parent-death signal is SIGKILL,
// tied to one thread that lives as long as any plugin does, and it sees end of file on the side socket.
//
// # Locks
//
// supervisor.mu and the table's are leaves: nothing is called under them.
package external
