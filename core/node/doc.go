// Package node composes a node from its configuration: it is the only package that knows both the
// config and all core packages, and the only one that imports fx.
//
// Two phases. [Resolve] turns a checked configuration into a [Plan]: every section typed, every part
// named; user errors end here. Then fx wires the plan: constructors have no side effects, everything
// that opens, listens or publishes is a start hook, and what was started is stopped in reverse when a
// later start fails or the process is told to stop. The order is: log, admin server (so that /readyz
// tells what is missing), HTTP metadata server, Store master, segment memory, Transfer Engine (listeners, transports, publication),
// Store (the memory is lent to the master).
// A stop therefore withdraws from the Store first, then from the metadata.
package node
